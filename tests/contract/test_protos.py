"""The public API: generated code is current, the style holds, and nothing breaks what was released."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTOS = ROOT / "protos"


def run_check(changed: str, replacement: str, file: str, tmp_path: Path) -> str:
    """What `--check` says when `file` is changed so, in a copy of the repository's protos."""
    for source in (PROTOS, *PROTOS.rglob("*")):
        target = tmp_path / "protos" / source.relative_to(PROTOS)
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif "__pycache__" not in source.parts:
            target.write_bytes(source.read_bytes())
    api = tmp_path / "libs" / "muster" / "api" / "v1"
    api.mkdir(parents=True)
    for generated in (ROOT / "libs/muster/api/v1").glob("*_pb2*"):
        (api / generated.name).write_bytes(generated.read_bytes())
    path = tmp_path / "protos" / "muster" / "api" / "v1" / file
    text = path.read_text()
    assert changed in text
    path.write_text(text.replace(changed, replacement))
    command = [sys.executable, str(tmp_path / "protos" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stdout + done.stderr


def test_generated_code_style_and_compatibility_hold() -> None:
    done = subprocess.run(
        [sys.executable, str(PROTOS / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("changed", "replacement", "file", "complaint"),
    [
        ("string account = 32;", "string account = 99;", "job.proto", 'Previously present field "32"'),
        ("string account = 32;", "string payer = 32;", "job.proto", "payer"),
        ("rpc GetJob(GetJobRequest)", "rpc getJob(GetJobRequest)", "query.proto", "getJob"),
        ("string account = 32;", "string account = 32;\n  string more = 99;", "job.proto", "libs/muster/api differs"),
    ],
    ids=["renumbered field", "renamed field", "style", "drift"],
)
def test_the_check_catches(changed: str, replacement: str, file: str, complaint: str, tmp_path: Path) -> None:
    assert complaint in run_check(changed, replacement, file, tmp_path)


def test_every_write_has_a_dry_run_and_a_request_id() -> None:
    writes = re.compile(
        r"^message ((?:Submit|Cancel|Update|Suspend|Resume|Requeue|Report|Create|Delete|Upsert|Cordon)"
        r"\w*Request) \{(.*?)^\}",
        re.M | re.S,
    )
    found: dict[str, str] = {}
    for path in sorted(PROTOS.glob("muster/api/v1/*.proto")):
        found |= dict(writes.findall(path.read_text()))
    assert len(found) >= 15
    for name, body in found.items():
        if name != "SubmitJobsStreamRequest":  # holds a SubmitJobsRequest
            assert "bool dry_run" in body, name
            assert "string request_id" in body, name


def test_the_api_loads_with_its_validation_rules() -> None:
    from google.protobuf import descriptor_pool

    from muster.api.v1 import job_pb2

    rules: Any = descriptor_pool.Default().FindExtensionByName("buf.validate.field")
    field = job_pb2.JobSpec.DESCRIPTOR.fields_by_name["name"]
    assert field.GetOptions().Extensions[rules].string.max_len == 63
