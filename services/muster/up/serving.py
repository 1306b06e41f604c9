"""Serving a gateway by HTTP: uvicorn as we want it."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from litestar.types import ASGIApp

from muster.gateway.wire import Wire
from muster.up.places import BACKLOG

GRACE_S: Final = 2
"""So long requests may go on when the end has come."""


class Server(uvicorn.Server):
    """uvicorn without its own ideas about signals."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=Wire,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=GRACE_S,
                backlog=BACKLOG,
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
