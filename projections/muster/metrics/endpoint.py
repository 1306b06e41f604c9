"""A page of metrics on a port of its own: as much HTTP as Prometheus needs, and no more.

One request a connection, `GET /metrics`. Whoever is slow, sends too much, or comes while too many are here is sent away. On
loopback without a token only the names of loopback are answered to, so that no page of another site reads it through a browser.
"""

import asyncio
import hmac
import os
from http import HTTPStatus
from typing import Final

from muster.metrics.registry import Metrics

TOKEN_VARIABLE: Final = "MUSTER_METRICS_TOKEN"
HEAD_MAX_BYTES: Final = 8192
PATIENCE_S: Final = 10.0
CONNECTIONS_MAX: Final = 16
LOCAL: Final = frozenset(("localhost", "127.0.0.1", "[::1]"))


class BadPlace(Exception):
    """The address makes no sense; the sentence says what would be right."""


def place_of(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `:PORT` (loopback) or `[ADDRESS]:PORT`.

    Raises:
        BadPlace: it is none of these.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535 or (":" in host and not host.startswith("[")):
        raise BadPlace(f"--metrics {text!r}: HOST:PORT would be right, such as 127.0.0.1:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


class Endpoint:
    """A port at which the page is read."""

    def __init__(self, metrics: Metrics, token: str = "") -> None:
        self._metrics = metrics
        self._token = token
        self._local = False
        self._server: asyncio.Server | None = None
        self._here = 0
        self.host = ""
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Listen there; port 0 takes any that is free.

        Raises:
            OSError: the address is taken, or is none of ours.
        """
        self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_MAX_BYTES)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]
        self._local = self.host in ("127.0.0.1", "::1")

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._here += 1
        try:
            async with asyncio.timeout(PATIENCE_S):
                status, kind, content = await self._answer(reader)
                head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
                writer.write(head.encode() + b"Cache-Control: no-store\r\nConnection: close\r\n\r\n" + content)
                await writer.drain()
        except (TimeoutError, OSError, EOFError):
            pass  # whoever asked is gone, or too slow
        finally:
            self._here -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[HTTPStatus, str, bytes]:
        plain = "text/plain; charset=utf-8"
        if self._here > CONNECTIONS_MAX:
            return HTTPStatus.SERVICE_UNAVAILABLE, plain, b"too many ask at once\n"
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.LimitOverrunError:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, plain, b"the head of the request is too large\n"
        method, _, rest = lines[0].partition(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if rest.partition(" ")[0].partition("?")[0] != "/metrics":
            return HTTPStatus.NOT_FOUND, plain, b"there is /metrics here, and nothing else\n"
        if method != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, plain, b"/metrics is read with GET\n"
        if self._token:
            sent = headers.get("authorization", "").removeprefix("Bearer ").encode("latin-1", "replace")
            if not hmac.compare_digest(sent, self._token.encode()):
                return HTTPStatus.UNAUTHORIZED, plain, b"a token is needed: Authorization: Bearer TOKEN\n"
        elif self._local and _name(headers.get("host", "")) not in LOCAL:
            return HTTPStatus.FORBIDDEN, plain, b"without a token this port answers as localhost and 127.0.0.1 only\n"
        kind, content = await self._metrics.page(headers.get("accept", ""))
        return HTTPStatus.OK, kind, content


async def serve(metrics: Metrics, place: str) -> Endpoint:
    """Serve the page at `HOST:PORT`, in this loop, until it is closed.

    Raises:
        BadPlace: that is no such place.
        OSError: the address is taken, or is none of ours.
    """
    host, port = place_of(place)
    endpoint = Endpoint(metrics, os.environ.get(TOKEN_VARIABLE, ""))
    await endpoint.open(host, port)
    return endpoint


def _name(host: str) -> str:
    return host.rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
