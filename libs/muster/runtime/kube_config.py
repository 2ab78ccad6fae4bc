"""Which clusters this process speaks to, and how to open a connection to each.

`MUSTER_CLUSTERS` is a comma-separated list of `name=address`; an address is a plain URL (`http://127.0.0.1:8001`, the
simulated cluster), a kubeconfig file with an optional context (`/path/config#context`), or `in-cluster`. When it is not
set, `KUBECONFIG` names one cluster, called by its context. Kubeconfigs and in-cluster configuration are read by
kubernetes-asyncio, which is imported only then: it costs 63 MB and a second that a plain URL does not need.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from muster.runtime.kube_http import (
    IN_FLIGHT_MAX,
    READ_BUFFER_BYTES,
    WATCHES_MAX,
    Connection,
    HttpKubeApi,
)

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

IN_CLUSTER: Final = "in-cluster"
CLUSTER_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
RENEW_AT_MOST_EVERY_S: Final = 5.0


class BadClusters(ValueError):
    """The clusters setting cannot be read; the message says which part."""


@dataclass(frozen=True)
class ClusterAddress:
    """Exactly one of `url`, `kubeconfig` and `in_cluster` says where the cluster is."""

    name: str
    url: str = ""
    kubeconfig: str = ""
    context: str = ""
    in_cluster: bool = False


def parse_clusters(text: str) -> tuple[ClusterAddress, ...]:
    """Read `name=address,...`. Raises BadClusters."""
    clusters: dict[str, ClusterAddress] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, address = part.partition("=")
        name, address = name.strip(), address.strip()
        if not equals or not address:
            raise BadClusters(f"{part!r} is not of the form name=address")
        if not CLUSTER_NAME.fullmatch(name):
            raise BadClusters(f"cluster name {name!r} must be lower-case letters, digits and '-', at most 63")
        if name in clusters:
            raise BadClusters(f"cluster {name!r} is named twice")
        clusters[name] = _address(name, address)
    return tuple(clusters.values())


def clusters_from(text: str, environ: Mapping[str, str]) -> tuple[ClusterAddress, ...]:
    """The clusters of the setting, else the one of KUBECONFIG, else none."""
    if text.strip():
        return parse_clusters(text)
    path = environ.get("KUBECONFIG", "")
    return (ClusterAddress(name="", kubeconfig=path),) if path else ()


def _address(name: str, address: str) -> ClusterAddress:
    if address == IN_CLUSTER:
        return ClusterAddress(name=name, in_cluster=True)
    if "://" in address:
        if not address.startswith(("http://", "https://")):
            raise BadClusters(f"cluster {name!r}: {address!r} must be an http or https URL, a kubeconfig or in-cluster")
        return ClusterAddress(name=name, url=address)
    path, _, context = address.partition("#")
    return ClusterAddress(name=name, kubeconfig=path, context=context)


async def connect(address: ClusterAddress, *, in_flight_max: int = IN_FLIGHT_MAX) -> HttpKubeApi:
    """Open the API of one cluster. Reading a kubeconfig may raise; the server is not contacted yet."""
    connections = in_flight_max + WATCHES_MAX
    if address.url:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections), read_bufsize=READ_BUFFER_BYTES, auto_decompress=True
        )
        connection = Connection(base_url=address.url, session=session, close=session.close)
        return HttpKubeApi(address.name, connection, in_flight_max=in_flight_max)
    return await _connect_configured(address, connections, in_flight_max)


async def _connect_configured(address: ClusterAddress, connections: int, in_flight_max: int) -> HttpKubeApi:
    # Late: see the module's docstring.
    from kubernetes_asyncio.client import ApiClient, Configuration

    configuration = Configuration()
    configuration.connection_pool_maxsize = connections
    loaded = _Loaded(address, configuration)
    await loaded.load()
    client = ApiClient(configuration)

    async def authorise(headers: MutableMapping[str, str]) -> None:
        setting = (await configuration.auth_settings()).get("BearerToken")
        if setting:
            headers["Authorization"] = str(setting["value"])

    options: dict[str, Any] = {}
    if configuration.tls_server_name:
        options["server_hostname"] = configuration.tls_server_name
    if configuration.proxy:
        options["proxy"] = configuration.proxy
    connection = Connection(
        base_url=str(configuration.host),
        session=client.rest_client.pool_manager,
        authorise=authorise,
        renew=loaded.renew,
        close=client.close,
        options=options,
    )
    return HttpKubeApi(address.name or loaded.context, connection, in_flight_max=in_flight_max)


class _Loaded:
    """A kubeconfig or in-cluster configuration that can be read again when its token was refused."""

    def __init__(self, address: ClusterAddress, configuration: Configuration) -> None:
        self._address = address
        self._configuration = configuration
        self._loaded_s = 0.0
        self.context = address.context

    async def load(self) -> None:
        from kubernetes_asyncio import config

        self._loaded_s = time.monotonic()
        if self._address.in_cluster:
            config.load_incluster_config(client_configuration=self._configuration)  # type: ignore[no-untyped-call]
            return
        loader = await config.load_kube_config(
            config_file=self._address.kubeconfig,
            context=self._address.context or None,
            client_configuration=self._configuration,
            persist_config=False,
        )
        current = loader.current_context
        self.context = str(current["name"]) if current else self.context

    async def renew(self) -> None:
        """After a 401: exec plugins and token files may have a new token by now."""
        if time.monotonic() - self._loaded_s >= RENEW_AT_MOST_EVERY_S:
            await self.load()
