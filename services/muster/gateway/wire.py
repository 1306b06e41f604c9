"""A connection to the gateway: uvicorn's, with a short way for the requests that come by thousands a second.

Such a request (see `muster.gateway.direct`) is neither turned into an ASGI scope nor run as an application: its body is
gathered, it is answered by one function, and the answer goes out in one write. Everything else is uvicorn's, and so is what
comes on a connection while an answer is still owed there: answers go out in the order of the requests.
"""

import asyncio
from http import HTTPStatus
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from muster.gateway.direct import Answer, Handle, answer
from muster.gateway.guard import Caller, Guard
from muster.gateway.problems import Refused

STATUS_LINES: Final = {status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}


class Nobody:
    """Where uvicorn wakes the application that reads a request: here none does."""

    __slots__ = ()

    def set(self) -> None:
        """See `asyncio.Event`."""


class Short:
    """A request on the short way, from its head to its answer. To uvicorn it is one of its cycles."""

    __slots__ = (
        "_handle",
        "_parts",
        "_task",
        "_who",
        "_wire",
        "disconnected",
        "keep_alive",
        "response_complete",
    )
    message_event = Nobody()

    def __init__(self, wire: "Wire", handle: Handle, who: Caller, keep_alive: bool) -> None:
        self._wire = wire
        self._handle = handle
        self._who = who
        self._parts: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self.keep_alive = keep_alive
        self.response_complete = False
        self.disconnected = False

    def add(self, part: bytes) -> None:
        """A piece of the body; the guard has looked how long it is."""
        self._parts.append(part)

    def begin(self) -> None:
        """All of it has come."""
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._task = self._wire.loop.create_task(self._run(body))

    def lost(self) -> None:
        """The connection is lost: nobody waits for the answer. What was begun goes on all the same, but for a poll."""
        if not self.response_complete:
            self.response_complete = True
            task, self._task = self._task, None
            if task is not None and not self._parts:
                task.cancel()

    async def _run(self, body: bytes) -> None:
        found = await answer(self._handle, self._who, body)
        self._task = None
        if not self.response_complete:
            self.response_complete = True
            self._wire.send(found, self.keep_alive)


class Wire(HttpToolsProtocol):
    """One connection."""

    cycle: Any

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._guard = cast(Guard, self.config.loaded_app)
        self._short: Short | None = None
        """The request of which more is to come."""
        self._quiet_s = 0.0

    def send(self, found: Answer, keep_alive: bool) -> None:
        """Send an answer, whole."""
        transport = self.transport
        if transport.is_closing():
            return
        head = STATUS_LINES[found.status]
        if found.body or found.status != 204:
            head += b"content-type: %b\r\ncontent-length: %d\r\n" % (found.media_type.encode(), len(found.body))
        for name, value in found.headers.items():
            head += b"%b: %b\r\n" % (name.lower().encode(), value.encode())
        if not keep_alive:
            head += b"connection: close\r\n"
        transport.write(head + b"\r\n" + found.body)
        if not keep_alive:
            transport.close()
        self.on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """See uvicorn."""
        if isinstance(self.cycle, Short):
            self.cycle.lost()
        super().connection_lost(exc)

    # httptools

    def on_message_begin(self) -> None:
        """See uvicorn; a scope is made only where it is needed."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._short = None

    def on_headers_complete(self) -> None:
        """Take the short way, if this is a request for it and no answer is owed."""
        if self.cycle is None or self.cycle.response_complete:
            parser = self.parser
            handle = self._guard.direct.find(parser.get_method(), self.url)
            if handle is not None and not self.expect_100_continue and not parser.should_upgrade():
                try:
                    who = self._guard.enter(self.url.decode("latin-1"), dict(self.headers))
                except Refused:
                    who = None  # whoever goes the usual way is told why
                if who is not None:
                    keep_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive()
                    self._short = self.cycle = Short(self, handle, who, keep_alive)
                    return
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url = url
        self.headers.extend(headers)
        self.expect_100_continue = expects
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """See uvicorn."""
        if self._short is not None:
            self._short.add(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """See uvicorn."""
        if self._short is None:
            super().on_message_complete()
        else:
            short, self._short = self._short, None
            short.begin()

    # A connection that says nothing for too long is closed. One timer looks after all the answers until it fires.

    def on_response_complete(self) -> None:
        """See uvicorn."""
        self._quiet_s = self.loop.time()
        if self.pipeline or self.timeout_keep_alive_task is None:
            super().on_response_complete()
        else:
            self.server_state.total_requests += 1
            if not self.transport.is_closing():
                self.flow.resume_reading()

    def _unset_keepalive_if_required(self) -> None:
        if self.transport.is_closing():
            super()._unset_keepalive_if_required()

    def timeout_keep_alive_handler(self) -> None:
        """See uvicorn."""
        self.timeout_keep_alive_task = None
        if self.cycle is not None and not self.cycle.response_complete:
            return  # the answer begins a new one
        left_s = self._quiet_s + self.timeout_keep_alive - self.loop.time()
        if left_s <= 0:
            super().timeout_keep_alive_handler()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)
