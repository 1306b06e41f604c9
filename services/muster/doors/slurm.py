"""Slurm batch scripts: the `#SBATCH` lines become a request, the script becomes what the first task runs.

A script that asks for N nodes becomes a gang of N tasks, each as large as one node's part. The first, alone in the group
`batch`, runs the script under its interpreter and decides the outcome; the others, the group `node`, hold their parts until
`srun` starts steps on them. What srun and the script need to know stands in the environment; what only the agent can know
(`SLURM_JOB_ID`, `SLURM_JOB_NODELIST`, `SLURM_NODEID` ...) it adds. docs/slurm.md says all of it.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeVar

import msgspec

from muster.doors.arrays import BadArray, read_array, write_array
from muster.doors.dependencies import slurm_after
from muster.doors.errors import DoorError, quoted
from muster.doors.hostlist import BadHostlist, expand
from muster.doors.names import ARRAY, DOOR
from muster.doors.origin import Notices, Opened, Origin, is_name, slug, submission
from muster.doors.slurm_layout import Layout, read_layout
from muster.doors.slurm_options import Said, read_words, script_options
from muster.doors.slurm_places import read_constraints, read_features, read_prefers, with_features
from muster.doors.slurm_values import BadValue, gpu_models, read_deadline_us, read_time_us
from muster.events.jobs import GroupRequest, JobRequest, JobRun, JobSubmitted, Requirement
from muster.reading.catalogue import find_slice

HOST_LABEL = "kubernetes.io/hostname"
"""Agents set it to the name of their node."""
GRACE_US = 30_000_000
"""Slurm's KillWait: from SIGTERM to SIGKILL."""
SCRIPT_MAX_BYTES = 131_071
"""What Linux takes as one argument of a program."""
VALUES_MAX = 64
NICE_USUAL = 100

_SHELLS = ("bash", "sh", "dash", "zsh", "ksh", "mksh", "ash", "rbash")
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_DIRECTIVE = re.compile(r"^#SBATCH\b", re.MULTILINE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Value = TypeVar("Value")


def is_script(text: str) -> bool:
    """Whether a file is a script: it begins with `#!`, or has a line that begins with `#SBATCH`."""
    return text.startswith("#!") or _DIRECTIVE.search(text) is not None


def read_script(text: str, file: str, origin: Origin, options: Sequence[str] = (), arguments: Sequence[str] = ()) -> Opened:
    """The job of a batch script. `options` are those of sbatch's command line, which win; `arguments` go to the script.

    Raises:
        DoorError: an option makes no sense, or the script cannot be run; with the place.
    """
    notices = Notices(file)
    if "\r\n" in text:
        line = text.count("\n", 0, text.index("\r\n")) + 1
        raise DoorError(file, line, "script", "has DOS line breaks, which no shell takes: dos2unix makes it right")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DoorError(file, line, "script", "holds a NUL character, and is no text that a shell could be given")
    said = script_options(text, file, notices)
    for one in read_words(list(options), "command line", 1, notices):
        said[one.option.name] = one
    for one in said.values():
        if one.option.why_not and not _holds(one):
            notices.add(
                one.line, one.spelled, f"{quoted(one.value) + ' ' if one.value else ''}is not honoured: {one.option.why_not}"
            )
    command = _command(text, file, notices, arguments)
    return Opened(jobs=(_job(said, command, file, origin, notices),), notices=notices.all())


def _job(said: dict[str, Said], command: tuple[str, ...], file: str, origin: Origin, notices: Notices) -> JobSubmitted:
    layout = read_layout(said, notices)
    given = said["job-name"].value if "job-name" in said else PurePosixPath(file).name
    name = slug(given)
    if not name:
        if "job-name" in said:
            raise said["job-name"].error(f"must hold a letter or a digit, not {quoted(given)}")
        name = "sbatch"
    queue, partition = _queue(said, origin, notices)
    indices, at_once = _array(said)
    directory = _directory(said, origin)
    usual_output = "slurm-%j.out" if indices is None else "slurm-%A_%a.out"
    environment = _exported(said, origin, notices)
    environment |= {DOOR: "slurm", "SLURM_JOB_NAME": given, "SLURM_JOB_PARTITION": partition}
    environment |= layout.environment
    environment |= _array_variables(indices)
    for variable, value in (("SLURM_SUBMIT_DIR", origin.directory), ("SLURM_SUBMIT_HOST", origin.host)):
        if value:
            environment[variable] = value
    for option, variable in (("account", "SLURM_JOB_ACCOUNT"), ("qos", "SLURM_JOB_QOS"), ("export", "SLURM_EXPORT_ENV")):
        if option in said:
            environment[variable] = said[option].value
    request = JobRequest(
        groups=_groups(layout, said, notices),
        constraints=read_constraints(said, layout, notices),
        priority=_priority(said, notices),
        array=len(indices) if indices is not None else None,
        at_once=at_once or msgspec.UNSET,
        after=(slurm_after(said["dependency"], notices) if "dependency" in said else ()) or msgspec.UNSET,
        time_limit_us=_read(said["time"], read_time_us) if "time" in said else None,
        deadline_us=_read(said["deadline"], lambda text: read_deadline_us(text, origin.submitted_us))
        if "deadline" in said
        else msgspec.UNSET,
        grace_us=GRACE_US,
        success="batch" if layout.nodes > 1 else "",
        labels={f"slurm.{key}": said[key].value[:128] for key in ("account", "comment", "qos") if key in said},
    )
    run = JobRun(
        command=command,
        environment=environment,
        directory=directory,
        output=_file_name(said, "output", notices) or usual_output,
        error=_file_name(said, "error", notices),
    )
    fields = {
        "job": origin.new_id(),
        "name": name,
        "user": origin.user,
        "queue": queue,
        "submitted_us": origin.submitted_us,
        "request": request,
        "run": run,
    }
    return submission(fields, file, 1, "script")


def _holds(one: Said) -> bool:
    """Whether an option that is not honoured asks for what is so anyway."""
    usual = {"open-mode": ("a", "append"), "mail-type": ("NONE",), "distribution": ("block",), "propagate": ("NONE",)}
    return one.value.lower() in [value.lower() for value in usual.get(one.option.name, ())]


def _read(said: Said, reader: Callable[[str], Value]) -> Value:
    try:
        return reader(said.value)
    except (BadValue, BadArray, BadHostlist) as error:
        raise said.error(f"{error}; it is {quoted(said.value)}") from None


def _groups(layout: Layout, said: dict[str, Said], notices: Notices) -> tuple[GroupRequest, ...]:
    each: dict[str, Any] = {
        "cpu_milli": layout.cpus * 1000,
        "memory_mib": layout.memory_mib,
        "disk_mib": layout.disk_mib,
        "gpus": layout.gpus,
        "selector": _selector(said),
        "prefers": read_prefers(said, notices),
    }
    model, profile = find_slice(layout.model)
    each = with_features(each, read_features(said, bool(layout.gpus), notices), gpu_models(model))
    if profile:  # it says the memory too
        each |= {"gpu_profile": profile, "gpu_memory_mib": 0}
    groups = [GroupRequest(name="batch", count=1, min=1, **each)]
    if layout.nodes > 1:
        groups.append(GroupRequest(name="node", count=layout.nodes - 1, min=layout.nodes_min - 1, **each))
    return tuple(groups)


def _queue(said: dict[str, Said], origin: Origin, notices: Notices) -> tuple[str, str]:
    """The queue, and the partition as it was written."""
    if "partition" not in said:
        return origin.queue, origin.queue
    one = said["partition"]
    names = [name.strip() for name in one.value.split(",") if name.strip()]
    if not names or not is_name(slug(names[0])):
        raise one.error(f"must be the name of a partition, not {quoted(one.value)}")
    if len(names) > 1:
        notices.add(one.line, one.spelled, f"names {len(names)} partitions: the job waits in the queue {slug(names[0])} only")
    return slug(names[0]), names[0]


def _array(said: dict[str, Said]) -> tuple[list[int] | None, int]:
    """The indices, and how many of them may run at once; 0 where all may."""
    if "array" not in said:
        return None, 0
    indices, at_once = _read(said["array"], read_array)
    return indices, min(at_once, len(indices))


def _array_variables(indices: list[int] | None) -> dict[str, str]:
    """What is the same for all elements. `MUSTER_ARRAY` tells the agent which index each element has."""
    if indices is None:
        return {}
    steps = {after - before for before, after in itertools.pairwise(indices)}
    return {
        ARRAY: write_array(indices),
        "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
        "SLURM_ARRAY_TASK_MAX": str(indices[-1]),
        "SLURM_ARRAY_TASK_MIN": str(indices[0]),
        "SLURM_ARRAY_TASK_STEP": str(steps.pop()) if len(steps) == 1 else "1",
    }


def _directory(said: dict[str, Said], origin: Origin) -> str:
    if "chdir" not in said:
        return origin.directory
    path = said["chdir"].value
    if path in ("", "."):
        return origin.directory
    return str(PurePosixPath(origin.directory, path)) if origin.directory else path


def _file_name(said: dict[str, Said], key: str, notices: Notices) -> str:
    if key not in said:
        return ""
    one = said[key]
    if one.value.startswith("=") and len(one.spelled) == 2:
        notices.add(one.line, one.spelled, f"names the file {quoted(one.value)}, as sbatch reads it: a short option takes no =")
    if not one.value:
        raise one.error("must be the name of a file")
    return "/dev/null" if one.value.lower() == "none" else one.value


def _selector(said: dict[str, Said]) -> tuple[Requirement, ...]:
    found = []
    if "nodelist" in said and said["nodelist"].value:
        hosts = list(dict.fromkeys(_read(said["nodelist"], _hosts)))
        if len(hosts) > VALUES_MAX:
            raise said["nodelist"].error(f"names {len(hosts)} nodes; at most {VALUES_MAX} can be named")
        found.append(Requirement(key=HOST_LABEL, op="In", values=tuple(hosts)))
    if "exclude" in said and said["exclude"].value:
        hosts = list(dict.fromkeys(_read(said["exclude"], _hosts)))
        if len(hosts) > 16 * VALUES_MAX:
            raise said["exclude"].error(f"names {len(hosts)} nodes; at most {16 * VALUES_MAX} can be named")
        for start in range(0, len(hosts), VALUES_MAX):
            found.append(Requirement(key=HOST_LABEL, op="NotIn", values=tuple(hosts[start : start + VALUES_MAX])))
    return tuple(found)


def _hosts(text: str) -> list[str]:
    if "/" in text:
        raise BadHostlist("names a file of nodes, which is not read: name the nodes")
    hosts = expand(text)
    if not hosts:
        raise BadHostlist("names no node")
    return hosts


def _priority(said: dict[str, Said], notices: Notices) -> int:
    """`--priority` is the priority; `--nice` lowers it by so much."""
    priority = 0
    if "priority" in said:
        one = said["priority"]
        if one.value.upper() == "TOP":
            notices.add(one.line, one.spelled, "TOP is not honoured: say a number")
        else:
            priority = _integer(one, one.value)
    if "nice" in said:
        priority -= _integer(said["nice"], said["nice"].value) if said["nice"].value else NICE_USUAL
    return max(-1_000_000_000, min(1_000_000_000, priority))


def _integer(said: Said, text: str) -> int:
    if not re.fullmatch(r"[-+]?[0-9]{1,10}", text):
        raise said.error(f"must be a whole number, not {quoted(text)}")
    return int(text)


def _exported(said: dict[str, Said], origin: Origin, notices: Notices) -> dict[str, str]:
    """The variables that `--export` names: ALL (also where it is not said), NONE, or a list of names and of NAME=value."""
    if "export" not in said:
        return dict(origin.environment)
    one = said["export"]
    found: dict[str, str] = {}
    for part in _list(one.value):
        name, equals, value = part.partition("=")
        if part.upper() == "ALL":
            found = dict(origin.environment) | found
        elif part.upper() in ("NONE", "NIL"):
            continue
        elif not _VARIABLE.fullmatch(name):
            raise one.error(f"must be ALL, NONE, or a list of NAME and NAME=value; it has {quoted(part)}")
        elif equals:
            found[name] = value
        elif name in origin.environment:
            found[name] = origin.environment[name]
        elif origin.environment:
            notices.add(one.line, one.spelled, f"{name} is not set where the job is submitted, and is not exported")
    return found


def _list(text: str) -> list[str]:
    """At the commas outside of single quotes: sbatch lets a value hold commas so."""
    parts = re.findall(r"(?:[^,']|'[^']*')+|'", text)
    return [part.replace("'", "").strip() for part in parts if part.strip()]


def _command(text: str, file: str, notices: Notices, arguments: Sequence[str]) -> tuple[str, ...]:
    """What runs the script. It is handed to its interpreter as text, so that no file has to be where the task runs."""
    if not text.strip():
        raise DoorError(file, 1, "script", "is empty: it must hold commands")
    size = len(text.encode("utf-8", "replace"))
    if size > SCRIPT_MAX_BYTES:
        raise DoorError(file, 1, "script", f"has {size} bytes; at most {SCRIPT_MAX_BYTES} are taken")
    first = text.partition("\n")[0]
    words = first[2:].split() if first.startswith("#!") else []
    if not first.startswith("#!"):
        notices.add(1, "script", "does not begin with #! and sbatch would not take it: it is run by bash")
    if words and PurePosixPath(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S" and not re.fullmatch(r"[A-Za-z_]+=.*", word)]
    interpreter = words or ["bash"]
    name = PurePosixPath(interpreter[0]).name
    if name not in _SHELLS and not _PYTHON.fullmatch(name):
        shells = ", ".join(_SHELLS[:5])
        raise DoorError(file, 1, "script", f"is for {quoted(name)}; scripts for {shells} and python are run")
    rest = ["slurm_script"] if name in _SHELLS else []
    return (*interpreter, "-c", text, *rest, *arguments)
