"""Stream processors on the bus: one place that says how Faust is set up here, and how a program of it runs and ends.

Faust brings the membership in a group: which worker has which partition. It is trusted with nothing else: no table, no
changelog, no transaction, no topic that it makes, no web server, and no offset that it commits. An error of an agent ends the
process (`app.crash`); a supervisor starts it again, and it goes on from what its effects say.
"""

import asyncio
from typing import Any, Final

import faust

from muster.log.bus import Bus
from muster.log.kafka import MESSAGE_MAX_BYTES
from muster.log.stopping import told_to_stop

BUFFERED: Final = 64
"""So many messages wait between the consumer and an agent: each may have 16 MiB."""
POLL_MAX_S: Final = 86_400.0
"""So long a worker may take over what it has before it counts as stuck: it may be folding a long log. The broker sees by its
heartbeats whether it lives."""
SESSION_S: Final = 10.0
"""So long a worker may be silent before another one gets what it has. A broker takes no less than 6 s."""
BEAT_S: Final = 3.0
STOP_S: Final = 5.0
"""So long a worker takes leave of its group at most."""


def make_app(bus: Bus, group: str, instance: str = "", **changed: Any) -> faust.App:
    """An application whose workers share the partitions of what they follow. To be made in the loop that runs it.

    Args:
        bus: the bus.
        group: name of the group of consumers.
        instance: name of this worker, which no other one of the group has: started again within the session's time it has its
            partitions at once, and nobody else gets them meanwhile. Without one others get them as soon as it is stopped.
        changed: settings of Faust's that differ.
    """
    told = bus.client_options()
    settings: dict[str, Any] = {
        "broker": ";".join(f"kafka://{server}" for server in bus.servers),
        "broker_client_id": told["client_id"],
        "broker_credentials": _credentials(told),
        "broker_max_poll_interval": POLL_MAX_S,
        "broker_session_timeout": SESSION_S,
        "broker_heartbeat_interval": BEAT_S,
        "stream_processing_timeout": POLL_MAX_S,
        "consumer_group_instance_id": instance or None,
        "consumer_auto_offset_reset": "earliest",
        "consumer_max_fetch_size": MESSAGE_MAX_BYTES,
        "stream_buffer_maxsize": BUFFERED,
        "stream_wait_empty": False,  # where a rebalance comes while it stops, it waits for ever
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

    Threads and tasks of it may be left, which take no cancellation: the process is to end with `os._exit`, out of the loop.

    Raises:
        What it crashed of.
    """
    with told_to_stop() as stopped:
        crashed = asyncio.ensure_future(_crash_of(app))
        try:
            await app.start()
            await asyncio.wait([crashed, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            crashed.cancel()
            await asyncio.wait([asyncio.ensure_future(app.stop())], timeout=STOP_S)
    if app.crash_reason is not None:
        raise app.crash_reason


async def _crash_of(app: faust.App) -> None:
    await app._crashed.wait()
