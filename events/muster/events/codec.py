"""From bytes to events and back: the one canonical encoder, and decoders that say what is wrong.

Two ways in. `decode_input` is for what comes from outside: it refuses unknown fields, duplicate keys, anything beyond a
bound, with one sentence that names the field. `decode_entry` is for what stands in the log already.
"""

import hashlib
import json
import re
from typing import Any, NoReturn

import msgspec

from muster.events.base import BODY_MAX_BYTES, ENVIRONMENT_MAX_BYTES, Event
from muster.events.jobs import JobSubmitted
from muster.events.operations import EntryQuarantined
from muster.events.record import Cycle, Envelope
from muster.events.registry import INPUTS, KINDS, VERSIONS
from muster.events.upcast import upcast

encode = msgspec.json.Encoder(order="deterministic").encode
"""The canonical encoding: fields in the order of the class, keys of mappings sorted, no white space."""


class Malformed(ValueError):
    """Bytes from outside that are no input. Its text is one sentence for a person."""


class UnknownKind(RuntimeError):
    """A record holds a kind or a version that this build does not know: the reader must be upgraded."""


class _Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    kind: str
    version: int
    body: msgspec.Raw


_entry = msgspec.json.Decoder(_Entry).decode
_envelope = msgspec.json.Decoder(Envelope).decode
_body = {kind: msgspec.json.Decoder(cls).decode for kind, cls in KINDS.items()}
_prefix = {kind: b'["%s",%d,' % (kind.encode(), VERSIONS[kind]) for kind in KINDS}


def digest(data: bytes) -> str:
    """BLAKE2b-256 in hexadecimal: what a record's successor carries."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def encode_entry(event: Event) -> bytes:
    """The entry as it stands in a record: `[kind,version,body]`."""
    return _prefix[type(event).__name__] + encode(event) + b"]"


def decode_entry(data: bytes | msgspec.Raw) -> Event:
    """An entry of the log, in its newest version.

    A known kind whose body does not decode becomes `EntryQuarantined`.

    Raises:
        UnknownKind: this build does not know the kind or the version.
    """
    entry = _entry(data)
    kind = entry.kind
    newest = VERSIONS.get(kind)
    if newest is None or not 1 <= entry.version <= newest:
        raise UnknownKind(f"entry {kind!r} version {entry.version} is newer than this build: upgrade this reader")
    try:
        if entry.version == newest:
            return _body[kind](entry.body)
        return msgspec.convert(upcast(kind, entry.version, msgspec.json.decode(entry.body), newest), KINDS[kind])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        return EntryQuarantined(kind=kind, reason=str(error)[:1024])


def decode_envelope(data: bytes) -> Envelope:
    """A record without its entries decoded.

    Raises:
        msgspec.DecodeError: not a record (`msgspec.ValidationError` is one of these).
    """
    return _envelope(data)


def decode_cycle(data: bytes) -> Cycle:
    """A record with its entries.

    Raises:
        msgspec.DecodeError: not a record.
        UnknownKind: it holds an entry that this build does not know.
    """
    return open_envelope(_envelope(data))


def open_envelope(envelope: Envelope) -> Cycle:
    """Decode the entries of a record."""
    return Cycle(
        cell=envelope.cell,
        number=envelope.number,
        term=envelope.term,
        at_us=envelope.at_us,
        started=envelope.started,
        inputs=tuple([decode_entry(raw) for raw in envelope.inputs]),
        decisions=tuple([decode_entry(raw) for raw in envelope.decisions]),
        positions=envelope.positions,
        policy=envelope.policy,
        previous=envelope.previous,
    )


def encode_cycle(cycle: Cycle, inputs: tuple[bytes, ...] | None = None) -> bytes:
    """The record's bytes. `inputs`, where given, are the entries of `cycle.inputs` already encoded."""
    raw = inputs if inputs is not None else [encode_entry(event) for event in cycle.inputs]
    return encode(
        Envelope(
            cell=cycle.cell,
            number=cycle.number,
            term=cycle.term,
            at_us=cycle.at_us,
            started=cycle.started,
            inputs=tuple([msgspec.Raw(entry) for entry in raw]),
            decisions=tuple([msgspec.Raw(encode_entry(event)) for event in cycle.decisions]),
            positions=cycle.positions,
            policy=cycle.policy,
            previous=cycle.previous,
        )
    )


def decode_input(data: bytes) -> tuple[Event, bytes]:
    """An input from outside, `[kind,version,body]`, and its canonical bytes.

    Raises:
        Malformed: what is wrong, naming the field.
    """
    if len(data) > BODY_MAX_BYTES:
        raise Malformed(f"the message has {len(data)} bytes; at most {BODY_MAX_BYTES} are taken")
    try:
        entry = _entry(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"not an entry [kind, version, body]: {error}") from None
    kind = entry.kind
    if kind not in INPUTS:
        raise Malformed(f"kind {kind[:64]!r} is no input; known are {', '.join(sorted(INPUTS))}")
    if not 1 <= entry.version <= VERSIONS[kind]:
        raise Malformed(f"version: {kind} has versions 1 to {VERSIONS[kind]}, not {entry.version}")
    try:
        if entry.version == VERSIONS[kind]:
            event = _body[kind](entry.body)
        else:
            event = msgspec.convert(upcast(kind, entry.version, _unique(entry.body), VERSIONS[kind]), KINDS[kind])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(_sentence(kind, error)) from None
    canonical = encode_entry(event)
    if canonical != data:
        _unique(entry.body)  # only bytes that are not canonical can hold a key twice
    if type(event) is JobSubmitted:
        check_submission(event)
    return event, canonical


def check_submission(event: JobSubmitted) -> None:
    """What the types cannot say about a submission.

    Raises:
        Malformed: what is wrong, naming the field.
    """
    request = event.request
    tasks = 0
    names = []
    for group in request.groups:
        tasks += group.count
        if group.min > group.count:
            raise Malformed(f"request.groups[{group.name}].min is {group.min}, more than its count {group.count}")
        if group.gpus and group.gpu_milli:
            raise Malformed(f"request.groups[{group.name}]: gpus and gpu_milli exclude each other")
        for requirement in group.selector:
            _check_requirement(group.name, requirement.key, requirement.op, requirement.values)
        names.append(group.name)
    if tasks > 100_000:
        raise Malformed(f"request.groups: {tasks} tasks in one instance; at most 100000 are taken")
    if sum(group.min for group in request.groups) == 0:
        raise Malformed("request.groups: at least one group needs a min of 1")
    if len(names) != len(dict.fromkeys(names)):
        raise Malformed("request.groups: two groups have one name")
    if request.success and request.success not in names:
        raise Malformed(f"request.success names the group {request.success!r}, which is not there")
    size = sum(len(key) + len(value) for key, value in event.run.environment.items())
    if size > ENVIRONMENT_MAX_BYTES:
        raise Malformed(f"run.environment has {size} characters; at most {ENVIRONMENT_MAX_BYTES} are taken")


def _check_requirement(group: str, key: str, op: str, values: tuple[str, ...]) -> None:
    where = f"request.groups[{group}].selector[{key}]"
    if op in ("Exists", "DoesNotExist"):
        if values:
            raise Malformed(f"{where}: {op} takes no values")
    elif not values:
        raise Malformed(f"{where}: {op} needs values")
    elif op in ("Gt", "Lt") and (len(values) != 1 or not re.fullmatch(r"-?[0-9]{1,15}", values[0])):
        raise Malformed(f"{where}: {op} needs one integer")


def _unique(body: bytes | msgspec.Raw) -> dict[str, Any]:
    """The body as plain JSON.

    Raises:
        Malformed: a key stands twice in one object.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in items:
            if key in seen:
                raise Malformed(f"the field {key!r} stands twice")
            seen[key] = value
        return seen

    result: dict[str, Any] = json.loads(bytes(body), object_pairs_hook=pairs, parse_constant=_no_constant)
    return result


def _no_constant(text: str) -> NoReturn:
    raise Malformed(f"{text} is no value")


def _sentence(kind: str, error: Exception) -> str:
    """msgspec says `... - at `$.request.priority``: say the field first."""
    text = str(error)
    match = re.search(r"^(.*) - at `\$\.?(.*)`$", text)
    return f"{match[2]}: {match[1]}" if match and match[2] else f"{kind}: {text}"
