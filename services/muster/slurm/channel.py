"""How the parts of one job speak over TCP: frames, and a proof that the other side has the attempt's secret.

The secret is in the task's credentials (`muster.agent.credentials`): a file that only the task's user may read.
The side that listens sends a nonce; the side that connects answers with one message and its HMAC (SHA-256, key: the secret;
over the nonce and the message). Who cannot is not heard, and the secret never travels. What follows are frames:
a kind (1 byte), the number of a task (4), a length (4), so many bytes. Nothing is encrypted: a job's network is trusted not
to be read, as with Slurm's own srun.
"""

import asyncio
import hashlib
import hmac
import os
import secrets
import struct
from typing import Final

import msgspec

from muster.agent import credentials
from muster.slurm.say import Refused

NONCE_BYTES: Final = 32
MESSAGE_MAX: Final = 8 * 1024 * 1024
HEARD_S: Final = 10
"""Within this time a caller must have proved that it belongs to the job."""

STDIN: Final = b"I"
STDOUT: Final = b"O"
STDERR: Final = b"E"
EXIT: Final = b"X"
"""The exit status of a task, as decimal text."""
SIGNAL: Final = b"S"
"""A signal for all tasks, as decimal text."""
FAULT: Final = b"F"
"""The step cannot be run here: one sentence."""

_HEAD = struct.Struct(">cII")
_LENGTH = struct.Struct(">I")


class Gone(Exception):
    """The other side closed the connection, or speaks nonsense."""


def secret() -> bytes:
    """The secret of this attempt.

    Raises:
        Refused: the job has none.
    """
    found = credentials.read()
    if found is None:
        named = os.environ.get(credentials.NAME, "")
        why = f"{named} cannot be read" if named else f"{credentials.NAME} is not set; its agent or gateway is too old"
        raise Refused(f"this job has no secret for its steps: {why}")
    return found.steps.encode()


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> bytes:
    """The message of a caller that has the secret.

    Raises:
        Gone: it has not, or is too slow.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    writer.write(nonce)
    try:
        async with asyncio.timeout(HEARD_S):
            await writer.drain()
            proof = await reader.readexactly(NONCE_BYTES)
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            if length > MESSAGE_MAX:
                raise Gone("the message is too long")
            message = await reader.readexactly(length)
    except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        raise Gone(str(error)) from None
    if not hmac.compare_digest(proof, _prove(key, nonce, message)):
        raise Gone("the caller has not the secret of this job")
    return message


async def connect(host: str, port: int, key: bytes, message: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection over which the message was sent.

    Raises:
        OSError: nobody listens there.
        Gone: who listens there is no part of a job.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        async with asyncio.timeout(HEARD_S):
            nonce = await reader.readexactly(NONCE_BYTES)
        writer.write(_prove(key, nonce, message) + _LENGTH.pack(len(message)) + message)
        await writer.drain()
    except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        writer.close()
        raise Gone(str(error)) from None
    return reader, writer


async def read_frame(reader: asyncio.StreamReader) -> tuple[bytes, int, bytes]:
    """The next frame: kind, task, bytes.

    Raises:
        Gone: there is none any more.
    """
    try:
        kind, task, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        if length > MESSAGE_MAX:
            raise Gone("the frame is too long")
        return kind, task, await reader.readexactly(length)
    except (OSError, asyncio.IncompleteReadError) as error:
        raise Gone(str(error)) from None


def frame(kind: bytes, task: int, data: bytes) -> bytes:
    """The bytes of a frame."""
    return _HEAD.pack(kind, task, len(data)) + data


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What srun asks of one node: these tasks, all with the same command."""

    argv: list[str]
    directory: str
    environment: dict[str, str]
    """Of all tasks."""
    tasks: list[dict[str, str]]
    """What each has besides."""
    gpus_per_task: int = 0
    gpus_per_node: int = -1
    """-1: all that the job has on the node."""


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says to the first one: it waits for steps at this port of its."""

    rank: int
    node: str
    port: int


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the job that waits for steps."""

    node: str
    host: str
    port: int


def _prove(key: bytes, nonce: bytes, message: bytes) -> bytes:
    return hmac.new(key, nonce + message, hashlib.sha256).digest()
