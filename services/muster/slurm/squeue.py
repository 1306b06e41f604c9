"""`squeue`: jobs that are not over, one line an element of an array, with Slurm's columns and formats.

A job's id here is a UUID, so the column JOBID is wider than Slurm's.
"""

import os
import time

import msgspec

from muster.cli.gateway_client import IDS
from muster.cli.who import user_here
from muster.doors.hostlist import compress
from muster.doors.names import DOOR, element_indices
from muster.doors.origin import slug
from muster.gateway.shown import ElementRow, JobLine
from muster.slurm.cell import find_job, open_gateway, split_element
from muster.slurm.formats import Field, print_long, print_rows
from muster.slurm.options import FLAG, Option, parse
from muster.slurm.say import Refused, note

OPTIONS = (
    Option("array", "r", FLAG, "-"),
    Option("all", "a", FLAG, "-"),
    Option("format", "o"),
    Option("Format", "O"),
    Option("help", "", FLAG),
    Option("iterate", "i"),
    Option("job", "j"),
    Option("jobs"),
    Option("long", "l", FLAG),
    Option("me", "", FLAG),
    Option("name", "n"),
    Option("nodelist", "w"),
    Option("noheader", "h", FLAG),
    Option("partition", "p"),
    Option("sort", "S"),
    Option("start", "", FLAG, "when a job will start is not foretold"),
    Option("states", "t"),
    Option("user", "u"),
    Option("users"),
    Option("verbose", "v", FLAG, "-"),
)
USUAL = "%.36i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.36i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
STATES = {
    "pending": ("PD", "PENDING"),
    "starting": ("CF", "CONFIGURING"),
    "running": ("R", "RUNNING"),
    "stopping": ("CG", "COMPLETING"),
    "finished": ("CD", "COMPLETED"),
    "failed": ("F", "FAILED"),
    "cancelled": ("CA", "CANCELLED"),
    "rejected": ("F", "FAILED"),
}
OVER = ("finished", "failed", "cancelled", "rejected")
LONG_NAMES = {
    "jobid": "i",
    "jobarrayid": "i",
    "partition": "P",
    "name": "j",
    "username": "u",
    "statecompact": "t",
    "state": "T",
    "timeused": "M",
    "timelimit": "l",
    "numnodes": "D",
    "numtasks": "n",
    "reasonlist": "R",
    "reason": "r",
    "nodelist": "N",
    "prioritylong": "Q",
    "submittime": "V",
    "starttime": "S",
    "command": "o",
    "workdir": "Z",
    "exit_code": "e",
}
USAGE = """squeue [-u USER] [--me] [-j ID,...] [-n NAME] [-p PARTITION] [-t STATE,...] [-w NODE] [-h] [-l]
       [-o FORMAT | -O NAMES] [-S SORT]
Jobs that are not over; with -t all or a state, others that are remembered too.
Example: squeue -h -u "$USER" -o "%i %T\""""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a job."""

    job: JobLine
    element: ElementRow
    index: int
    now_us: int

    @property
    def id(self) -> str:
        """As Slurm writes it: an element of an array has its number behind the id."""
        return f"{self.job.job.job}_{self.index}" if self.job.array else self.job.job.job

    @property
    def nodes(self) -> int:
        """On how many nodes it is, as a Slurm script counts them; other jobs have their tasks for it until they are bound."""
        row = self.job.job
        return row.tasks if self.job.door.get(DOOR) == "slurm" else len(self.element.nodes) or row.tasks


def main(arguments: list[str]) -> int:
    """Print the queue."""
    parsed = parse(OPTIONS, arguments, interleaved=True)
    values = parsed.values
    if "help" in values:
        print(USAGE)
        return 0
    for sentence in parsed.ignored:
        note("squeue", sentence)
    pause_s = values.get("iterate")
    if pause_s is not None and (not pause_s.isdigit() or not int(pause_s)):
        raise Refused(f"--iterate must be a whole number of seconds, not {pause_s!r}")
    while True:
        lines = _sorted(_lines(values), values.get("sort", ""))
        heading = "noheader" not in values
        if "Format" in values:
            print_long(values["Format"], FIELDS, lines, heading, LONG_NAMES)
        else:
            print_rows(
                values.get("format", os.environ.get("SQUEUE_FORMAT", LONG if "long" in values else USUAL)), FIELDS, lines, heading
            )
        if pause_s is None:
            return 0
        time.sleep(int(pause_s))


def _lines(values: dict[str, str]) -> list[Line]:
    users = [slug(name) for name in _list(user_here() if "me" in values else values.get("user", values.get("users", "")))]
    ids = _list(values.get("job", values.get("jobs", "")))
    names = [slug(name) for name in _list(values.get("name", ""))]
    queues = [slug(name) for name in _list(values.get("partition", ""))]
    states = _states(values.get("states", ""))
    nodes = _list(values.get("nodelist", ""))
    found: list[Line] = []
    over = any(state in OVER for state in states)
    with open_gateway() as gateway:
        wanted: dict[str, list[int | None]] = {}
        for text in ids:
            wanted.setdefault(find_job(gateway, text), []).append(split_element(text)[1])
        for part in _parts(list(wanted)):
            known = gateway.elements(over, id=",".join(part), user=_only(users), name=_only(names), queue=_only(queues))
            for job in known.jobs:
                row = job.job
                if (users and row.user not in users) or (names and row.name not in names) or (queues and row.queue not in queues):
                    continue
                elements = wanted.get(row.job, [None])
                for line in lines_of(job, known.at_us):
                    if line.element.state not in states or (None not in elements and line.index not in elements):
                        continue
                    if not nodes or any(node in nodes for node in line.element.nodes):
                        found.append(line)
    return found


def lines_of(job: JobLine, now_us: int) -> list[Line]:
    """The lines of a job; those of an array one an element."""
    indices = element_indices(job.door)
    return [
        Line(
            job=job,
            element=element,
            index=indices[element.instance] if element.instance < len(indices) else element.instance,
            now_us=now_us,
        )
        for element in job.elements
    ]


def _only(values: list[str]) -> str:
    """What the gateway filters by itself: one value."""
    return values[0] if len(values) == 1 else ""


def _parts(ids: list[str]) -> list[list[str]]:
    """As many as one request takes; one request for all jobs where none is named."""
    return [ids[first : first + IDS] for first in range(0, len(ids), IDS)] or [[]]


def _states(text: str) -> frozenset[str]:
    if not text:
        return frozenset(state for state in STATES if state not in OVER)
    found: set[str] = set()
    for part in _list(text):
        fitting = [state for state, names in STATES.items() if part.upper() in (*names, state.upper())]
        if part.lower() == "all":
            fitting = list(STATES)
        if not fitting:
            raise Refused(f"there is no state {part!r}; there are {', '.join(names[1] for names in STATES.values())}")
        found.update(fitting)
    return frozenset(found)


def _sorted(lines: list[Line], order: str) -> list[Line]:
    for key in reversed([part.strip() for part in order.split(",") if part.strip()]):
        letter = key.lstrip("+-")
        if letter not in FIELDS:
            raise Refused(f"--sort has {letter!r}, which is not supported")
        value = FIELDS[letter][1]
        lines = sorted(lines, key=lambda line: _key(value(line)), reverse=key.startswith("-"))
    return lines


def _key(value: object) -> tuple[int, str]:
    return (value, "") if isinstance(value, int) else (0, str(value))


def _list(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def span(micros: int) -> str:
    """As Slurm writes times: `3:07`, `1:02:03`, `2-01:00:00`."""
    seconds = max(0, micros // 1_000_000)
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds % 60:02}"
    return f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"


def _started(line: Line) -> int:
    return line.element.started_us


def _used(line: Line) -> str:
    started = _started(line)
    return span(line.now_us - started) if started else "0:00"


def _left(line: Line) -> str:
    limit_us = line.job.time_limit_us
    return span(limit_us - (line.now_us - _started(line) if _started(line) else 0)) if limit_us else "UNLIMITED"


def _gres(line: Line) -> str:
    row = line.job.job
    return f"gres/gpu:{row.gpus // max(1, row.tasks)}" if row.gpus else "N/A"


def _reason(line: Line) -> str:
    if line.element.state == "pending":
        return "BeginTime" if line.element.not_before_us > line.now_us else "Resources"
    return line.element.reason or "None"


def _where(line: Line) -> str:
    if line.element.state in ("running", "starting", "stopping"):
        return compress(line.element.nodes)
    return f"({_reason(line)})"


def _code(line: Line) -> int:
    return 128 - line.element.code if line.element.code < 0 else line.element.code


def _instant(at_us: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_us // 1_000_000)) if at_us else "N/A"


FIELDS: dict[str, Field[Line]] = {
    "i": ("JOBID", lambda line: line.id),
    "A": ("JOBID", lambda line: line.job.job.job),
    "F": ("ARRAY_JOB_ID", lambda line: line.job.job.job),
    "K": ("ARRAY_TASK_ID", lambda line: line.index if line.job.array else "N/A"),
    "P": ("PARTITION", lambda line: line.job.door.get("SLURM_JOB_PARTITION", line.job.job.queue)),
    "j": ("NAME", lambda line: line.job.door.get("SLURM_JOB_NAME", line.job.job.name)),
    "u": ("USER", lambda line: line.job.job.user),
    "U": ("USER", lambda line: line.job.job.user),
    "a": ("ACCOUNT", lambda line: line.job.job.queue),
    "t": ("ST", lambda line: STATES[line.element.state][0]),
    "T": ("STATE", lambda line: STATES[line.element.state][1]),
    "M": ("TIME", _used),
    "l": ("TIME_LIMIT", lambda line: span(line.job.time_limit_us) if line.job.time_limit_us else "UNLIMITED"),
    "L": ("TIME_LEFT", _left),
    "D": ("NODES", lambda line: line.nodes),
    "n": ("TASKS", lambda line: line.job.job.tasks),
    "C": ("CPUS", lambda line: line.job.cpu_milli // 1000),
    "b": ("TRES_PER_NODE", _gres),
    "R": ("NODELIST(REASON)", _where),
    "r": ("REASON", _reason),
    "N": ("NODELIST", lambda line: compress(line.element.nodes)),
    "B": ("EXEC_HOST", lambda line: line.element.nodes[0] if line.element.nodes else "n/a"),
    "p": ("PRIORITY", lambda line: line.job.job.priority),
    "Q": ("PRIORITY", lambda line: line.job.job.priority),
    "q": ("QOS", lambda _: "normal"),
    "V": ("SUBMIT_TIME", lambda line: _instant(line.job.job.submitted_us)),
    "S": ("START_TIME", lambda line: _instant(_started(line))),
    "e": ("EXIT_CODE", _code),
    "o": ("COMMAND", lambda line: line.job.command),
    "Z": ("WORK_DIR", lambda line: line.job.directory),
    "k": ("COMMENT", lambda _: "(null)"),
}
