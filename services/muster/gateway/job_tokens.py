"""Tokens of running jobs: what is done inside of a job is done with its submitter's rights, until the attempt ends.

A secret for each attempt is made from one key, which stands in `jobs.key` of the data folder for its owner alone: so nothing
of it is kept, and every gateway on that folder makes the same. Agents are told it with the assignment, and hand on what
follows from it (`muster.agent.credentials`). The log has neither: of a job that was submitted with a token it says the
token's id, and that token's rights are those of the job, as long as it is not revoked.
"""

import fcntl
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from muster.agent.credentials import attempt_of, token_of
from muster.cluster.jobs import Job
from muster.gateway.live import Live
from muster.gateway.tokens import Token, Tokens, TokensDamaged

FILE: Final = "jobs.key"
KEY_BYTES: Final = 32
SUBMITTED_WITH: Final = "MUSTER_SUBMITTED_WITH"
"""In the environment of a job: the id of the token with which it was submitted. The gateway sets it, and nobody else."""


class Secrets:
    """The secrets of attempts."""

    def __init__(self, folder: Path) -> None:
        """Take the key of this data folder, or make one.

        Raises:
            TokensDamaged: the file is none.
        """
        self._key = _key(folder / FILE)

    def of(self, job: str, instance: int, attempt: int) -> str:
        """The secret of an attempt."""
        return hmac.digest(self._key, f"{job}.{instance}.{attempt}".encode(), "sha256").hex()


class JobTokens:
    """What a token of a job grants."""

    def __init__(self, live: Live, tokens: Tokens, secrets: Secrets) -> None:
        self._live = live
        self._tokens = tokens
        self._secrets = secrets

    def find(self, sent: str) -> Token | None:
        """The rights of whoever sends this; None where it is no token of an attempt that lasts."""
        named = attempt_of(sent)
        if named is None or not hmac.compare_digest(token_of(*named, self._secrets.of(*named)).encode(), sent.encode()):
            return None
        job, index, number = named
        found = self._live.recorded(job)
        if found is None or index >= len(found[1].instances):
            return None
        attempt = found[1].instances[index].attempt
        if attempt is None or attempt.number != number:
            return None
        return self._rights(found[1])

    def _rights(self, job: Job) -> Token | None:
        id = job.run.environment.get(SUBMITTED_WITH, "")
        submitter = self._tokens.by_id(id) if id else None
        if id and submitter is None:
            return None  # it was revoked
        if submitter is not None and submitter.role == "submit":
            return submitter
        # An operator, or somebody on loopback, handed it in for this user: its processes are not operators for that.
        priority_max = max(0, job.request.priority)
        return Token(
            id=id, role="submit", hash="0" * 64, created_us=0, user=job.user, queues=(job.queue,), priority_max=priority_max
        )


def _key(path: Path) -> bytes:
    """The key, which is made once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.with_suffix(".key-lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            partial = path.with_suffix(".partial")
            file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(file, "wb") as writer:
                writer.write(secrets.token_bytes(KEY_BYTES))
                writer.flush()
                os.fsync(writer.fileno())
            partial.replace(path)
        key = path.read_bytes()
    finally:
        os.close(lock)
    if len(key) != KEY_BYTES:
        raise TokensDamaged(f"{path} holds no key; remove it: jobs that run then cannot submit, and srun in them finds no nodes")
    return key
