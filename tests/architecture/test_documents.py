"""What the documents state is what the code does: links, targets, settings, metrics, lifecycle."""

import dataclasses
import importlib
import os
import re
import subprocess
import sys

import pytest
from tests.architecture.repository import ROOT, SERVICES, files, metrics, name, package

from muster.runtime.settings import CommonSettings, variable_of

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
MAKE = re.compile(r"\bmake ([a-z][a-z0-9-]*)")
VARIABLE = re.compile(r"\bMUSTER_[A-Z0-9_]+\b")
METRIC = re.compile(r"\bmuster_[a-z0-9_]+_(?:total|seconds|bytes|ratio|leading|ready|open|replicas)\b")
OTHER_VARIABLES = {"MUSTER_NATS_SERVER_BIN"}  # read by what starts a nats-server, not by a service


def settings_of(service):
    module = importlib.import_module(f"{package(service)}.settings")
    classes = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, CommonSettings)]
    return max(classes, key=lambda cls: len(cls.__mro__))


def variables_of(cls):
    return {variable_of(field) for field in dataclasses.fields(cls) if "help" in field.metadata}


@pytest.mark.parametrize("page", files(".md"), ids=name)
def test_links_lead_somewhere(page):
    broken = [
        target
        for target in LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


def test_make_targets_in_the_documents_exist():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
    named = {
        target for page in files(".md") for text in code.findall(page.read_text()) for target in MAKE.findall(text)
    }
    assert named - targets == set()


def test_make_alone_prints_every_target_s_help():
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    shown = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True, env=alone).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [line.split()[1] for line in shown.splitlines()] == phony[1].split()


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_s_readme_names_settings_and_metrics_that_exist(service):
    text = (ROOT / "services" / service / "README.md").read_text()
    named = set(VARIABLE.findall(text))
    assert "--help" in text, "the README says where all settings are listed"
    assert named - variables_of(settings_of(service)) - OTHER_VARIABLES == set(), "variables that are no setting"
    assert set(METRIC.findall(text)) - set(metrics()) - set(metrics().values()) == set(), "metrics the code lacks"
    for word in ("own", "read", "write", "fail"):
        assert re.search(rf"\b{word}", text, re.IGNORECASE), f"the README does not say what it {word}s"


def test_variables_in_other_documents_exist():
    known = OTHER_VARIABLES.union(*(variables_of(settings_of(service)) for service in SERVICES))
    pages = [page for page in files(".md") if not name(page).startswith("services/")]
    named = {variable for page in pages for variable in VARIABLE.findall(page.read_text())}
    assert named - known == set()


def test_the_lifecycle_page_shows_the_table():
    result = subprocess.run(
        [sys.executable, "docs/generate_lifecycle.py", "--check"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_every_decision_is_in_the_index():
    index = (ROOT / "docs/adr/README.md").read_text()
    pages = sorted((ROOT / "docs/adr").glob("0*.md"))
    assert pages
    for page in pages:
        title = page.read_text().splitlines()[0].removeprefix("# ")
        number, _, words = title.partition(" ")
        assert f"[{number}]({page.name}) | {words} |" in index
        assert len(page.read_text().splitlines()) <= 60, "one page each"


def test_the_exit_codes_are_documented():
    from muster.runtime.exit_codes import ExitCode

    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", (ROOT / "deploy/README.md").read_text(), re.MULTILINE)
    assert {(int(code), word) for code, word in rows} == {(code.value, code.name) for code in ExitCode}
