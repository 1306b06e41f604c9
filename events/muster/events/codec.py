"""From bytes to events and back: the one canonical encoder, and decoders that say what is wrong.

Two ways in. `decode_input` (`decode_inputs` for many) and `decode_report` are for what comes from outside: they refuse
unknown fields, duplicate keys, anything beyond a bound, with one sentence that names the field (`muster.events.edge`).
`decode_entry` is for what stands in the log already (`muster.events.entries`). Records are put together and taken apart
here.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from muster.events.edge import Edge, Malformed, check_submission, decode_report
from muster.events.entries import BAD_BYTES, Entries, UnknownKind, encode, encode_into
from muster.events.record import Cycle, Envelope
from muster.events.registry import INPUTS, KINDS, VERSIONS

__all__ = [
    "Malformed",
    "UnknownKind",
    "check_submission",
    "decode_cycle",
    "decode_entry",
    "decode_envelope",
    "decode_input",
    "decode_inputs",
    "decode_report",
    "digest",
    "encode",
    "encode_cycle",
    "encode_entry",
    "encode_frame",
    "open_envelope",
    "open_record",
]

_entries = Entries(KINDS, VERSIONS)
encode_entry = _entries.encode
decode_entry = _entries.decode
_edge = Edge(_entries, INPUTS)
decode_input = _edge.decode_input
decode_inputs = _edge.decode_inputs

_HEADERS = [name for name in Envelope.__struct_fields__ if name not in ("inputs", "decisions")]


def _whole() -> type[msgspec.Struct]:
    """`Envelope` with its entries decoded."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(Envelope):
        kind = field.type if field.name in _HEADERS else _entries.forms
        if field.required:
            fields.append((field.name, kind))
        elif field.default_factory is not msgspec.NODEFAULT:
            fields.append((field.name, kind, msgspec.field(default_factory=field.default_factory)))
        else:
            default = field.default if field.name in _HEADERS else []
            fields.append((field.name, kind, default))
    return msgspec.defstruct("Whole", fields, frozen=True, kw_only=True, forbid_unknown_fields=True)


_decode_whole: Callable[[bytes], Any] = msgspec.json.Decoder(_whole()).decode

decode_envelope = msgspec.json.Decoder(Envelope).decode
"""A record without its entries decoded. Raises one of `muster.events.entries.BAD_BYTES` if it is no record."""


def digest(data: bytes) -> str:
    """BLAKE2b-256 in hexadecimal: what a record's successor carries."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def decode_cycle(data: bytes) -> Cycle:
    """A record with its entries.

    Raises:
        msgspec.DecodeError: not a record.
        UnknownKind: it holds an entry that this build does not know.
    """
    opened = open_record(data)
    return opened[1] if opened is not None else open_envelope(decode_envelope(data))


def open_record(data: bytes) -> tuple[Envelope, Cycle] | None:
    """A record in one step, where all its entries are of the newest versions and right; else None.

    The envelope comes without entries.
    """
    try:
        whole = _decode_whole(data)
        inputs, decisions = _entries.events(whole.inputs), _entries.events(whole.decisions)
    except BAD_BYTES:
        return None
    fields = {name: getattr(whole, name) for name in _HEADERS}
    return Envelope(**fields), Cycle(**fields, inputs=inputs, decisions=decisions)


def open_envelope(envelope: Envelope) -> Cycle:
    """Decode the entries of a record.

    Raises:
        UnknownKind: it holds an entry that this build does not know.
    """
    return Cycle(
        cell=envelope.cell,
        number=envelope.number,
        term=envelope.term,
        at_us=envelope.at_us,
        started=envelope.started,
        inputs=_entries.decode_all(envelope.inputs),
        decisions=_entries.decode_all(envelope.decisions),
        positions=envelope.positions,
        policy=envelope.policy,
        previous=envelope.previous,
    )


def encode_cycle(cycle: Cycle, inputs: Iterable[bytes] | None = None, buffer: bytearray | None = None) -> bytes:
    """The record's bytes.

    Args:
        cycle: what it says.
        inputs: the entries of `cycle.inputs`, where they are encoded already.
        buffer: where it is put together; one that is used again and again saves asking for large memory. It is overwritten.
    """
    entries = _entries.plain(cycle.inputs) if inputs is None else _array(list(inputs))
    envelope = Envelope(
        cell=cycle.cell,
        number=cycle.number,
        term=cycle.term,
        at_us=cycle.at_us,
        started=cycle.started,
        inputs=cast(Any, entries),  # written as the Raw of each entry would be
        decisions=cast(Any, _entries.plain(cycle.decisions)),
        positions=cycle.positions,
        policy=cycle.policy,
        previous=cycle.previous,
    )
    if buffer is None:
        return encode(envelope)
    encode_into(envelope, buffer)
    return bytes(buffer)


def encode_frame(cycle: Cycle) -> bytes:
    """The record's bytes as they would be without entries."""
    return encode_cycle(msgspec.structs.replace(cycle, inputs=(), decisions=()))


def _array(entries: list[bytes]) -> msgspec.Raw:
    """Entries as they stand in a record. The list is not used after."""
    if not entries:
        return msgspec.Raw(b"[]")
    entries[0] = b"[" + entries[0]
    entries[-1] += b"]"
    return msgspec.Raw(b",".join(entries))
