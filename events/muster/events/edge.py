"""Messages from outside: what is taken, and one sentence about what is not.

Refused are unknown fields, keys that stand twice, anything beyond a bound, names that are none, and what the types cannot
say. Whatever the bytes are, the answer is an input or `Malformed`; which of them depends on nothing but the bytes.
"""

import itertools
import json
import re
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import msgspec

from muster.events.base import BODY_MAX_BYTES, ENVIRONMENT_MAX_BYTES, JOB_PATTERN, NAME_PATTERN, Event
from muster.events.entries import BAD_BODY, BAD_BYTES, Entries, Shared, Submission, encode, encode_lines
from muster.events.jobs import Constraints, JobRequest, JobRevised, JobRun, JobSubmitted, Requirement
from muster.events.levels import NodeReport
from muster.events.nodes import NodeRegistered, NodeSpec
from muster.events.patterns import Check, Lines, Texts, checker, patterned
from muster.events.queues import Amounts, QueueSet
from muster.events.reservations import ReservationSet
from muster.events.service_rules import service_fault

REPORT_MAX_BYTES = 4 * 1024 * 1024
"""The largest report of a node."""

TAILS_MAX = 4096
TAIL_MAX_BYTES = 8192
"""So many ends of submissions are kept, none larger than this."""
_SUBMITTED = b'["JobSubmitted",'
_SPLIT = b',"request":'

REASON_MAX = 1000
"""No sentence is longer; `Text` takes 1024."""


class Malformed(ValueError):
    """Bytes from outside that are no input. Its text is one sentence, on one line, for a person."""

    def __init__(self, text: str) -> None:
        line = "".join([character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text[:REASON_MAX]])
        super().__init__(line)


class Edge:
    """The edge of one registry: takes entries of the kinds that are inputs."""

    def __init__(self, entries: Entries, inputs: Collection[str]) -> None:
        self._entries = entries
        self._inputs = dict.fromkeys(inputs)
        self._checks: dict[type, Check | None] = {entries.kinds[kind]: checker(entries.kinds[kind]) for kind in inputs}
        self._check_request = checker(JobRequest)
        self._check_run = checker(JobRun)
        self._tails: dict[bytes, tuple[JobRequest, JobRun]] = {}
        self._names = Texts(NAME_PATTERN)
        self._is_job = re.compile(JOB_PATTERN.removeprefix("^").removesuffix("$")).fullmatch  # nearly every key is new
        self._lines_of_jobs = Lines(JOB_PATTERN)
        self._lines_of_names = Lines(NAME_PATTERN)
        keyed = [kind for kind in self._checks if patterned(kind) == {"job": JOB_PATTERN}]
        self._keyed: dict[type, None] = dict.fromkeys(keyed)
        self._keyed[entries.head] = None
        """Events about a job in which nothing else has to be checked; and the heads of submissions."""

    def decode_inputs(self, messages: list[bytes]) -> tuple[list[Event | Malformed], list[bytes]]:
        """Many inputs at once: for each message what `decode_input` returns, or what it raises and the message."""
        events = self._decode_usual(messages)
        if events is not None:
            return events, messages
        outcomes = [self._decode_either(data) for data in messages]
        return [event for event, _ in outcomes], [data for _, data in outcomes]

    def decode_input(self, data: bytes) -> tuple[Event, bytes]:
        """An input from outside, `[kind,version,body]`, and its canonical bytes.

        Raises:
            Malformed: what is wrong, naming the field.
        """
        if data.startswith(_SUBMITTED) and len(data) <= BODY_MAX_BYTES:
            head, _, tail = data.partition(_SPLIT)
            parts = self._tails.get(tail)
            if parts is not None:
                event = self._submitted_again(head + b"}]", *parts)
                if event is not None:
                    return event, data
        return self._decode(data)

    def _decode_either(self, data: bytes) -> tuple[Event | Malformed, bytes]:
        try:
            return self.decode_input(data)
        except Malformed as error:
            return error, data

    def _decode_usual(self, messages: list[bytes]) -> list[Event | Malformed] | None:
        """The inputs, if all messages are canonical and of the newest version and right; else None.

        Each message is a line, without what it shares with a submission that was taken (see `_submitted_again`). If the
        lines, encoded again, are the same bytes, and there are as many entries as messages, then each message is the
        encoding of its entry: a canonical encoding holds no new line, so there is none inside a message either, and both
        sides fall apart into the same lines. And an encoding being a whole JSON array, of which no beginning is one, what
        was read at its place was read from it alone.
        """
        if not messages or max(map(len, messages)) > BODY_MAX_BYTES:
            return None
        tails = self._tails
        lines: list[bytes] = []
        shared: list[tuple[int, tuple[JobRequest, JobRun]]] = []
        alone: list[tuple[int, Event]] = []
        for data in messages:
            if data.startswith(_SUBMITTED):
                head, _, tail = data.partition(_SPLIT)
                parts = tails.get(tail)
                if parts is None:
                    event, canonical = self._decode_either(data)
                    if canonical != data or isinstance(event, Malformed):
                        return None
                    alone.append((len(lines) + len(alone), event))
                else:
                    shared.append((len(lines), parts))
                    lines.append(head + b"}]")
            else:
                lines.append(data)
        lines.append(b"")
        joined = b"\n".join(lines)
        try:
            entries = self._entries.lines(joined)
        except BAD_BYTES:
            return None
        if len(entries) + 1 != len(lines) or encode_lines(entries) != joined:
            return None
        events = [entry.body for entry in entries]
        if not self._are_right(events, [events[at] for at, _ in shared]):
            return None
        for at, (request, run) in shared:
            body = events[at]
            events[at] = JobSubmitted(
                job=body.job,
                name=body.name,
                user=body.user,
                queue=body.queue,
                submitted_us=body.submitted_us,
                request=request,
                run=run,
            )
        for at, event in alone:
            events.insert(at, event)
        return events

    def _are_right(self, events: list[Any], heads: list[Any]) -> bool:
        """Whether all these hold what their types cannot check. `heads` are those of submissions among them."""
        keyed = self._keyed
        others = [kind for kind in dict.fromkeys(map(type, events)) if kind not in keyed]
        about = events
        if others:
            about = [event for event in events if type(event) in keyed]
            if any(kind not in self._checks for kind in others):
                return False
            try:
                for event in events:
                    if type(event) not in keyed:
                        self._check(event)
            except Malformed:
                return False
        if not self._lines_of_jobs.fit([event.job for event in about]):
            return False
        if not heads:
            return True
        few = [*dict.fromkeys([head.user for head in heads]), *dict.fromkeys([head.queue for head in heads])]
        return self._lines_of_names.fit([head.name for head in heads] + few)

    def _decode(self, data: bytes) -> tuple[Event, bytes]:
        if len(data) > BODY_MAX_BYTES:
            raise Malformed(f"the message has {len(data)} bytes; at most {BODY_MAX_BYTES} are taken")
        try:
            entry = self._entries.newest(data)
        except BAD_BYTES:
            return self._decode_slowly(data)
        body = entry.body
        if isinstance(body, Submission):
            return self._submitted(entry, body, data)
        if type(body) not in self._checks:
            return self._decode_slowly(data)
        self._check(body)
        canonical = encode(entry)
        if canonical != data:
            unique(data)  # only bytes that are not canonical can hold a key twice
        return body, canonical

    def _submitted_again(self, head: bytes, request: JobRequest, run: JobRun) -> JobSubmitted | None:
        """The submission that ends as one did that was taken; None where this one has to be looked at whole.

        What follows `_SPLIT` was taken once, behind a head that is a whole entry when it is closed there. So where this
        head is one too, the same bytes mean the same behind it; and where this head is canonical, the whole is.
        """
        try:
            entry = self._entries.submission_head(head)
        except BAD_BYTES:
            return None
        body = entry.body
        fits = self._names.fits
        if not (fits(body.name) and fits(body.user) and fits(body.queue) and self._is_job(body.job)):
            return None
        if encode(entry) != head:
            return None
        return JobSubmitted(
            job=body.job,
            name=body.name,
            user=body.user,
            queue=body.queue,
            submitted_us=body.submitted_us,
            request=request,
            run=run,
        )

    def _submitted(self, entry: Any, body: Submission, data: bytes) -> tuple[Event, bytes]:
        try:
            request, run = self._entries.parts(body)
        except BAD_BYTES:
            return self._decode_slowly(data)
        event = JobSubmitted(
            job=body.job,
            name=body.name,
            user=body.user,
            queue=body.queue,
            submitted_us=body.submitted_us,
            request=request.part,
            run=run.part,
        )
        fits = self._names.fits
        if not (fits(body.name) and fits(body.user) and fits(body.queue) and self._is_job(body.job)):
            self._check(event)
        if not request.checked:
            _accept(request, "request", self._check_request, check_request)
        if not run.checked:
            _accept(run, "run", self._check_run, check_run)
        if run.part.groups:
            check_submission(event)
        if request.canonical and run.canonical and encode(entry) == data:
            tail = data.partition(_SPLIT)[2]
            if len(tail) <= TAIL_MAX_BYTES:
                if len(self._tails) >= TAILS_MAX:
                    self._tails.clear()
                self._tails[tail] = request.part, run.part
            return event, data
        unique(data)
        return event, self._entries.encode(event)

    def _decode_slowly(self, data: bytes) -> tuple[Event, bytes]:
        """An input in an older version; or else what is wrong."""
        entries = self._entries
        try:
            entry = entries.raw(data)
        except BAD_BYTES as error:
            raise Malformed(f"not an entry [kind, version, body]: {error}") from None
        kind = entry.kind
        if kind not in self._inputs:
            raise Malformed(f"kind {kind[:64]!r} is no input; known are {', '.join(sorted(self._inputs))}")
        if not 1 <= entry.version <= entries.versions[kind]:
            raise Malformed(f"version: {kind} has versions 1 to {entries.versions[kind]}, not {entry.version}")
        try:
            event = entries.body(entry, unique)
        except Malformed:
            raise
        except BAD_BODY as error:
            raise Malformed(sentence(kind, error)) from None
        unique(data)
        self._check(event)
        return event, entries.encode(event)

    def _check(self, event: Event) -> None:
        check = self._checks[type(event)]
        if check is not None:
            _raise(check(event))
        if type(event) is JobSubmitted:
            check_submission(event)
        elif type(event) is JobRevised:
            check_revision(event)
        elif type(event) is NodeRegistered:
            check_spec(event.spec)
        elif type(event) is QueueSet:
            check_queue(event)
        elif type(event) is ReservationSet:
            check_reservation(event)


_decode_report = msgspec.json.Decoder(NodeReport).decode
_check_report = checker(NodeReport)


def decode_report(data: bytes) -> NodeReport:
    """A node's report from outside.

    Raises:
        Malformed: what is wrong, naming the field.
    """
    if len(data) > REPORT_MAX_BYTES:
        raise Malformed(f"the report has {len(data)} bytes; at most {REPORT_MAX_BYTES} are taken")
    try:
        report = _decode_report(data)
    except BAD_BYTES as error:
        raise Malformed(sentence("report", error)) from None
    if _check_report is not None:
        _raise(_check_report(report))
    if report.spec is not None:
        check_spec(report.spec)
    tasks = [(task.job, task.instance, task.attempt, task.rank) for task in report.tasks]
    if len(dict.fromkeys(tasks)) != len(tasks):
        raise Malformed("tasks: one task stands twice")
    devices = [device.uuid for device in report.devices]
    if len(dict.fromkeys(devices)) != len(devices):
        raise Malformed("devices: one uuid stands twice")
    if encode(report) != data:
        unique(data)
    return report


def check_submission(event: JobSubmitted) -> None:
    """What the types cannot say about a submission.

    Raises:
        Malformed: what is wrong, naming the field.
    """
    check_request(event.request)
    check_run(event.run)
    if event.request.kind == "headroom" and event.run != JobRun():
        raise Malformed("run: a headroom job runs nothing: leave command, image and the rest out")
    _check_group_runs(event)
    if any(condition.job == event.job for condition in event.request.after or ()):
        raise Malformed("request.after names the job itself")


def check_revision(event: JobRevised) -> None:
    """What the types cannot say about how a service is revised.

    Raises:
        Malformed: what is wrong, naming the field.
    """
    check_request(event.request)
    check_run(event.run)
    _check_group_runs(event)
    if not event.request.service:
        raise Malformed("request.service is not there: only a service is revised, and it stays one")


def _check_group_runs(event: JobSubmitted | JobRevised) -> None:
    unknown = [name for name in event.run.groups or () if all(group.name != name for group in event.request.groups)]
    if unknown:
        raise Malformed(f"run.groups: the job has no group {unknown[0][:64]!r}")


def check_request(request: JobRequest) -> None:
    """What the types cannot say about a request.

    Raises:
        Malformed: what is wrong, naming the field.
    """
    tasks = 0
    names = []
    for group in request.groups:
        tasks += group.count
        if group.min > group.count:
            raise Malformed(f"request.groups[{group.name}].min is {group.min}, more than its count {group.count}")
        if group.gpu_profile and not group.gpus:
            raise Malformed(f"request.groups[{group.name}]: gpu_profile needs gpus, the number of slices: a slice is not shared")
        if group.gpus and group.gpu_milli:
            raise Malformed(f"request.groups[{group.name}]: gpus and gpu_milli exclude each other")
        for requirement in group.selector:
            _check_requirement(f"request.groups[{group.name}].selector", requirement)
        for requirement in itertools.chain(*(group.any_of or ()), *[wish.labels for wish in group.prefers or ()]):
            _check_requirement(f"request.groups[{group.name}].{'any_of' if group.any_of else 'prefers'}", requirement)
        if group.ports and len(dict.fromkeys(group.ports)) != len(group.ports):
            raise Malformed(f"request.groups[{group.name}].ports: one port stands twice")
        names.append(group.name)
    if tasks > 100_000:
        raise Malformed(f"request.groups: {tasks} tasks in one instance; at most 100000 are taken")
    if sum(group.min for group in request.groups) == 0:
        raise Malformed("request.groups: at least one group needs a min of 1")
    if len(names) != len(dict.fromkeys(names)):
        raise Malformed("request.groups: two groups have one name")
    if request.kind and not request.preemptible:
        raise Malformed(f"request.preemptible: a {request.kind} job yields to others, and may not forbid it")
    if request.kind == "headroom":
        _check_headroom(request)
    if request.at_once and request.array is None:
        raise Malformed("request.at_once says how many elements of an array may run at once, and there is no array")
    if request.success and request.success not in names:
        raise Malformed(f"request.success names the group {request.success!r}, which is not there")
    if any(group.name == request.success and not group.min for group in request.groups):
        raise Malformed(f"request.success names the group {request.success!r}, which may start without a task: its min is 0")
    if request.constraints:
        check_constraints(request.constraints)
    why = service_fault(request)
    if why:
        raise Malformed(why)


def _check_headroom(request: JobRequest) -> None:
    """Nothing runs in it, so nothing may be said of how that ends."""
    for name, said in (
        ("time_limit_us", request.time_limit_us is not None),
        ("grace_us", request.grace_us),
        ("degraded_grace_us", request.degraded_grace_us),
        ("max_retries", request.max_retries),
        ("success", request.success),
        ("budget", isinstance(request.budget, int)),
        ("deadline_us", isinstance(request.deadline_us, int)),
    ):
        if said:
            raise Malformed(f"request.{name}: a headroom job runs nothing, so it has none")


def check_constraints(asked: Constraints) -> None:
    """What the types cannot say about constraints.

    Raises:
        Malformed: what is wrong, naming the field.
    """
    for name, keys in (
        ("within", [one.level for one in asked.within]),
        ("spread", [one.level for one in asked.spread]),
        ("licences", [one.name for one in asked.licences]),
    ):
        if len(dict.fromkeys(keys)) != len(keys):
            raise Malformed(f"request.constraints.{name}: one {'name' if name == 'licences' else 'level'} stands twice")
    for spread in asked.spread:
        if not spread.most and not spread.skew:
            raise Malformed(f"request.constraints.spread: {spread.level} needs most or skew, of 1 or more")
    for name, terms in (("affinity", asked.affinity), ("anti_affinity", asked.anti_affinity)):
        for term in terms:
            for requirement in term.labels:
                _check_requirement(f"request.constraints.{name}.labels", requirement)
            if all(requirement.op in ("NotIn", "DoesNotExist") for requirement in term.labels):
                raise Malformed(
                    f"request.constraints.{name}.labels: needs In, Exists, Gt or Lt; else all jobs without labels are meant"
                )


def check_run(run: JobRun) -> None:
    """What the types cannot say about a run.

    Raises:
        Malformed: what is wrong, naming the field.
    """
    size = sum(len(key) + len(value) for key, value in run.environment.items())
    size += sum(len(key) + len(value) for own in (run.groups or {}).values() for key, value in own.environment.items())
    if size > ENVIRONMENT_MAX_BYTES:
        raise Malformed(f"run.environment has {size} characters; at most {ENVIRONMENT_MAX_BYTES} are taken")


def check_spec(spec: NodeSpec) -> None:
    """What the types cannot say about a node.

    Raises:
        Malformed: what is wrong, naming the field.
    """
    uuids = [device.uuid for device in spec.devices]
    if len(dict.fromkeys(uuids)) != len(uuids):
        raise Malformed("spec.devices: one uuid stands twice")


def check_queue(event: QueueSet) -> None:
    """What the types cannot say about a queue, taken by itself.

    Raises:
        Malformed: what is wrong, naming the field.
    """
    if event.parent == event.queue:
        raise Malformed(f"parent: {event.queue} cannot stand below itself")
    if event.parent and not _is_name(event.parent):
        raise Malformed(f"parent: {event.parent!r} is no name")
    if len(dict.fromkeys(event.users)) != len(event.users):
        raise Malformed("users: one user stands twice")
    for field in ("guarantee", "borrow", "lend"):
        amounts: Amounts = getattr(event, field)
        if amounts.jobs is not None:
            raise Malformed(f"{field}.jobs: only limits count jobs")
    for name, promised, most in _pairs_of(event.guarantee, event.limit):
        if promised > most:
            raise Malformed(f"guarantee.{name} is {promised}, more than limit.{name}, which is {most}")
    for name, lent, promised in _pairs_of(event.lend, event.guarantee):
        if lent > promised:
            raise Malformed(f"lend.{name} is {lent}, more than guarantee.{name}, which is {promised}")


def check_reservation(event: ReservationSet) -> None:
    """What the types cannot say about a reservation, taken by itself.

    Raises:
        Malformed: what is wrong, naming the field.
    """
    if event.nodes:
        if event.count or event.gpus:
            raise Malformed("nodes: it names nodes, and count or gpus too; it takes one or the other")
        if len(dict.fromkeys(event.nodes)) != len(event.nodes):
            raise Malformed("nodes: one node stands twice")
    elif not event.count or not event.gpus:
        raise Malformed("count: it names no nodes, so it needs count pieces of gpus GPUs each, both at least 1")
    ended_us = 0
    for window in event.windows:
        if window.until_us <= window.from_us:
            raise Malformed(f"windows: one ends at {window.until_us}, not after it begins at {window.from_us}")
        if window.from_us < ended_us:
            raise Malformed(f"windows: one begins at {window.from_us}, before the one before it ends at {ended_us}")
        ended_us = window.until_us
    for field in ("queue", "user"):
        named = getattr(event, field)
        if named and not _is_name(named):
            raise Malformed(f"{field}: {named!r} is no name")
    if sum([bool(each) for each in (event.queue, event.user, event.job)]) > 1:
        raise Malformed("queue: it is for one of a queue, a user and a job, or for nobody")


_is_name = re.compile(NAME_PATTERN.removeprefix("^").removesuffix("$")).fullmatch


def _pairs_of(left: Amounts, right: Amounts) -> list[tuple[str, int, int]]:
    """The amounts that both name, by their field."""
    found = []
    for name in ("gpu_milli", "cpu_milli", "memory_mib"):
        pair = getattr(left, name), getattr(right, name)
        if pair[0] is not None and pair[1] is not None:
            found.append((name, *pair))
    by_model = right.gpu_milli_by_model
    found += [(f"gpu_milli_by_model[{m}]", n, by_model[m]) for m, n in left.gpu_milli_by_model.items() if m in by_model]
    return found


def unique(data: bytes | msgspec.Raw) -> Any:
    """The message as plain JSON.

    Raises:
        Malformed: a key stands twice in one object, or it is not what every JSON reader takes.
    """
    try:
        return json.loads(bytes(data), object_pairs_hook=_pairs, parse_constant=_no_constant)
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from None


def _pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in items:
        if key in seen:
            raise Malformed(f"the field {key[:128]!r} stands twice")
        seen[key] = value
    return seen


def _no_constant(text: str) -> NoReturn:
    raise Malformed(f"{text} is no value")


def _accept(shared: Shared, name: str, patterns: Check | None, rules: Callable[[Any], None]) -> None:
    """Check a part for good: the next message that has it needs no check."""
    if patterns is not None and (bad := patterns(shared.part)) is not None:
        _raise((f".{name}{bad[0]}", bad[1]))
    rules(shared.part)
    shared.checked = True


def _raise(bad: tuple[str, str] | None) -> None:
    if bad is not None:
        place, text = bad
        raise Malformed(f"{place.removeprefix('.')}: {text}")


def _check_requirement(place: str, requirement: Requirement) -> None:
    op, values, where = requirement.op, requirement.values, f"{place}[{requirement.key}]"
    if op in ("Exists", "DoesNotExist"):
        if values:
            raise Malformed(f"{where}: {op} takes no values")
    elif not values:
        raise Malformed(f"{where}: {op} needs values")
    elif op in ("Gt", "Lt") and (len(values) != 1 or not re.fullmatch(r"-?[0-9]{1,15}", values[0])):
        raise Malformed(f"{where}: {op} needs one integer")


def sentence(kind: str, error: Exception) -> str:
    """msgspec says `... - at `$.request.priority``: say the field first."""
    text = str(error)
    match = re.search(r"^(.*) - at `\$\.?(.*)`$", text, re.DOTALL)
    return f"{match[2]}: {match[1]}" if match and match[2] else f"{kind}: {text}"
