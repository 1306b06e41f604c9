"""The AsyncAPI 3 document of the bus: topics, keys, headers and bodies, in both modes of CloudEvents, made from the types.

`python -m muster.events.schema` rewrites `events/asyncapi.json` too; a test holds it equal to the types, to the schemas beside
it and to AsyncAPI's own.
"""

from typing import Any, Final

import msgspec

from muster.events.catalogue import CatalogueSet, DeviceModel
from muster.events.cloudevents import (
    CLOUDEVENT,
    GPU_HEALTH,
    ID_MAX,
    JOBS,
    JSON,
    KINDS,
    NODES,
    OPERATIONS,
    TELEMETRY,
    Input,
    key_of,
    to_message,
    to_structured,
    type_of,
)
from muster.events.codec import encode
from muster.events.jobs import (
    GroupRequest,
    JobCancelRequested,
    JobCheckpointed,
    JobReprioritised,
    JobRequest,
    JobResizeRequested,
    JobRevised,
    JobRun,
    JobSubmitted,
)
from muster.events.levels import DeviceReport, NodeReport
from muster.events.nodes import Device, DeviceHealthChanged, NodeRemoved, NodeSpec
from muster.events.operations import (
    LeaseExtended,
    LicencesSet,
    NodeCordoned,
    NodeDrained,
    NodeFenced,
    NodeUncordoned,
    Policy,
    PolicySet,
)
from muster.events.queues import Amounts, QueueRemoved, QueueSet
from muster.events.reservations import ReservationRemoved, ReservationSet, Window
from muster.events.services import JobMetricReported, JobScaleRequested, Service
from muster.events.telemetry import GpuSample, GpusSampled, XidCount

LOG: Final = "muster.log"

TOPICS: Final = {
    JOBS: ("jobs", "What is asked of jobs.", "The job's id, so that a cancellation does not overtake its job."),
    NODES: ("nodes", "What agents report of their nodes.", "The node's name."),
    GPU_HEALTH: ("gpuHealth", "What is noticed of devices beside their node's agent.", "The node's name."),
    OPERATIONS: (
        "operations",
        "What people and tools say of the cluster.",
        "The node's name; `policy` for the policy, `queues` for queues, `lease` for leases.",
    ),
    TELEMETRY: (
        "telemetry",
        "What a node's GPUs measured; no scheduler reads it, `muster telemetry worker` does.",
        "The node's name.",
    ),
}
"""The id of each topic's channel, what it is, and what its messages' keys are."""

_JOB: Final = "0199c0de-7c3d-7e4f-8a9b-0123456789ab"
_AT_US: Final = 1_760_000_000_000_000

EXAMPLES: Final[tuple[Input, ...]] = (
    JobSubmitted(
        job=_JOB,
        name="train",
        user="ada",
        submitted_us=_AT_US,
        request=JobRequest(groups=(GroupRequest(count=2, min=2, gpus=1, cpu_milli=4000),)),
        run=JobRun(command=("python", "train.py")),
    ),
    JobCancelRequested(job=_JOB, by="ada"),
    JobReprioritised(job=_JOB, priority=10, by="ada"),
    JobRevised(
        job=_JOB,
        request=JobRequest(groups=(GroupRequest(gpus=1, cpu_milli=4000),), service=Service(replicas=3, settle_us=10_000_000)),
        run=JobRun(command=("python", "serve.py")),
        by="ada",
    ),
    JobScaleRequested(job=_JOB, replicas=5, by="ada"),
    JobMetricReported(job=_JOB, value_milli=42_000, metric="requests"),
    JobResizeRequested(job=_JOB, count=6, by="ada"),
    JobCheckpointed(job=_JOB, by="ada"),
    NodeReport(
        node="gpu-17",
        uid="4c4c4544-0042",
        boot="b-1",
        sequence=1,
        spec=NodeSpec(cpu_milli=64_000, memory_mib=512_000, devices=(Device(uuid="GPU-1", model="H100", memory_mib=81_559),)),
        devices=(DeviceReport(uuid="GPU-1", health="healthy"),),
    ),
    DeviceHealthChanged(node="gpu-17", uid="4c4c4544-0042", device="GPU-1", health="failed", reason="XID 79"),
    NodeCordoned(node="gpu-17", by="ada"),
    NodeUncordoned(node="gpu-17", by="ada"),
    NodeDrained(node="gpu-17", by="ada"),
    NodeFenced(node="gpu-17", by="power controller"),
    NodeRemoved(node="gpu-17", uid="4c4c4544-0042"),
    LeaseExtended(until_us=_AT_US, by="ada"),
    PolicySet(policy=Policy(), by="ada"),
    QueueSet(queue="red", parent="team", guarantee=Amounts(gpu_milli=4000), limit=Amounts(gpu_milli=8000), by="ada"),
    QueueRemoved(queue="red", by="ada"),
    ReservationSet(
        reservation="night",
        nodes=("gpu-17",),
        windows=(Window(from_us=_AT_US, until_us=_AT_US + 3_600_000_000),),
        every="daily@02:00",
        zone="Europe/Berlin",
        tzdata="2025b",
        by="ada",
    ),
    ReservationRemoved(reservation="night", by="ada"),
    LicencesSet(licences={"solver": 12}, by="ada"),
    CatalogueSet(models=(DeviceModel(model="H100", capability=90, memory_mib=81_920, bandwidth_gbs=3350),), by="ada"),
    GpusSampled(
        node="gpu-17",
        uid="4c4c4544-0042",
        boot="b-1",
        samples=(
            GpuSample(
                device="GPU-1",
                at_us=_AT_US,
                temperature_millicelsius=61_000,
                power_mw=409_692,
                throttle=("sw_power_cap",),
                ecc_volatile_double=0,
                remap_failed=False,
                pcie_replays=3,
                xids=(XidCount(code=13, count=2),),
            ),
        ),
    ),
)
"""One of each kind."""


def document() -> dict[str, Any]:
    """The whole document."""
    kinds = [kind for topic in KINDS.values() for kind in topic]
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    messages: dict[str, Any] = {}
    for event in EXAMPLES:
        topic = topic_of(type(event))
        messages[type(event).__name__] = _binary(topic, event)
        messages[f"{type(event).__name__}Structured"] = _structured(topic, event)
    messages["Record"] = {
        "name": "Record",
        "title": "One cycle",
        "summary": "What the scheduler knew and decided in one pass; see `admit` for which records count.",
        "contentType": JSON,
        "payload": {"schemaFormat": "application/schema+json;version=draft-2020-12", "schema": {"$ref": "schema/Record.json"}},
    }
    channels = {TOPICS[topic][0]: _channel(topic) for topic in KINDS}
    channels["log"] = {
        "address": LOG,
        "title": "The log",
        "description": "One record a cycle, one partition a cell. Whoever acts on a cycle has read it from here.",
        "messages": {"Record": {"$ref": "#/components/messages/Record"}},
        "bindings": {"kafka": {"topic": LOG, "bindingVersion": "0.5.0"}},
    }
    return {
        "asyncapi": "3.0.0",
        "id": "urn:muster:bus",
        "info": {
            "title": "Muster's bus",
            "version": "1.0.0",
            "description": (
                "What comes in, as CloudEvents 1.0 on Kafka in binary or structured mode, and the log. What is malformed is "
                "recorded as refused, with its topic, offset and reason. Id, source and time of an event steer nothing."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": JSON,
        "servers": {
            "bus": {"host": "localhost:9092", "protocol": "kafka"},
            "secureBus": {
                "host": "localhost:9093",
                "protocol": "kafka-secure",
                "security": [{"$ref": f"#/components/securitySchemes/{name}"} for name in ("scram", "plain", "certificate")],
            },
        },
        "channels": channels,
        "operations": {f"take_{name}": _operation("receive", name) for name in channels if name not in ("log", "telemetry")}
        | {"record": _operation("send", "log")},
        "components": {
            "messages": messages,
            "schemas": schemas,
            "securitySchemes": {
                "scram": {"type": "scramSha512"},
                "plain": {"type": "plain"},
                "certificate": {"type": "X509"},
            },
        },
    }


def topic_of(kind: type[Input]) -> str:
    """The topic that brings this kind."""
    return next(topic for topic, kinds in KINDS.items() if kind in kinds)


def _channel(topic: str) -> dict[str, Any]:
    _, what, key = TOPICS[topic]
    names = [name for kind in KINDS[topic] for name in (kind.__name__, f"{kind.__name__}Structured")]
    return {
        "address": topic,
        "title": topic,
        "description": f"{what} Key: {key}",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        "bindings": {"kafka": {"topic": topic, "bindingVersion": "0.5.0"}},
    }


def _operation(action: str, channel: str) -> dict[str, Any]:
    """From where the scheduler stands: it receives inputs and sends records."""
    return {"action": action, "channel": {"$ref": f"#/channels/{channel}"}}


def _binary(topic: str, event: Input) -> dict[str, Any]:
    kind = type(event)
    headers, _ = to_message(topic, event, "urn:example:producer", "e-1", _AT_US)
    return {
        **_message(topic, event, f"{kind.__name__}, binary"),
        "contentType": JSON,
        "headers": {
            "type": "object",
            "properties": {
                "ce_specversion": {"type": "string", "const": "1.0"},
                "ce_id": _id(),
                "ce_type": {"type": "string", "const": type_of(event)},
                "ce_source": _source(),
                "ce_time": _when(),
                "content-type": {"type": "string", "const": JSON},
            },
            "required": ["ce_specversion", "ce_id", "ce_type", "ce_source", "content-type"],
        },
        "payload": {"$ref": f"#/components/schemas/{kind.__name__}"},
        "examples": [
            {"name": kind.__name__, "headers": _text(headers), "payload": msgspec.json.decode(encode(event))},
        ],
    }


def _structured(topic: str, event: Input) -> dict[str, Any]:
    kind = type(event)
    headers, value = to_structured(topic, event, "urn:example:producer", "e-1", _AT_US)
    return {
        **_message(topic, event, f"{kind.__name__}, structured"),
        "contentType": CLOUDEVENT,
        "headers": {
            "type": "object",
            "properties": {"content-type": {"type": "string", "const": CLOUDEVENT}},
            "required": ["content-type"],
        },
        "payload": {
            "type": "object",
            "properties": {
                "specversion": {"type": "string", "const": "1.0"},
                "id": _id(),
                "type": {"type": "string", "const": type_of(event)},
                "source": _source(),
                "time": _when(),
                "datacontenttype": {"type": "string", "const": JSON},
                "data": {"$ref": f"#/components/schemas/{kind.__name__}"},
            },
            "required": ["specversion", "id", "type", "source", "data"],
        },
        "examples": [{"name": kind.__name__, "headers": _text(headers), "payload": msgspec.json.decode(value)}],
    }


def _message(topic: str, event: Input, title: str) -> dict[str, Any]:
    summary = (type(event).__doc__ or "").strip().partition("\n")[0]
    key = {"type": "string", "description": TOPICS[topic][2], "examples": [key_of(event)]}
    return {
        "name": type_of(event),
        "title": title,
        "summary": summary,
        "bindings": {"kafka": {"key": key, "bindingVersion": "0.5.0"}},
    }


def _id() -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": ID_MAX, "description": "Recorded with a refusal; steers nothing."}


def _source() -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": 1024, "description": "Who says it; steers nothing."}


def _when() -> dict[str, Any]:
    return {"type": "string", "format": "date-time", "description": "The producer's clock; steers nothing."}


def _text(headers: list[tuple[str, bytes]]) -> dict[str, str]:
    return {name: value.decode() for name, value in headers}
