"""`images.toml`: what the runtime `process`, which has no containers, runs instead of an image.

    [images]
    "pytorch/*" = ["python", "train.py"]   # a program and its arguments
    "busybox" = "echo hello"               # or a line for bash

A pattern is matched against the image as it is written, without its tag, and without `docker.io/`; `*` matches anything. The
first that matches counts.
"""

import re
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase

from muster.doors.errors import DoorError, quoted
from muster.events.jobs import JobRun
from muster.reading.values import decoded

PATTERNS_MAX = 1000
ENTRYPOINT = "MUSTER_ENTRYPOINT"
"""With the value `image` in the environment, the command of a run is only arguments for what the image itself runs."""


class NoCommand(LookupError):
    """There is nothing that could be run: one sentence."""


class Images:
    """The patterns of a file, in its order."""

    def __init__(self, commands: Mapping[str, tuple[str, ...]]) -> None:
        self._commands = dict(commands)

    def find(self, image: str) -> tuple[str, ...] | None:
        """What stands for this image, or None."""
        names = _names(image)
        for pattern, command in self._commands.items():
            if any(fnmatchcase(name, pattern) for name in names):
                return command
        return None

    def command(self, run: JobRun) -> tuple[str, ...]:
        """What a process runs for this run.

        Raises:
            NoCommand: its image matches no pattern, or it has neither an image nor a command.
        """
        if not run.image:
            if not run.command:
                raise NoCommand("the job has neither a command nor an image")
            return run.command
        found = self.find(run.image)
        if found is None:
            raise NoCommand(
                f"the image {quoted(run.image)} is not in images.toml, and a process runs no containers: "
                "add a pattern and its command, or run the job where there is a container runtime"
            )
        if run.environment.get(ENTRYPOINT) == "image":
            return (*found, *run.command)
        return run.command or found


def read_images(data: bytes, file: str) -> Images:
    """The file's patterns.

    Raises:
        DoorError: it is no such file; with the line where it is no TOML.
    """
    text = decoded(data, file)
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        line = re.search(r"at line ([0-9]+)", str(error))
        raise DoorError(file, int(line[1]) if line else 1, "file", f"is not TOML: {quoted(str(error))}") from None
    for key in document:
        if key != "images":
            raise DoorError(file, _line(text, key), key[:128], "is unknown: the file knows the table [images]")
    table = document.get("images", {})
    if not isinstance(table, dict):
        raise DoorError(file, _line(text, "images"), "images", "must be a table of patterns and commands")
    if len(table) > PATTERNS_MAX:
        raise DoorError(file, 1, "images", f"has {len(table)} patterns; at most {PATTERNS_MAX} are taken")
    commands: dict[str, tuple[str, ...]] = {}
    for pattern, command in table.items():
        if isinstance(command, str) and command:
            commands[pattern] = ("bash", "-c", command)
        elif isinstance(command, list) and command and all(isinstance(word, str) for word in command):
            commands[pattern] = tuple(command)
        else:
            right = "must be a program and its arguments, or a line for bash"
            raise DoorError(file, _line(text, pattern), f"images.{pattern[:128]}", right)
    return Images(commands)


def _names(image: str) -> tuple[str, ...]:
    """The image as it may be called: whole, without its digest and tag, without the registry that is usual."""
    plain = image.partition("@")[0]
    head, slash, last = plain.rpartition("/")
    untagged = head + slash + last.partition(":")[0]
    names = [image, plain, untagged]
    for name in (plain, untagged):
        for prefix in ("docker.io/library/", "docker.io/"):
            if name.startswith(prefix):
                names.append(name.removeprefix(prefix))
    return tuple(dict.fromkeys(names))


def _line(text: str, key: str) -> int:
    """The line in which a key most likely stands."""
    match = re.search(rf"""^[ \t\[]*["']?{re.escape(key)}["']?[ \t]*[=\]]""", text, re.MULTILINE)
    return text.count("\n", 0, match.start()) + 1 if match else 1
