"""Entries on the wire, `[kind, version, body]`: written in one way, read fast.

An entry of the newest version is decoded in one step, by a decoder over the union of all kinds. Whatever that decoder does
not take is read again slowly and says what it is: an older version, an unknown kind, a body that does not decode.

Many jobs share one request and one run. Both are decoded once for the same bytes and shared from then on: they are frozen,
their mappings too, by convention. What is kept is bounded, and whether something was kept shows nowhere but in `is`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

import msgspec

from muster.events.base import Event, Part
from muster.events.jobs import JobRequest, JobRun, JobSubmitted
from muster.events.operations import EntryQuarantined
from muster.events.upcast import STEPS, Body, upcast

_encoder = msgspec.json.Encoder(order="deterministic")
encode_into = _encoder.encode_into
encode = _encoder.encode
"""The canonical encoding: fields in the order of the class, keys of mappings sorted, no white space."""
encode_lines = _encoder.encode_lines
"""The canonical encoding of each, and a new line after it."""

BAD_BYTES = (msgspec.DecodeError, ValueError, RecursionError)
"""What msgspec raises on bytes that it cannot decode; `UnicodeDecodeError` is a `ValueError`."""

BAD_BODY = (*BAD_BYTES, LookupError, TypeError, AttributeError, ArithmeticError)
"""What an upcaster may raise besides, on a body that its version never had."""

SHARED_MAX = 4096
"""So many parts of one type are kept at least, twice as many at most."""
SHARED_MAX_BYTES = 4096
"""A larger part is decoded each time."""


class UnknownKind(RuntimeError):
    """A record holds a kind or a version that this build does not know: the reader must be upgraded."""


class RawEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An entry whose body was not looked into."""

    kind: str
    version: int
    body: msgspec.Raw


class SubmissionHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`JobSubmitted` without its two large parts, which are its last fields. Never leaves `muster.events`."""

    job: str
    name: str
    user: str
    queue: str
    submitted_us: int


class Submission(SubmissionHead, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`JobSubmitted` with its two large parts not looked into. Never leaves `muster.events`."""

    request: msgspec.Raw
    run: msgspec.Raw


class Shared:
    """A part of a message, decoded once for these bytes."""

    __slots__ = ("canonical", "checked", "part")

    def __init__(self, part: Any, canonical: bool) -> None:
        self.part = part
        self.canonical = canonical
        """Whether the bytes are the part's canonical encoding."""
        self.checked = False
        """Whether the edge has checked the part."""


class SharedParts:
    """Parts of one type by their bytes, in two generations: when the young one is full it becomes the old one."""

    def __init__(self, kind: type[Part]) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._old: dict[bytes, Shared] = {}
        self.young: dict[bytes, Shared] = {}
        """To look in before `get` is called; always the same dict."""

    def get(self, data: bytes) -> Shared:
        """The part with this encoding.

        Raises:
            One of `BAD_BYTES`: it does not decode.
        """
        shared = self.young.get(data) or self._old.get(data)
        if shared is None:
            part = self._decode(data)
            same = encode(part)
            shared = Shared(part, same == data)
            if len(data) > SHARED_MAX_BYTES:
                return shared
            if not shared.canonical and len(same) <= SHARED_MAX_BYTES:
                shared.part = self.get(same).part  # another spelling of one part
        if len(self.young) >= SHARED_MAX:
            self._old = self.young.copy()
            self.young.clear()
        self.young[data] = shared
        return shared


class Entries:
    """The codec of one registry: its kinds, their newest versions, the steps from older ones."""

    def __init__(
        self,
        kinds: Mapping[str, type[Event]],
        versions: Mapping[str, int],
        steps: Mapping[tuple[str, int], Callable[[Body], Body]] = STEPS,
    ) -> None:
        self.kinds = kinds
        self.versions = versions
        self.steps = steps
        for kind, newest in versions.items():
            for version in range(1, newest):
                if (kind, version) not in steps:
                    raise LookupError(f"{kind} is at version {newest}, but no step leads from version {version} to the next")
        self._requests = SharedParts(JobRequest)
        self._runs = SharedParts(JobRun)
        self._known_request = self._requests.young.get
        self._known_run = self._runs.young.get
        self._kind_of = {cls: kind for kind, cls in kinds.items()}
        self._version_of = {cls: versions[kind] for kind, cls in kinds.items()}
        self._bodies = {kind: msgspec.json.Decoder(cls).decode for kind, cls in kinds.items()}
        self._raw = msgspec.json.Decoder(RawEntry).decode
        forms = _newest_forms(kinds, versions, _Whole)
        self._newest: Callable[[bytes | msgspec.Raw], Any] = msgspec.json.Decoder(forms).decode
        self.submission_head: Callable[[bytes], Any] = msgspec.json.Decoder(
            _form("JobSubmitted", versions["JobSubmitted"], _Head)
        ).decode
        """A submission without its parts, as a structure that `encode` writes canonically; raises one of `BAD_BYTES`."""
        self.head: type[msgspec.Struct] = _Head
        """What `lines` makes of a submission."""
        self.lines: Callable[[bytes], list[Any]] = msgspec.json.Decoder(_newest_forms(kinds, versions, _Head)).decode_lines
        """Entries of newest version one after another, submissions without their parts, as structures that `encode_lines`
        writes canonically; raises one of `BAD_BYTES`."""
        self.forms: Any = list.__class_getitem__(forms)
        """The type of many entries of newest version. What is decoded of it is for `events`."""
        self._all_newest: Callable[[bytes], list[Any]] = msgspec.json.Decoder(self.forms).decode

    def encode(self, event: Event) -> bytes:
        """The entry as it stands in a record."""
        kind = type(event)
        return encode((self._kind_of[kind], self._version_of[kind], event))

    def plain(self, events: Sequence[Event]) -> list[tuple[str, int, Event]]:
        """The entries in a form that `encode` writes as it writes each one."""
        kinds = list(map(type, events))
        return list(zip(map(self._kind_of.__getitem__, kinds), map(self._version_of.__getitem__, kinds), events, strict=True))

    def decode(self, data: bytes | msgspec.Raw) -> Event:
        """The event, in its newest version.

        A known kind whose body does not decode becomes `EntryQuarantined`, and so does what is no entry at all.

        Raises:
            UnknownKind: this build does not know the kind or the version.
        """
        try:
            body: Event | Submission = self._newest(data).body
            return self.submitted(body) if isinstance(body, Submission) else body
        except BAD_BYTES:
            return self._decode_slowly(data)

    def decode_all(self, entries: Sequence[msgspec.Raw]) -> tuple[Event, ...]:
        """Many events at once; see `decode`."""
        try:
            return self.events(self._all_newest(b"[" + b",".join(entries) + b"]"))
        except BAD_BYTES:
            return tuple([self.decode(entry) for entry in entries])

    def events(self, entries: list[Any]) -> tuple[Event, ...]:
        """The events of entries that were decoded as `forms` says.

        Raises:
            One of `BAD_BYTES`: a part of a submission does not decode.
        """
        submitted: Callable[[Any], JobSubmitted] = self.submitted
        return tuple([submitted(body) if type(body := entry.body) is _Whole else body for entry in entries])

    def submitted(self, body: Submission) -> JobSubmitted:
        """The submission with its parts.

        Raises:
            One of `BAD_BYTES`: a part does not decode.
        """
        request, run = bytes(body.request), bytes(body.run)
        return JobSubmitted(
            job=body.job,
            name=body.name,
            user=body.user,
            queue=body.queue,
            submitted_us=body.submitted_us,
            request=(self._known_request(request) or self._requests.get(request)).part,
            run=(self._known_run(run) or self._runs.get(run)).part,
        )

    def parts(self, body: Submission) -> tuple[Shared, Shared]:
        """Request and run of a submission.

        Raises:
            One of `BAD_BYTES`: one does not decode.
        """
        return self._requests.get(bytes(body.request)), self._runs.get(bytes(body.run))

    def raw(self, data: bytes | msgspec.Raw) -> RawEntry:
        """The entry with its body not looked into.

        Raises:
            One of `BAD_BYTES`: it is no entry.
        """
        return self._raw(data)

    def body(self, entry: RawEntry, plain: Callable[[msgspec.Raw], Body] = msgspec.json.decode) -> Event:
        """The event of an entry whose kind and version are known. `plain` reads the body of an older version.

        Raises:
            One of `BAD_BODY`: the body is not what its version says.
        """
        newest = self.versions[entry.kind]
        if entry.version == newest:
            return self._bodies[entry.kind](entry.body)
        body = upcast(entry.kind, entry.version, plain(entry.body), newest, self.steps)
        event: Event = msgspec.convert(body, self.kinds[entry.kind])
        return event

    def newest(self, data: bytes) -> Any:
        """The entry of the newest version, as a structure that `encode` writes canonically; its `body` is the event.

        The body of a `JobSubmitted` is a `Submission`.

        Raises:
            One of `BAD_BYTES`: it is no such entry.
        """
        return self._newest(data)

    def _decode_slowly(self, data: bytes | msgspec.Raw) -> Event:
        try:
            entry = self._raw(data)
        except BAD_BYTES as error:
            return EntryQuarantined(kind="", reason=str(error)[:1024])
        newest = self.versions.get(entry.kind)
        if newest is None or not 1 <= entry.version <= newest:
            raise UnknownKind(
                f"an entry of kind {entry.kind[:64]!r}, version {entry.version}, is newer than this build: upgrade this reader"
            )
        try:
            return self.body(entry)
        except BAD_BODY as error:
            return EntryQuarantined(kind=entry.kind, reason=str(error)[:1024])


def _submission() -> tuple[type[msgspec.Struct], type[msgspec.Struct]]:
    """`SubmissionHead` and `Submission` with the bounds and defaults of `JobSubmitted`, from which they cannot stray."""
    head: list[Any] = []
    parts: list[Any] = []
    for field in msgspec.structs.fields(JobSubmitted):
        if field.name in ("request", "run"):
            default = () if field.required else (msgspec.Raw(encode(field.default)),)
            parts.append((field.name, msgspec.Raw, *default))
        else:
            default = () if field.required else (field.default,)
            head.append((field.name, field.type, *default))
    return (
        msgspec.defstruct("Head", head, bases=(SubmissionHead,), frozen=True, kw_only=True, forbid_unknown_fields=True),
        msgspec.defstruct("Whole", head + parts, bases=(Submission,), frozen=True, kw_only=True, forbid_unknown_fields=True),
    )


_Head, _Whole = _submission()


def _form(kind: str, version: int, body: type) -> type[msgspec.Struct]:
    """The entry of this kind and version as a structure: array-like, its first element the kind."""
    fields = [("version", Literal[version]), ("body", body)]
    return msgspec.defstruct(f"{kind}Entry", fields, tag=kind, array_like=True, frozen=True, forbid_unknown_fields=True)


def _newest_forms(kinds: Mapping[str, type[Event]], versions: Mapping[str, int], submission: type[msgspec.Struct]) -> Any:
    """The union of all entries of newest version, one array-like structure a kind, told apart by its first element."""
    forms = [_form(kind, versions[kind], submission if cls is JobSubmitted else cls) for kind, cls in kinds.items()]
    return Union[tuple(forms)]  # noqa: UP007 - built from a list
