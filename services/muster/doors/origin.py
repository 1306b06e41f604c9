"""Where a file comes from, and what comes out of it."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from muster.doors.errors import KEY_MAX, DoorError, Notice, quoted
from muster.events.base import BODY_MAX_BYTES, NAME_PATTERN
from muster.events.codec import Malformed, decode_input, encode_entry
from muster.events.jobs import JobRun, JobSubmitted

NOTICES_MAX = 1000

_NAME = re.compile(NAME_PATTERN.removeprefix("^").removesuffix("$"))


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Who hands a file in, and from where. Everything that a door may know besides the bytes."""

    new_id: Callable[[], str]
    """Makes the id of one job, a UUIDv7."""
    user: str
    queue: str = "default"
    """For jobs that name none."""
    submitted_us: int = 0
    directory: str = ""
    """Where the submitter stands: relative paths of Slurm scripts start here."""
    host: str = ""
    environment: Mapping[str, str] = {}
    """What `--export` takes from. Leave it empty and only what a file itself says is exported."""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds: jobs in its order, and what is not honoured."""

    jobs: tuple[JobSubmitted, ...]
    notices: tuple[Notice, ...] = ()


class Notices:
    """Collects notices while a file is read; each is said once a place."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._said: dict[Notice, None] = {}
        self._more = self._last = 0

    def add(self, line: int, key: str, sentence: str) -> None:
        """Name something. After `NOTICES_MAX` only how many more there are is kept."""
        if len(self._said) < NOTICES_MAX:
            self._said.setdefault(Notice(file=self.file, line=line, key=key[-KEY_MAX:], sentence=sentence))
        else:
            self._more += 1
            self._last = line

    def all(self) -> tuple[Notice, ...]:
        """In the order of the file."""
        found = sorted(self._said, key=lambda notice: notice.line)
        if self._more:
            found.append(
                Notice(file=self.file, line=self._last, key="file", sentence=f"has {self._more} more that is not honoured")
            )
        return tuple(found)


def is_name(text: str) -> bool:
    """Whether it can be the name of a job, a user or a queue."""
    return _NAME.fullmatch(text) is not None


def slug(text: str) -> str:
    """The text as a name: lower case, what a name may not hold becomes `-`, cut at 63 characters; may be empty."""
    return re.sub(r"[^a-z0-9.]+", "-", text[:1024].lower()).strip("-.")[:63].strip("-.")


def submission(fields: Mapping[str, Any], file: str, line: int, key: str) -> JobSubmitted:
    """The job, once it is certain that the scheduler will take it.

    Raises:
        DoorError: a bound of the types or a rule of the edge is broken; the sentence names the field.
    """
    try:
        job = JobSubmitted(**fields)
        if any("\0" in text for text in _texts(job.run)):
            raise DoorError(file, line, key, "holds a NUL character in what is to be run; a program cannot be given one")
        data = encode_entry(job)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise DoorError(file, line, key, f"holds text that cannot be written down: {quoted(str(error))}") from None
    if len(data) > BODY_MAX_BYTES:
        raise DoorError(file, line, key, f"has {len(data)} bytes as a submission; at most {BODY_MAX_BYTES} are taken")
    try:
        event, _ = decode_input(data)
    except Malformed as error:
        raise DoorError(file, line, key, f"cannot be submitted: {_clean(str(error))}") from None
    if not isinstance(event, JobSubmitted):
        raise AssertionError(f"a submission was read back as {type(event).__name__}")
    return event


def _texts(run: JobRun) -> Iterator[str]:
    yield from run.command
    for name, value in run.environment.items():
        yield name
        yield value
    yield from (run.directory, run.output, run.error, run.image)


def _clean(text: str) -> str:
    return text if len(text) <= 400 else text[:400] + "..."
