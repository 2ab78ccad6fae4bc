"""The repository as data, for the tests of its shape: files, syntax trees, settings and metric names."""

import ast
import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("libs/muster/api/v1/",)
SERVICES = ("admission", "queue-manager", "fair-share", "preemptor", "topology-updater", "binder")
METRIC_TYPES = {
    "Counter": ("_total", "_created"),
    "Gauge": ("",),
    "GaugeMetricFamily": ("",),
    "Histogram": ("_bucket", "_sum", "_count", "_created"),
}


@functools.cache
def files(*suffixes):
    """All files that are or would be committed, generated code left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = (ROOT / line for line in listed.stdout.splitlines() if not line.startswith(GENERATED))
    return sorted(path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes))


def name(path):
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree(path):
    return ast.parse(path.read_text(), filename=str(path))


def production():
    return [path for path in files(".py") if name(path).startswith(("libs/", "services/"))]


def package(service):
    return "muster_" + service.replace("-", "_")


@functools.cache
def metrics():
    """Every metric the code declares, as the names Prometheus stores: {series name: declared name}."""
    series = {}
    for path in production():
        for call in (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)):
            kind = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            if kind in METRIC_TYPES and call.args and isinstance(call.args[0], ast.Constant):
                declared = str(call.args[0].value)
                base = declared.removesuffix("_total") if kind == "Counter" else declared
                series |= {base + suffix: declared for suffix in METRIC_TYPES[kind]}
    return series
