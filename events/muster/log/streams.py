"""Stream processors on the bus: one place that says how Faust is set up here, and how a program of it runs and ends.

Faust brings the membership in a group: which worker has which partition. It is trusted with nothing else: no table, no
changelog, no transaction, no topic that it makes, no web server, and no offset that it commits. An error of an agent ends the
process (`app.crash`); a supervisor starts it again, and it goes on from what its effects say.
"""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from typing import Any, Final

import faust
from yarl import URL

from muster.log.bus import Bus
from muster.log.kafka import MESSAGE_MAX_BYTES

BUFFERED: Final = 64
"""So many messages wait between the consumer and an agent: each may have 16 MiB."""
POLL_MAX_S: Final = 86_400.0
"""So long a worker may take over what it has before it counts as stuck: it may be folding a long log. The broker sees by its
heartbeats whether it lives."""
STOP_S: Final = 10.0


def make_app(bus: Bus, group: str, **changed: Any) -> faust.App:
    """An application whose workers share the partitions of what they follow. To be made in the loop that runs it.

    Args:
        bus: the bus.
        group: name of the group of consumers.
        changed: settings of Faust's that differ.
    """
    told = bus.client_options()
    settings: dict[str, Any] = {
        "broker": [URL(f"kafka://{server}") for server in bus.servers],
        "broker_client_id": told["client_id"],
        "broker_credentials": _credentials(told),
        "broker_max_poll_interval": POLL_MAX_S,
        "stream_processing_timeout": POLL_MAX_S,
        "consumer_auto_offset_reset": "earliest",
        "consumer_max_fetch_size": MESSAGE_MAX_BYTES,
        "stream_buffer_maxsize": BUFFERED,
        "processing_guarantee": "at_least_once",
        "store": "memory://",
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "web_enabled": False,
        "autodiscover": False,
        "origin": None,
    }
    return faust.App(group, **{**settings, **changed})


def _credentials(told: dict[str, Any]) -> Any:
    context = told.get("ssl_context")
    if told["security_protocol"].startswith("SASL_"):
        return faust.SASLCredentials(
            username=told["sasl_plain_username"],
            password=told["sasl_plain_password"],
            ssl_context=context,
            mechanism=told["sasl_mechanism"],
        )
    return faust.SSLCredentials(context) if context is not None else None


async def serve(app: faust.App) -> None:
    """Run the application until SIGINT or SIGTERM, or until it crashes.

    Raises:
        What it crashed of. Threads of it may be left then: the process is to end with `os._exit`.
    """
    with _told_to_stop() as stopped:
        crashed = asyncio.ensure_future(_crash_of(app))
        try:
            await app.start()
            await asyncio.wait([crashed, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            crashed.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await app.stop()
    if app.crash_reason is not None:
        raise app.crash_reason


async def _crash_of(app: faust.App) -> None:
    await app._crashed.wait()


@contextlib.contextmanager
def _told_to_stop() -> Iterator[asyncio.Future[None]]:
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
