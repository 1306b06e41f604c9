"""`sbatch [OPTIONS] [SCRIPT [ARGUMENTS]]`: submits a batch script. Options before the script go before its #SBATCH lines."""

import sys
import time

from muster.cli.gateway_client import Gateway
from muster.cli.output import Failure
from muster.cli.submit import PATIENCE_S, completed, here
from muster.cli.waiting import recorded, wait
from muster.doors.errors import DoorError
from muster.doors.origin import Opened
from muster.doors.slurm import read_script
from muster.doors.slurm_options import OPTIONS as SCRIPT_OPTIONS
from muster.slurm.options import Option, parse
from muster.slurm.say import Refused, note

SCRIPT_MAX_BYTES = 16 * 1024 * 1024
NOT_FOR_THE_DOOR = ("wrap", "wait", "parsable", "test-only", "quiet", "verbose", "help")
USAGE = """sbatch [OPTIONS] [SCRIPT [ARGUMENTS]] | sbatch [OPTIONS] --wrap COMMAND
Submits a batch script; without one, standard input. The options are those of #SBATCH lines; docs/slurm.md says which.
  --parsable   print the id and nothing else     --wait   wait, and return the job's exit status
  --wrap TEXT  submit this line as the script    --test-only   only say what would be submitted
Example: jid=$(sbatch --parsable --nodes=2 train.sbatch)"""


def main(arguments: list[str]) -> int:
    """Submit, and print the id."""
    table = (*(Option(option.name, option.letter, option.value) for option in SCRIPT_OPTIONS), Option("help", "h", "flag"))
    parsed = parse(table, arguments)
    if "help" in parsed.values:
        print(USAGE)
        return 0
    text, name, rest = _script(parsed.values.get("wrap"), parsed.rest)
    options = [
        f"--{key}={value}" if value or _needs(table, key) else f"--{key}"
        for key, value in parsed.values.items()
        if key not in NOT_FOR_THE_DOOR
    ]
    try:
        opened: Opened = read_script(text, name, here(), options, rest)
    except DoorError as error:
        raise Refused(str(error)) from None
    if "quiet" not in parsed.values:
        for notice in opened.notices:
            note("sbatch", str(notice))
    (job,) = (completed(job) for job in opened.jobs)
    if "test-only" in parsed.values:
        tasks = sum(group.count for group in job.request.groups)
        note(
            "sbatch",
            f"{job.name} would be submitted to the queue {job.queue} with {tasks} parts of nodes at {time.strftime('%H:%M:%S')}",
        )
        return 0
    try:
        with Gateway(patience_s=PATIENCE_S) as gateway:
            (submission,) = gateway.submit([job])
            if submission.state == "refused":
                raise Refused(submission.reason)
            print(submission.job if "parsable" in parsed.values else f"Submitted batch job {submission.job}", flush=True)
            if "wait" not in parsed.values:
                return 0
            recorded(gateway, [submission])
            return wait(gateway, [submission.job])
    except Failure as failure:
        raise Refused(str(failure)) from None


def _script(wrapped: str | None, rest: list[str]) -> tuple[str, str, list[str]]:
    """The text of the script, its name, and its arguments."""
    if wrapped is not None:
        if rest:
            raise Refused("--wrap and a script exclude each other")
        return f"#!/bin/sh\n# This script was created by sbatch --wrap.\n{wrapped}\n", "wrap", []
    try:
        if rest:
            with open(rest[0], "rb") as file:
                data = file.read(SCRIPT_MAX_BYTES + 1)
        else:
            data = sys.stdin.buffer.read(SCRIPT_MAX_BYTES + 1)
    except OSError as error:
        raise Refused(f"cannot read {rest[0] if rest else 'standard input'}: {error.strerror}") from None
    if b"\0" in data:
        raise Refused("the script holds NUL characters: it is no text")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # a shell takes any bytes
    return text, rest[0] if rest else "sbatch", rest[1:]


def _needs(table: tuple[Option, ...], name: str) -> bool:
    return next(option.value for option in table if option.name == name) == "needs"
