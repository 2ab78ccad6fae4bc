"""`docs/asyncapi.yaml` describes the events that are really sent: types, fields, enums, headers, subjects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.descriptor import EnumDescriptor
from tests.contract.golden_samples import ID, TRANSITIONS

from muster.api.v1 import events_pb2, job_pb2, queue_pb2
from muster.core import transitions as tr
from muster.core.model import InboxPosition
from muster.wire import events

DOCUMENT: Mapping[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "docs/asyncapi.yaml").read_text())
SCHEMAS = DOCUMENT["components"]["schemas"]
WATCH_ONLY = {"JobEvent": {"command", "code"}}  # fields that only WatchJobs sends
MESSAGES = {
    "job": events_pb2.JobEvent,
    "queue": events_pb2.QueueEvent,
    "priority-class": events_pb2.PriorityClassEvent,
    "command": events_pb2.CommandEvent,
    "cell": events_pb2.CellEvent,
}


class Names:
    def job(self, job: str) -> events.JobFacts | None:
        return events.JobFacts("bert", "team-a", "research", "ann", "00-1-2-01", (("a", "b"),)) if job == ID else None

    def queue(self, queue: str) -> str | None:
        return "research/vision"


def sent() -> list[tuple[str, dict[str, str], dict[str, Any]]]:
    """(subject, headers, data) of the events of one transition of each kind."""
    header = tr.Header(1, "1-1", 11, 1, 1_800_000_000_250, InboxPosition(1, 0), InboxPosition(1, 0), 0, 0)
    made = events.public_events(tr.Transaction(header, TRANSITIONS), 12, Names(), "main")
    encoded = [events.cloud_event(event, "main") for event in made]
    return [(subject, headers, json.loads(data)) for subject, headers, data in encoded]


def schema_of(kind: str) -> tuple[str, Mapping[str, Any]]:
    name = MESSAGES[kind.partition(".")[0]].DESCRIPTOR.name
    return name, SCHEMAS[name]


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return SCHEMAS[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def check(value: Any, schema: Mapping[str, Any], where: str) -> None:
    """The part of JSON Schema that the document uses."""
    schema = resolved(schema)
    kinds = {"string": str, "integer": int, "object": dict}
    assert isinstance(value, kinds[schema["type"]]), where
    assert value in schema.get("enum", [value]), where
    assert value == schema.get("const", value), where
    if "pattern" in schema:
        assert re.search(schema["pattern"], value), where
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= set(value), where
        for key, inner in value.items():
            check(inner, schema.get("properties", {}).get(key) or schema["additionalProperties"], f"{where}.{key}")


def test_every_event_that_is_sent_is_as_described() -> None:
    found = sent()
    assert len(found) >= 15
    parameters = DOCUMENT["channels"]["events"]["parameters"]
    address = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^.]+)", re.escape(DOCUMENT["channels"]["events"]["address"]))
    for subject, headers, data in found:
        match = re.fullmatch(address, subject)
        assert match, subject
        assert match["family"] in parameters["family"]["enum"]
        assert f"{match['family']}.{match['event']}" == data["type"] == headers["ce-type"]
        check(data, schema_of(data["type"])[1], data["type"])
        check(headers, DOCUMENT["components"]["messageTraits"]["cloudEvent"]["headers"], "headers")


def test_no_type_is_described_that_is_never_sent() -> None:
    described = {kind for family in MESSAGES for kind in schema_of(family)[1]["properties"]["type"]["enum"]}
    assert described == {data["type"] for _, _, data in sent()}


@pytest.mark.parametrize("family", MESSAGES)
def test_fields_are_those_of_the_proto(family: str) -> None:
    name, schema = schema_of(family)
    fields = {field.json_name for field in MESSAGES[family].DESCRIPTOR.fields}
    assert set(schema["properties"]) == fields - WATCH_ONLY.get(name, set())


@pytest.mark.parametrize(
    ("values", "enum"),
    [
        (SCHEMAS["JobState"]["enum"], job_pb2.JobState.DESCRIPTOR),
        (SCHEMAS["Reason"]["enum"], job_pb2.Reason.DESCRIPTOR),
        (SCHEMAS["QueueEvent"]["properties"]["state"]["enum"], queue_pb2.QueueState.DESCRIPTOR),
    ],
    ids=["JobState", "Reason", "QueueState"],
)
def test_enums_are_those_of_the_proto(values: list[str], enum: EnumDescriptor) -> None:
    assert values == [value.name for value in enum.values if value.number]


def test_references_lead_somewhere() -> None:
    targets = re.findall(r"\$ref: '#/([^']+)'", (Path(__file__).parents[2] / "docs/asyncapi.yaml").read_text())
    assert targets
    for target in targets:
        node: Any = DOCUMENT
        for step in target.split("/"):
            node = node[step]
