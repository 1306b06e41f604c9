"""Inputs as CloudEvents 1.0 on Kafka: from a message's headers and value to what the recorder takes, and back.

Two modes are taken. Binary: the attributes stand in headers (`ce_id`, `ce_type` …), the value is the event's JSON body.
Structured: the value is one JSON object that holds the attributes and the body as `data`. A type is `muster.KIND.vVERSION`.
What becomes of both is the same: `[kind,version,body]`, the body's bytes unchanged, or of `muster.nodes` and
`muster.telemetry`, which bring no entries, the body itself.

Whatever the message is, there is an answer, and it depends on nothing but the message. What is no CloudEvent of ours becomes
a *refusal*: bytes that no input has, which the recorder records as refused with the sentence in them. Id, source and time
of an event are its producer's word: they are looked at here, recorded with a refusal, and steer nothing.

Bodies are not looked into here: the edge does that (`muster.events.edge`). This module knows no Kafka.
"""

import functools
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from muster.events.base import BODY_MAX_BYTES, Event
from muster.events.catalogue import CatalogueSet
from muster.events.codec import digest
from muster.events.edge import REPORT_MAX_BYTES, Malformed, unique
from muster.events.entries import BAD_BYTES, encode
from muster.events.jobs import JobCancelRequested, JobCheckpointed, JobReprioritised, JobResizeRequested, JobRevised, JobSubmitted
from muster.events.levels import NodeReport
from muster.events.nodes import DeviceHealthChanged, NodeRemoved
from muster.events.operations import (
    LeaseExtended,
    LicencesSet,
    NodeCordoned,
    NodeDrained,
    NodeFenced,
    NodeUncordoned,
    PolicySet,
)
from muster.events.queues import QueueRemoved, QueueSet
from muster.events.registry import VERSIONS
from muster.events.reservations import ReservationRemoved, ReservationSet
from muster.events.services import JobMetricReported, JobScaleRequested
from muster.events.telemetry import SAMPLED_MAX_BYTES, GpusSampled

JOBS: Final = "muster.jobs"
NODES: Final = "muster.nodes"
GPU_HEALTH: Final = "muster.gpu-health"
OPERATIONS: Final = "muster.operations"
TELEMETRY: Final = "muster.telemetry"
"""Read by `muster.telemetry` and by no scheduler."""

Input = Event | NodeReport | GpusSampled
Headers = Sequence[tuple[str, bytes]]

KINDS: Final[dict[str, tuple[type[Input], ...]]] = {
    JOBS: (
        JobSubmitted,
        JobCancelRequested,
        JobReprioritised,
        JobRevised,
        JobScaleRequested,
        JobMetricReported,
        JobResizeRequested,
        JobCheckpointed,
    ),
    NODES: (NodeReport,),
    GPU_HEALTH: (DeviceHealthChanged,),
    OPERATIONS: (
        NodeCordoned,
        NodeUncordoned,
        NodeDrained,
        NodeFenced,
        NodeRemoved,
        LeaseExtended,
        PolicySet,
        QueueSet,
        QueueRemoved,
        ReservationSet,
        ReservationRemoved,
        LicencesSet,
        CatalogueSet,
    ),
    TELEMETRY: (GpusSampled,),
}
"""What each topic brings."""

LEVELS: Final = {NODES: REPORT_MAX_BYTES, TELEMETRY: SAMPLED_MAX_BYTES}
"""The topics whose messages are levels and no entries, and how large a body may be there."""

JSON: Final = "application/json"
CLOUDEVENT: Final = "application/cloudevents+json"
ID_MAX: Final = 128
_REQUIRED: Final = {"specversion": 16, "id": ID_MAX, "type": 128, "source": 1024}
"""The attributes that every event has, and how many characters they have at most."""
HEADERS_MAX: Final = 64
ENVELOPE_MAX_BYTES: Final = 16 * 1024
"""So much more a structured message may hold than its body."""

_NAMES: Final = {topic: {kind.__name__: None for kind in kinds} for topic, kinds in KINDS.items()}
_REFUSAL: Final = b'["Refused",1,'
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)
_TYPE: Final = re.compile(r"muster\.([A-Za-z]{1,64})\.v([1-9]\d{0,5})", re.ASCII)
_JSON_TYPE: Final = re.compile(r"\s*application/json\s*(;\s*charset\s*=\s*\"?utf-8\"?\s*)?", re.ASCII | re.IGNORECASE)
_STRUCTURED: Final = re.compile(
    r"\s*application/cloudevents\+json\s*(;\s*charset\s*=\s*\"?utf-8\"?\s*)?", re.ASCII | re.IGNORECASE
)


class Opened(msgspec.Struct, frozen=True):
    """A message as the recorder takes it."""

    data: bytes
    """An entry, a report, or a refusal."""
    id: str
    """The event's own id, as far as it could be read."""


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a message is no CloudEvent of ours."""

    reason: str
    digest: str
    """BLAKE2b of the message's value."""


def to_data(topic: str, headers: Headers, value: bytes | None) -> bytes:
    """What the recorder takes as the data of a message of this topic; never raises. See `open_message`."""
    return open_message(topic, headers, value).data


def open_message(topic: str, headers: Headers, value: bytes | None) -> Opened:
    """A message of an input topic as the recorder takes it, and the event's id; never raises.

    What is no CloudEvent that the topic brings becomes a refusal, which `refusal` tells from everything else.
    """
    attributes = _Attributes()
    try:
        return Opened(_open(topic, headers, value, attributes), attributes.id)
    except Malformed as error:
        reason = Refusal(str(error), digest(value or b""))
        return Opened(_REFUSAL + encode(reason) + b"]", attributes.id)


def refusal(data: bytes) -> Refusal | None:
    """What `to_data` refused, if these bytes are that."""
    if not data.startswith(_REFUSAL):
        return None
    try:
        return msgspec.json.decode(data[len(_REFUSAL) : -1], type=Refusal)
    except BAD_BYTES:
        return None


def type_of(event: Input) -> str:
    """The CloudEvents type: `muster.JobSubmitted.v1`."""
    kind = type(event).__name__
    return f"muster.{kind}.v{VERSIONS.get(kind, 1)}"


def key_of(event: Input) -> str:
    """The key of the event's record: what it is about, so that nothing overtakes anything else about the same."""
    for field in ("job", "node"):
        about = getattr(event, field, None)
        if isinstance(about, str):
            return about
    if isinstance(event, QueueSet | QueueRemoved):
        return "queues"
    if isinstance(event, ReservationSet | ReservationRemoved):
        return "reservations"
    return {"PolicySet": "policy", "LicencesSet": "licences", "CatalogueSet": "catalogue"}.get(type(event).__name__, "lease")


def to_message(topic: str, event: Input, source: str, id: str, time_us: int) -> tuple[list[tuple[str, bytes]], bytes]:
    """Headers and value of an input in binary mode; the record's key is `key_of(event)`.

    Raises:
        ValueError: the topic does not bring such an input.
    """
    _check(topic, event)
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", id.encode()),
        ("ce_type", type_of(event).encode()),
        ("ce_source", source.encode()),
        ("ce_time", _time(time_us).encode()),
        ("content-type", JSON.encode()),
    ]
    return headers, encode(event)


def to_structured(topic: str, event: Input, source: str, id: str, time_us: int) -> tuple[list[tuple[str, bytes]], bytes]:
    """Headers and value of an input in structured mode; see `to_message`.

    Raises:
        ValueError: the topic does not bring such an input.
    """
    _check(topic, event)
    whole = {
        "specversion": "1.0",
        "id": id,
        "type": type_of(event),
        "source": source,
        "time": _time(time_us),
        "datacontenttype": JSON,
        "data": msgspec.Raw(encode(event)),
    }
    return [("content-type", CLOUDEVENT.encode())], msgspec.json.encode(whole)


class _Attributes:
    """What is said about the event beside its body."""

    __slots__ = ("content_type", "prefix", "said")

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.prefix = "ce_"
        """How a sentence names an attribute: as its header, or as the field that it is in structured mode."""
        self.content_type = ""

    @property
    def id(self) -> str:
        """The event's id as it is recorded: bounded, on one line."""
        text = self.said.get("id", "")[:ID_MAX]
        return (
            text
            if text.isprintable()
            else "".join([each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text])
        )


class _Whole(msgspec.Struct, frozen=True):
    """A structured message. Further attributes are extensions, and nothing is made of them."""

    specversion: str = ""
    id: str = ""
    type: str = ""
    source: str = ""
    time: str | None = None
    datacontenttype: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"")


_decode_whole = msgspec.json.Decoder(_Whole).decode


def most_bytes(topic: str) -> int:
    """The longest value that an input on this topic may have."""
    return LEVELS.get(topic, BODY_MAX_BYTES) + ENVELOPE_MAX_BYTES


def _open(topic: str, headers: Headers, value: bytes | None, attributes: _Attributes) -> bytes:
    """The entry or the report.

    Raises:
        Malformed: what is wrong, naming the header or the field.
    """
    _read_headers(headers, attributes)
    if value is None:
        raise Malformed("the message has no value; an input has a JSON object")
    most = most_bytes(topic)
    if len(value) > most:
        raise Malformed(f"the message has {len(value)} bytes; at most {most} are taken")
    mode = _mode(attributes.content_type)
    if not mode:
        raise Malformed(f"content-type: must be {JSON} or {CLOUDEVENT}, not {attributes.content_type[:64]!r}")
    body = value if mode == JSON else _structured(value, attributes)
    kind, version = _kind(topic, attributes)
    body = body.strip()
    if not (body.startswith(b"{") and body.endswith(b"}")):
        raise Malformed(f"the body is no JSON object: a {kind} is one")
    return body if topic in LEVELS else b'["%b",%d,%b]' % (kind.encode(), version, body)


def _read_headers(headers: Headers, attributes: _Attributes) -> None:
    """Take the attributes that stand in headers, and the content type.

    Raises:
        Malformed: one stands twice, or is no text.
    """
    if len(headers) > HEADERS_MAX:
        raise Malformed(f"the message has {len(headers)} headers; at most {HEADERS_MAX} are taken")
    seen: dict[str, None] = {}
    for name, value in headers:
        if not name.startswith("ce_") and name != "content-type":
            continue
        if name in seen:
            raise Malformed(f"the header {name[:64]!r} stands twice")
        seen[name] = None
        try:
            text = (value or b"").decode()
        except UnicodeDecodeError:
            raise Malformed(f"the header {name[:64]!r} is no UTF-8") from None
        if name == "content-type":
            attributes.content_type = text
        else:
            attributes.said[name[3:]] = text


def _structured(value: bytes, attributes: _Attributes) -> bytes:
    """The body of a structured message, whose attributes take the place of those in headers.

    Raises:
        Malformed: it is no CloudEvent as JSON, or there is no JSON in it.
    """
    attributes.said = {}
    attributes.prefix = ""
    try:
        whole = _decode_whole(value)
    except BAD_BYTES as error:
        text = str(error)
        match = re.search(r"^(.*) - at `\$\.?(.*)`$", text, re.DOTALL)
        raise Malformed(f"{match[2]}: {match[1]}" if match and match[2] else f"not a CloudEvent: {text}") from None
    attributes.said = {"specversion": whole.specversion, "id": whole.id, "type": whole.type, "source": whole.source}
    if whole.time is not None:
        attributes.said["time"] = whole.time
    unique(value)
    if whole.datacontenttype is not None and _mode(whole.datacontenttype) != JSON:
        raise Malformed(f"datacontenttype: must be {JSON}, not {whole.datacontenttype[:64]!r}")
    body = bytes(whole.data)
    if not body:
        raise Malformed("data: it is missing; the event's body stands there as a JSON object")
    return body


def _kind(topic: str, attributes: _Attributes) -> tuple[str, int]:
    """Kind and version of the event.

    Raises:
        Malformed: an attribute is missing or wrong, or the topic does not bring such an event.
    """
    said, prefix = attributes.said, attributes.prefix
    for name, most in _REQUIRED.items():
        text = said.get(name, "")
        if not 0 < len(text) <= most:
            raise Malformed(f"{prefix}{name}: it has {len(text)} characters; it must be there, with at most {most}")
    if said["specversion"] != "1.0":
        raise Malformed(f"{prefix}specversion: must be '1.0', not {said['specversion']!r}")
    if "time" in said and not _TIME.fullmatch(said["time"]):
        right = "a time as in RFC 3339, such as 2026-11-30T08:15:00Z"
        raise Malformed(f"{prefix}time: must be {right}, not {said['time'][:64]!r}")
    try:
        return _kind_of(topic, said["type"])
    except Malformed as error:
        raise Malformed(f"{prefix}type: {error}") from None


@functools.lru_cache(maxsize=256)  # producers say the same again and again
def _kind_of(topic: str, said: str) -> tuple[str, int]:
    """Kind and version that a type names.

    Raises:
        Malformed: the topic does not bring it.
    """
    match = _TYPE.fullmatch(said)
    known = _NAMES.get(topic, {})
    if match is None or match[1] not in known:
        right = ", ".join(f"muster.{name}.v{VERSIONS.get(name, 1)}" for name in known)
        raise Malformed(f"{said[:64]!r} is no input of {topic[:64]}; it takes {right}")
    kind, version = match[1], int(match[2])
    if version > VERSIONS.get(kind, 1):
        raise Malformed(f"{kind} has versions 1 to {VERSIONS.get(kind, 1)}, not {version}")
    return kind, version


def _mode(content_type: str) -> str:
    """`JSON` or `CLOUDEVENT`, if the content type is one of these; else empty."""
    return _mode_of(content_type) if len(content_type) <= 128 else ""


@functools.lru_cache(maxsize=256)
def _mode_of(content_type: str) -> str:
    if _JSON_TYPE.fullmatch(content_type):
        return JSON
    return CLOUDEVENT if _STRUCTURED.fullmatch(content_type) else ""


def _check(topic: str, event: Input) -> None:
    if type(event) not in KINDS.get(topic, ()):
        raise ValueError(f"{type(event).__name__} is no input of the topic {topic!r}")


def _time(at_us: int) -> str:
    """An instant as in RFC 3339, to the microsecond."""
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
