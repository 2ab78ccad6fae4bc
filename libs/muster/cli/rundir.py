"""Where the last `muster up` of this user left its addresses, so that other commands need no configuration.

`muster up` writes them to its run directory (for people and scripts: `up.json`, `env`) and to one small state file in
the user's runtime directory; the other commands read that one. An address given by option or environment always wins,
and a state file whose process is gone counts for nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

DEFAULT_ADDRESS: Final = "127.0.0.1:7070"
DEFAULT_NATS_URL: Final = "nats://127.0.0.1:4222"


def state_path() -> Path:
    """The state file of this user; its directory may not exist yet."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and Path(base).is_dir():
        return Path(base) / "muster" / "up.json"
    return Path(tempfile.gettempdir()) / f"muster-{os.getuid()}" / "up.json"


def write(run_dir: Path, facts: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Publish a running `muster up`: `facts` as JSON, `env` as lines for `source`."""
    text = json.dumps({"pid": os.getpid(), "run_dir": str(run_dir), **facts}, indent=2) + "\n"
    (run_dir / "up.json").write_text(text)
    (run_dir / "env").write_text("".join(f"export {name}='{value}'\n" for name, value in env.items()))
    path = state_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.stat().st_uid != os.getuid():  # someone else's directory in a shared /tmp
        return
    partial = path.with_suffix(".part")
    partial.write_text(text)
    partial.replace(path)


def clear() -> None:
    """Forget this process's state, unless a later `muster up` has replaced it."""
    if _read().get("pid") == os.getpid():
        state_path().unlink(missing_ok=True)


def last_up() -> dict[str, Any]:
    """The facts of the running `muster up`, or nothing."""
    facts = _read()
    return facts if _alive(facts.get("pid")) else {}


def address_of(option: str) -> str:
    """The admission address to use: the option, else the last `muster up`, else the default."""
    return option or str(last_up().get("grpc") or DEFAULT_ADDRESS)


def nats_url_of(option: str) -> str:
    """The NATS url to use: the option, else the last `muster up`, else the default."""
    return option or str(last_up().get("nats_url") or DEFAULT_NATS_URL)


def _read() -> dict[str, Any]:
    path = state_path()
    try:
        if path.stat().st_uid != os.getuid():
            return {}
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _alive(pid: Any) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
