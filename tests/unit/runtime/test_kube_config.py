"""Which clusters a process speaks to, and how it proves who it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from muster.runtime import kube, kube_config
from muster.runtime.kube_config import BadClusters, ClusterAddress, clusters_from, parse_clusters


def test_addresses_are_urls_kubeconfigs_or_in_cluster() -> None:
    assert parse_clusters("sim-a=http://127.0.0.1:8001, b=/etc/kube/config#prod,c=in-cluster") == (
        ClusterAddress("sim-a", url="http://127.0.0.1:8001"),
        ClusterAddress("b", kubeconfig="/etc/kube/config", context="prod"),
        ClusterAddress("c", in_cluster=True),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sim-a", "name=address"),
        ("a=http://x,a=http://y", "named twice"),
        ("A=http://x", "lower-case"),
        ("a=ftp://x", "http or https"),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(BadClusters, match=says):
        parse_clusters(text)


def test_kubeconfig_counts_only_when_no_cluster_is_named() -> None:
    environ = {"KUBECONFIG": "/home/u/.kube/config"}
    assert clusters_from("", environ) == (ClusterAddress("", kubeconfig="/home/u/.kube/config"),)
    assert clusters_from("a=http://x", environ) == (ClusterAddress("a", url="http://x"),)
    assert clusters_from("", {}) == ()


async def test_a_kubeconfig_gives_server_token_and_name_and_is_read_again_after_a_401(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[str] = []
    good = "Bearer new"

    async def server(request: web.BaseRequest) -> web.Response:
        tokens.append(request.headers.get("Authorization", ""))
        if tokens[-1] != good:
            return web.json_response(
                {"kind": "Status", "reason": "Unauthorized", "message": "no", "code": 401}, status=401
            )
        return web.json_response({"metadata": {"name": "a"}})

    runner = web.ServerRunner(web.Server(server))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = tmp_path / "config"
    text = f"""
apiVersion: v1
kind: Config
current-context: prod
contexts: [{{name: prod, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{runner.addresses[0][1]}"}}}}]
users: [{{name: u, user: {{token: TOKEN}}}}]
"""
    config.write_text(text.replace("TOKEN", "old"))
    api = await kube_config.connect(ClusterAddress("", kubeconfig=str(config)))
    assert api.cluster == "prod"
    config.write_text(text.replace("TOKEN", "new"))
    monkeypatch.setattr(kube_config, "RENEW_AT_MOST_EVERY_S", 0.0)
    with pytest.raises(kube.Transient):
        await api.get_pod("default", "a")
    assert (await api.get_pod("default", "a")).metadata.name == "a"
    assert tokens == ["Bearer old", "Bearer new"]
    await api.close()
    await runner.cleanup()


def test_a_plain_url_does_not_cost_the_generated_client() -> None:
    code = "import sys, muster.runtime.kube_config; sys.exit('kubernetes_asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
