"""One record of the log: one cycle, whole.

    Record: cell, number (dense, from 1), term, at (µs), started?, inputs[], decisions[], positions, policy, previous

An entry on the wire is `[kind, version, body]`. A record either starts a term (`started` is set; it has no inputs and no
decisions) or is a cycle of one. `previous` is the BLAKE2b-256 digest, in hexadecimal, of the bytes of the record admitted
before it; the first record has `GENESIS`.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from muster.events.base import Event, Label, Micros, Name

GENESIS = "0" * 64

Number = Annotated[int, Meta(ge=1, le=2**53)]
Term = Annotated[int, Meta(ge=1, le=2**53)]
Offset = Annotated[int, Meta(ge=0, le=2**53)]
Digest = Annotated[str, Meta(min_length=64, max_length=64, extra_json_schema={"pattern": "^[0-9a-f]{64}$"})]


class TermStarted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scheduler leads from here on, once it has read this back, admitted."""

    nonce: Annotated[str, Meta(min_length=32, max_length=32, extra_json_schema={"pattern": "^[0-9a-f]{32}$"})]
    """128 random bits: tells two starters apart."""
    host: Label
    build: Label
    state: Digest
    """Digest of the state before this record."""
    schema: Annotated[int, Meta(ge=1, le=1_000_000)] = 2
    """Of the bytes whose digest that is: builds of another schema cannot compare it. Before this was said it was 2."""
    gap_us: Micros = 0
    """How long nobody led; deadlines that judge others move by it."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record as it is read before its entries are: what `admit` needs, and the entries' bytes."""

    cell: Name
    number: Number
    term: Term
    at_us: Micros
    started: TermStarted | None = None
    inputs: tuple[msgspec.Raw, ...] = ()
    decisions: tuple[msgspec.Raw, ...] = ()
    positions: dict[Label, Offset] = {}
    """The next offset to read of each source partition that this cycle moved: `topic/partition` to offset."""
    policy: Label = "default/1"
    previous: Digest


class Cycle(msgspec.Struct, frozen=True, kw_only=True):
    """A record with its entries decoded, upcast to their newest versions."""

    cell: str
    number: int
    term: int
    at_us: int
    started: TermStarted | None
    inputs: tuple[Event, ...]
    decisions: tuple[Event, ...]
    positions: dict[str, int]
    policy: str
    previous: str
