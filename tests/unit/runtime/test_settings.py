"""Settings are read from the environment, and every mistake is named with its variable."""

import dataclasses
from typing import Literal

import pytest

from muster.runtime import settings
from muster.runtime.exit_codes import ExitCode
from muster.runtime.settings import CommonSettings, ConfigError, load, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample(CommonSettings):
    clusters: tuple[str, ...] = setting("API servers, comma-separated", ())
    batch_items: int = setting("items in a batch", 100, minimum=1)
    strict: bool = setting("refuse instead of repair", False)
    color: Literal["red", "blue"] = setting("a colour", "red")
    token: str = setting("who we are")


def test_defaults_and_types():
    values = load(
        Sample,
        {
            "MUSTER_TOKEN": "t",
            "MUSTER_CLUSTERS": "a=http://x , b=/k",
            "MUSTER_BATCH_ITEMS": "1_000",
            "MUSTER_STRICT": "Yes",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317",
        },
    )
    assert values.clusters == ("a=http://x", "b=/k")
    assert values.batch_items == 1000
    assert values.strict is True
    assert values.color == "red"
    assert values.otlp_endpoint == "http://127.0.0.1:4317"
    assert values.cell == "main"
    with pytest.raises(dataclasses.FrozenInstanceError):
        values.cell = "other"  # type: ignore[misc]


def test_every_mistake_is_reported_at_once_with_its_variable():
    wrong = {
        "MUSTER_BATCH_ITEMS": "0",
        "MUSTER_STRICT": "perhaps",
        "MUSTER_COLOR": "green",
        "MUSTER_STOP_GRACE_MS": "5s",
    }
    with pytest.raises(ConfigError) as caught:
        load(Sample, wrong)
    assert caught.value.code is ExitCode.CONFIG
    assert sorted(caught.value.problems) == [
        "MUSTER_BATCH_ITEMS='0': must be at least 1",
        "MUSTER_COLOR='green': must be one of red, blue",
        "MUSTER_STOP_GRACE_MS='5s': must be a whole number",
        "MUSTER_STRICT='perhaps': must be true or false",
        "MUSTER_TOKEN must be set (who we are)",
    ]


def test_describe_lists_every_variable_with_default_and_help():
    text = settings.describe(Sample)
    rows = {line.split()[0]: line for line in text.splitlines()}
    assert len(rows) == len(dataclasses.fields(Sample))
    assert "(required)" in rows["MUSTER_TOKEN"]
    assert "100" in rows["MUSTER_BATCH_ITEMS"]
    assert "items in a batch" in rows["MUSTER_BATCH_ITEMS"]
    assert "false" in rows["MUSTER_STRICT"]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in rows


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:70", ("::1", 70)), ("host.x:7070", ("host.x", 7070))],
)
def test_addresses(address, expected):
    assert settings.split_address(address) == expected


@pytest.mark.parametrize("address", ["127.0.0.1", ":80", "host:", "host:http", "host:65536"])
def test_wrong_addresses_are_refused(address):
    with pytest.raises(ConfigError, match="is not host:port"):
        settings.split_address(address)
