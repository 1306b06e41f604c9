"""How a program that follows a log hears that it is to stop."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def told_to_stop() -> Iterator[asyncio.Future[None]]:
    """A future that is done once SIGINT or SIGTERM came; meanwhile these do nothing else."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not stopped.done():
            stopped.set_result(None)

    signals = (signal.SIGINT, signal.SIGTERM)
    for each in signals:
        loop.add_signal_handler(each, stop)
    try:
        yield stopped
    finally:
        for each in signals:
            loop.remove_signal_handler(each)
