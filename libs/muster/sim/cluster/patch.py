"""The three patch formats a client may send: merge (RFC 7386), JSON patch (RFC 6902), strategic merge.

All are pure: stored objects are shared between versions, lists and watches, so a patch builds new dicts and lists
along the path it changes and leaves the rest shared.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .status import StatusError, bad_request

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

# Lists that strategic merge joins by a key of their items; every other list is replaced as a whole.
_MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "resourceClaims": "name",
    "secrets": "name",
    "taints": "key",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
_UNION_LISTS = frozenset(("finalizers",))
_DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"


def apply(content_type: str, target: dict[str, Any], body: bytes) -> dict[str, Any]:
    """The patched object. 415 for an unknown format, 400 for a body that is no patch of that format."""
    if content_type not in (MERGE, JSON, STRATEGIC):
        raise StatusError(
            415, f"the body of the request was in an unknown format - accepted media types: {JSON}, {MERGE}"
        )
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise bad_request(f"error decoding patch: {error}") from error
    if content_type == JSON:
        if not isinstance(decoded, list):
            raise bad_request("a JSON patch is a list of operations")
        result = json_patch(target, decoded)
    else:
        if not isinstance(decoded, dict):
            raise bad_request("a merge patch is an object")
        result = merge(target, decoded) if content_type == MERGE else strategic(target, decoded)
    if not isinstance(result, dict) or not isinstance(result.get("metadata"), dict):
        raise bad_request("the patch does not leave an object with metadata")
    return result


def merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target: Any, patch: dict[str, Any]) -> dict[str, Any]:
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith(_DELETE_PRIMITIVES):
            name = key[len(_DELETE_PRIMITIVES) :]
            result[name] = [item for item in result.get(name) or () if item not in value]
        elif key.startswith("$"):
            continue  # $setElementOrder and $retainKeys only steer order and unions
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = strategic(result.get(key), value)
        elif isinstance(value, list):
            result[key] = _strategic_list(key, result.get(key) or [], value)
        else:
            result[key] = value
    return result


def _strategic_list(name: str, target: list[Any], patch: list[Any]) -> list[Any]:
    if name in _UNION_LISTS:
        return target + [item for item in patch if item not in target]
    merge_key = _MERGE_KEYS.get(name)
    if merge_key is None or not all(isinstance(item, dict) for item in patch):
        return patch
    if any(item.get("$patch") == "replace" and len(item) == 1 for item in patch):
        return [item for item in patch if item != {"$patch": "replace"}]
    merged = {item.get(merge_key): item for item in target}
    for item in patch:
        if merge_key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {merge_key}")
        key = item[merge_key]
        if item.get("$patch") == "delete":
            merged.pop(key, None)
        else:
            merged[key] = strategic(merged.get(key), item)
    return list(merged.values())


def json_patch(target: Any, operations: list[Any]) -> Any:
    result = target
    for operation in operations:
        try:
            result = _json_operation(result, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            message = f"the server rejected our request due to an error in our request: {error}"
            raise StatusError(422, message, details={}) from error
    return result


def _json_operation(document: Any, operation: dict[str, Any]) -> Any:
    op, path = operation["op"], _pointer(operation["path"])
    if op == "test":
        if _resolve(document, path) != operation["value"]:
            raise ValueError(f"testing path {operation['path']} failed")
        return document
    if op == "remove":
        return _edit(document, path, remove=True)
    if op in ("add", "replace"):
        return _edit(document, path, operation["value"], replace=op == "replace")
    if op in ("copy", "move"):
        source = _pointer(operation["from"])
        value = _resolve(document, source)
        return _edit(_edit(document, source, remove=True) if op == "move" else document, path, value)
    raise ValueError(f"unexpected operation {op!r}")


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r} is not a JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _resolve(document: Any, path: list[str]) -> Any:
    for part in path:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def _edit(document: Any, path: list[str], value: Any = None, *, remove: bool = False, replace: bool = False) -> Any:
    """A copy of `document` with the place at `path` set, inserted or removed."""
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(document, list):
        items = list(document)
        index = len(items) if head == "-" else int(head)
        if rest:
            items[index] = _edit(items[index], rest, value, remove=remove, replace=replace)
        elif remove:
            del items[index]
        elif replace:
            items[index] = value
        elif index > len(items):
            raise IndexError(f"index {index} is out of range")
        else:
            items.insert(index, value)
        return items
    mapping = dict(document)
    if rest:
        mapping[head] = _edit(mapping[head], rest, value, remove=remove, replace=replace)
    elif remove:
        del mapping[head]
    elif replace and head not in mapping:
        raise KeyError(head)
    else:
        mapping[head] = value
    return mapping
