"""What a running task is given to prove that it belongs to its attempt: to the other parts of its job, and to the gateway.

A gateway makes a secret for each attempt from a key of its own, and says it to the agents of that attempt with the
assignment: it stands in no log and in no answer to anybody else. The agent writes what follows from it into a file in the
task's own folder, which only the task's user may read and which goes with the task; the environment has the file's name
(`MUSTER_CREDENTIALS`). The token and the key of the steps are made from the secret one way: who has one has not the other.
"""

import hmac
import os
from pathlib import Path
from typing import Final

import msgspec

from muster.agent.protocol import AgentTask

NAME: Final = "MUSTER_CREDENTIALS"
FILE: Final = "credentials"
PREFIX: Final = "muster-job_"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the file."""

    gateway: str
    """The token is for this one and no other."""
    token: str
    """What the job's submitter may do, its processes may do with it, until the attempt ends."""
    steps: str
    """The key by which the parts of the job know each other."""


def write(folder: Path, gateway: str, task: AgentTask) -> Path:
    """Write the file of a task; its path. Raises OSError."""
    path = folder / FILE
    made = Credentials(
        gateway=gateway,
        token=token_of(task.job, task.instance, task.attempt, task.secret),
        steps=_derived(task.secret, "steps"),
    )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(made))
    return path


def read() -> Credentials | None:
    """Those of the task in which this runs; None where it runs in none, or was given none."""
    path = os.environ.get(NAME, "")
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Credentials) if path else None
    except (OSError, msgspec.DecodeError):
        return None


def token_of(job: str, instance: int, attempt: int, secret: str) -> str:
    """The token of an attempt."""
    return f"{PREFIX}{job}.{instance}.{attempt}_{_derived(secret, 'token')}"


def attempt_of(token: str) -> tuple[str, int, int] | None:
    """Job, instance and attempt that a token names, which proves nothing; None where it is no token of an attempt."""
    if not token.startswith(PREFIX) or len(token) > 256:
        return None
    rest, _, attempt = token.removeprefix(PREFIX).rpartition("_")[0].rpartition(".")
    job, _, instance = rest.rpartition(".")
    if not (job and instance.isascii() and instance.isdecimal() and attempt.isascii() and attempt.isdecimal()):
        return None
    return job, int(instance), int(attempt)


def _derived(secret: str, what: str) -> str:
    return hmac.digest(secret.encode(), what.encode(), "sha256").hex()
