"""Tokens: who may do what. Only hashes are kept, in `tokens.json` of the data folder, readable by its owner alone.

A token is `muster_ID_SECRET` with 256 random bits of secret, so a plain hash is enough: nobody can guess it. The gateway
reads the file again when it changed, so what was revoked is refused within a second.
"""

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from muster.events.base import Name
from muster.log.errors import OperatingError

FILE: Final = "tokens.json"
PREFIX: Final = "muster"
LOOK_S: Final = 0.5
"""So often the gateway looks whether the file changed."""

Role = Literal["submit", "operate", "read", "agent"]


class TokensDamaged(OperatingError):
    """The file cannot be read as tokens."""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a token."""

    id: str
    role: Role
    hash: Annotated[str, Meta(min_length=64, max_length=64)]
    """SHA-256 of the secret."""
    created_us: int
    name: str = ""
    """For people: whose it is."""
    user: Name | None = None
    """With `submit`: as whom, and whose jobs it may see and cancel."""
    queues: tuple[str, ...] = ()
    """With `submit`: to these queues only; empty means all."""
    nodes: tuple[str, ...] = ()
    """With `agent`: for these nodes only; empty means all."""
    priority_max: int = 100
    """With `submit`: no job of a higher priority."""
    jobs_max: int = 10_000
    """With `submit`: no more jobs of its user that are not over."""
    rate: int = 200
    """Requests in a second, and twice as many at once; agents report for their whole node and are not bound by it."""


class Tokens:
    """The tokens of one data folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._read: dict[str, Token] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._looked = -LOOK_S

    def all(self) -> list[Token]:
        """Every token, the oldest first.

        Raises:
            TokensDamaged: the file is none.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        try:
            return msgspec.json.decode(data, type=list[Token])
        except msgspec.DecodeError as error:
            raise TokensDamaged(f"{self.path} holds no tokens: {error}; mend it or remove it") from error

    def create(
        self,
        role: Role,
        *,
        name: str = "",
        user: str | None = None,
        queues: tuple[str, ...] = (),
        nodes: tuple[str, ...] = (),
        priority_max: int = 100,
        jobs_max: int = 10_000,
        rate: int = 200,
    ) -> tuple[Token, str]:
        """Make a token; the second of the pair is what its owner sends, and is kept nowhere."""
        secret = secrets.token_urlsafe(32)
        token = Token(
            id=secrets.token_hex(6),
            role=role,
            hash=_hash(secret),
            created_us=time.time_ns() // 1000,
            name=name,
            user=user,
            queues=queues,
            nodes=nodes,
            priority_max=priority_max,
            jobs_max=jobs_max,
            rate=rate,
        )
        with self._changing() as tokens:
            tokens.append(token)
        return token, f"{PREFIX}_{token.id}_{secret}"

    def revoke(self, id: str) -> bool:
        """Take a token away. Whether there was one."""
        with self._changing() as tokens:
            kept = [token for token in tokens if token.id != id]
            found = len(kept) != len(tokens)
            tokens[:] = kept
        return found

    def by_id(self, id: str) -> Token | None:
        """The token with this id, unless it was revoked."""
        self._refresh()
        return self._read.get(id)

    def find(self, sent: str) -> Token | None:
        """The token that somebody sent, if it is one."""
        self._refresh()
        parts = sent.split("_", 2)
        if len(parts) != 3 or parts[0] != PREFIX:
            return None
        token = self._read.get(parts[1])
        if token is None or not hmac.compare_digest(token.hash, _hash(parts[2])):
            return None
        return token

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        try:
            found = self.path.stat()
            stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
        except FileNotFoundError:
            self._read, self._stamp = {}, None
            return
        if stamp != self._stamp:
            self._read = {token.id: token for token in self.all()}
            self._stamp = stamp

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        """The tokens, to be changed: one at a time, and written whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = self.all()
            yield tokens
            partial = self.path.with_suffix(".partial")
            file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(file, "wb") as writer:
                writer.write(msgspec.json.format(msgspec.json.encode(tokens), indent=1) + b"\n")
                writer.flush()
                os.fsync(writer.fileno())
            partial.replace(self.path)
        finally:
            os.close(lock)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
