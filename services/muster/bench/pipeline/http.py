"""HTTP as the clients of a measurement speak it: one connection, one request at a time, and little work for each.

It follows no redirects and repeats nothing: whatever is not an answer ends the measurement.
"""

import asyncio
from collections.abc import Callable
from typing import Self, cast
from urllib.parse import urlsplit

import httptools

from muster.log.errors import OperatingError


class NoAnswer(OperatingError):
    """The connection ended, or what came is no HTTP."""


class Connection(asyncio.Protocol):
    """A connection to the gateway that is kept."""

    def __init__(self, host: str, told: Callable[[bytes], None] | None = None) -> None:
        """`told` gets the body of an answer piece by piece as it comes, instead of `ask`."""
        self._host = host.encode()
        self._told = told
        self._body: list[bytes] = []
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)

    @classmethod
    async def to(cls, url: str, told: Callable[[bytes], None] | None = None) -> Self:
        """Connect to the gateway at this URL."""
        netloc = urlsplit(url).netloc
        host, _, port = netloc.rpartition(":")
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(netloc, told), host.strip("[]"), int(port))
        return connection

    def ask(self, method: bytes, path: bytes, body: bytes = b"") -> asyncio.Future[tuple[int, bytes]]:
        """Send a request; status and body of the answer."""
        if self._transport is None or self._transport.is_closing():
            raise NoAnswer("the gateway has closed the connection")
        self._answer = asyncio.get_running_loop().create_future()
        self._body = []
        head = b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (method, path, self._host)
        if method != b"GET":
            head += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        self._transport.write(head + b"\r\n" + body)
        return self._answer

    def close(self) -> None:
        """Hang up. Nobody is told that there is no answer."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"this is no answer: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._fail("the gateway has closed the connection")

    # httptools

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._told is not None:
            self._told(body)
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        answer, self._answer = self._answer, None
        status = self._parser.get_status_code()
        self._parser = httptools.HttpResponseParser(self)
        if answer is not None and not answer.done():
            answer.set_result((status, b"".join(self._body)))

    def _fail(self, why: str) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(NoAnswer(why))
