"""The API server's verbs on objects, with Kubernetes' rules about names, versions, deletion and finalizers.

`dispatch` turns a request into one of these calls; kubelets and controllers call them directly. Stored objects are
shared and never changed in place: every write builds the new object's top level and metadata afresh.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from . import pods, validation
from .audit import REMOVE, AuditLog
from .kinds import NAMESPACES, NODES, PODS, Kind, Kinds
from .status import StatusError, already_exists, bad_request, conflict, invalid, not_found
from .store import Store, Version
from .timers import Timers, parse_timestamp_ms, timestamp

_NAME_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels, so that no word appears by chance
_SERVER_FIELDS = (  # of metadata: a client's values are ignored
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
)


class Preconditions(msgspec.Struct):
    uid: str | None = None
    resourceVersion: str | None = None  # noqa: N815 - the wire's name


class DeleteOptions(msgspec.Struct):
    gracePeriodSeconds: int | None = None  # noqa: N815 - the wire's name
    preconditions: Preconditions | None = None
    dryRun: list[str] | None = None  # noqa: N815 - the wire's name


class Api:
    """Reads and writes of one cluster's objects."""

    def __init__(self, store: Store, kinds: Kinds, audit: AuditLog, timers: Timers, rng: random.Random) -> None:
        self.store = store
        self.kinds = kinds
        self.audit = audit
        self.timers = timers
        self._rng = rng
        self.on_create: list[Callable[[Kind, dict[str, Any]], None]] = []  # may refuse with StatusError

    def now(self) -> str:
        return timestamp(self.timers.now_ms())

    def require(self, kind: Kind, namespace: str, name: str) -> Version:
        version = self.store.get(kind, namespace, name)
        if version is None:
            raise not_found(kind.plural, name, kind.group)
        return version

    # -- create ----------------------------------------------------------------------------------------------------

    def create(self, kind: Kind, namespace: str, obj: dict[str, Any], *, dry_run: bool = False) -> Version:
        metadata = self._check_identity(kind, namespace, obj)
        if kind.namespaced:
            self._check_namespace(namespace)
            metadata["namespace"] = namespace
        if not metadata.get("name") and isinstance(prefix := metadata.get("generateName"), str) and prefix:
            suffix = "".join(self._rng.choices(_NAME_CHARACTERS, k=5))
            metadata["name"] = prefix[: validation.MAX_GENERATE_PREFIX] + suffix
        if metadata.get("resourceVersion"):
            raise StatusError(400, "resourceVersion should not be set on objects to be created")
        metadata["uid"] = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        metadata["creationTimestamp"] = self.now()
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"):
            metadata.pop(field, None)
        if kind is PODS:
            validation.check_pod_shape(obj)
            pods.apply_defaults(obj)
        elif kind is NAMESPACES:
            obj["spec"] = {"finalizers": ["kubernetes"]}
            obj["status"] = {"phase": "Active"}
        else:
            if "spec" in obj:
                metadata["generation"] = 1
            if kind.has_status and kind is not NODES:
                obj["status"] = {}
        problems = validation.object_problems(kind, obj)
        if problems:
            raise invalid(kind.name, str(metadata.get("name") or ""), problems)
        if self.store.get(kind, namespace, metadata["name"]) is not None:
            raise already_exists(kind.plural, metadata["name"], kind.group)
        for admit in self.on_create:
            admit(kind, obj)
        if dry_run:
            return Version("", self.store.rv, obj)
        return self.store.put(kind, obj)

    def _check_identity(self, kind: Kind, namespace: str, obj: dict[str, Any]) -> dict[str, Any]:
        """kind, apiVersion and namespace of a body must be those of its path; absent ones are filled in."""
        sent = (obj.setdefault("apiVersion", kind.api_version), obj.setdefault("kind", kind.name))
        if sent != (kind.api_version, kind.name):
            raise bad_request(f"the object provided is unrecognized (must be of type {kind.name}): got {sent}")
        metadata = obj.setdefault("metadata", {})
        if not isinstance(metadata, dict):
            raise bad_request("metadata must be an object")
        for field in ("labels", "annotations"):
            if not isinstance(metadata.get(field) or {}, dict):
                raise bad_request(f"metadata.{field} must be an object")
        if metadata.get("namespace", namespace) not in (namespace, "", None):
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        return metadata

    def _check_namespace(self, namespace: str) -> None:
        version = self.store.get(NAMESPACES, "", namespace)
        if version is None:
            raise not_found("namespaces", namespace)
        if version.obj["status"].get("phase") == "Terminating":
            raise StatusError(
                403, f"unable to create new content in namespace {namespace} because it is being terminated"
            )

    # -- update ----------------------------------------------------------------------------------------------------

    def update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        obj: dict[str, Any],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Version:
        """Replace; a resourceVersion or uid in the body is a precondition."""
        old = self.require(kind, namespace, name)
        sent = self._check_identity(kind, namespace, obj)
        self._check_versions(kind, old, name, sent)
        metadata = {key: value for key, value in sent.items() if key not in _SERVER_FIELDS}
        for field in _SERVER_FIELDS:
            if field in old.obj["metadata"]:
                metadata[field] = old.obj["metadata"][field]
        metadata.pop("managedFields", None)
        if subresource == "status":
            new = {**old.obj, "metadata": metadata, "status": obj.get("status") or {}}
        else:
            new = {**obj, "metadata": metadata}
            if kind.has_status:
                new.pop("status", None)
                if "status" in old.obj:
                    new["status"] = old.obj["status"]
        self._validate_update(kind, old, new)
        metadata["resourceVersion"] = old.obj["metadata"]["resourceVersion"]
        if new == old.obj or dry_run:
            return Version(old.key, old.rv, new) if dry_run else old  # nothing changed: no event, same version
        if "generation" in metadata and new.get("spec") != old.obj.get("spec"):
            metadata["generation"] += 1
        return self._put_or_finish(kind, new)

    @staticmethod
    def _check_versions(kind: Kind, old: Version, name: str, sent: dict[str, Any]) -> None:
        if sent.get("name", name) != name:
            raise bad_request(f"the name of the object ({sent['name']}) does not match the name on the URL ({name})")
        current = old.obj["metadata"]
        if sent.get("resourceVersion", "") not in ("", current["resourceVersion"]):
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(kind.plural, name, why)
        if sent.get("uid", "") not in ("", current["uid"]):
            why = f"Precondition failed: UID in precondition: {sent['uid']}, UID in object meta: {current['uid']}"
            raise conflict(kind.plural, name, why)

    @staticmethod
    def _validate_update(kind: Kind, old: Version, new: dict[str, Any]) -> None:
        problems = validation.metadata_problems(kind, new["metadata"])
        if kind is PODS and new.get("spec") is not old.obj["spec"]:
            problems += validation.pod_update_problems(old.obj, new)
        elif kind is not PODS:
            problems = validation.object_problems(kind, new)
        if problems:
            raise invalid(kind.name, new["metadata"]["name"], problems)

    def _put_or_finish(self, kind: Kind, new: dict[str, Any]) -> Version:
        """Store; an object that is being deleted ends when its last finalizer is gone and no grace is left."""
        version = self.store.put(kind, new)
        metadata = version.obj["metadata"]
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            waits = kind is NAMESPACES or (kind is PODS and metadata.get("deletionGracePeriodSeconds", 0) > 0)
            if not waits:
                return self.remove(kind, version.key, actor="garbage-collector")
        return version

    def put_status(self, kind: Kind, old: Version, status: dict[str, Any]) -> Version:
        """A status written by a kubelet or controller, which is trusted."""
        return self.store.put(kind, {**old.obj, "metadata": dict(old.obj["metadata"]), "status": status})

    # -- delete ----------------------------------------------------------------------------------------------------

    def delete(
        self, kind: Kind, namespace: str, name: str, options: DeleteOptions, *, actor: str, dry_run: bool = False
    ) -> Version:
        """Ask for deletion. The object goes at once, after its grace (pods), or when its finalizers are gone."""
        old = self.require(kind, namespace, name)
        metadata = old.obj["metadata"]
        self._check_preconditions(kind, name, metadata, options.preconditions)
        if dry_run or options.dryRun:
            return old
        grace_s = self._grace_s(old.obj, options) if kind is PODS else 0
        if grace_s == 0 and kind is not NAMESPACES and not metadata.get("finalizers"):
            return self.remove(kind, old.key, actor=actor)
        already_s = metadata.get("deletionGracePeriodSeconds", 0) if "deletionTimestamp" in metadata else None
        if already_s is not None and grace_s >= already_s:
            return old  # a repeated deletion can only shorten the grace
        begun_ms = self.timers.now_ms()
        if already_s is not None:
            begun_ms = parse_timestamp_ms(metadata["deletionTimestamp"]) - already_s * 1000
        ends = timestamp(max(begun_ms + grace_s * 1000, self.timers.now_ms()))
        marked = {**metadata, "deletionTimestamp": ends, "deletionGracePeriodSeconds": grace_s}
        new = {**old.obj, "metadata": marked}
        if kind is NAMESPACES:
            new["status"] = {"phase": "Terminating"}
        return self.store.put(kind, new)

    @staticmethod
    def _grace_s(pod: dict[str, Any], options: DeleteOptions) -> int:
        if not pod["spec"].get("nodeName") or pods.is_terminal(pod):
            return 0
        if options.gracePeriodSeconds is not None and options.gracePeriodSeconds >= 0:
            return options.gracePeriodSeconds
        return int(pod["spec"]["terminationGracePeriodSeconds"])

    @staticmethod
    def _check_preconditions(
        kind: Kind, name: str, metadata: dict[str, Any], preconditions: Preconditions | None
    ) -> None:
        if preconditions is None:
            return
        if preconditions.uid is not None and preconditions.uid != metadata["uid"]:
            why = (
                f"Precondition failed: UID in precondition: {preconditions.uid}, UID in object meta: {metadata['uid']}"
            )
            raise conflict(kind.plural, name, why)
        wanted = preconditions.resourceVersion
        if wanted is not None and wanted != metadata["resourceVersion"]:
            current = metadata["resourceVersion"]
            why = (
                f"Precondition failed: ResourceVersion in precondition: {wanted}, "
                f"ResourceVersion in object meta: {current}"
            )
            raise conflict(kind.plural, name, why)

    def remove(self, kind: Kind, key: str, *, actor: str) -> Version:
        """The object ceases to exist; the audit log tells when and through whom."""
        version = self.store.remove(kind, key)
        self.audit.add(self.timers.now_ms(), REMOVE, kind.plural, version.obj, user_agent=actor)
        return version
