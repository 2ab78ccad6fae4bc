"""The borders between packages: the import-linter contracts of pyproject.toml hold, and cover every package."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.architecture.repository import ROOT, SERVICES, files, name, package, tree

WIRE_TYPES_IN = (
    "libs/muster/api/",
    "libs/muster/wire/",
    "libs/muster/client/",
    "libs/muster/cli/",
    "services/",
    "tests/",
    "loadtest/",
    "protos/",
)


def test_import_contracts_hold():
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter, "--no-cache"], cwd=ROOT, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_contracts_cover_every_service():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert set(config["root_packages"]) == {"muster", *map(package, SERVICES)}


def test_the_api_s_messages_stop_at_the_wire():
    """Style rule 7: protobuf is imported only where bytes become the core's types, and by the API's users."""
    found = [
        name(path)
        for path in files(".py")
        if not name(path).startswith(WIRE_TYPES_IN)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("muster.api")
    ]
    assert not found


def test_services_have_the_same_three_modules():
    for service in SERVICES:
        folder = ROOT / "services" / service / package(service)
        missing = [module for module in ("__main__.py", "service.py", "settings.py") if not (folder / module).exists()]
        assert not missing, service
