"""Serving a gateway by HTTP: the socket, and uvicorn as we want it."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httptools  # noqa: F401  # uvicorn reads HTTP with it: missed here rather than at the first request
import uvicorn
from litestar.types import ASGIApp

GRACE_S: Final = 2
"""So long requests may go on when the end has come."""


class Server(uvicorn.Server):
    """uvicorn without its own ideas about signals."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=GRACE_S,
                backlog=2048,
            )
        )
        self.serving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.serving.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to this program."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, and does not listen yet.

    Raises:
        OSError: the address is taken or is none of ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
