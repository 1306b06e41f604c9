"""A gateway on Kafka, without a scheduler: the composition root. `muster.up.keeper` starts it and starts it again.

`python -m muster.up.bus_gateway OPTIONS` (JSON) folds the log, says `ready URL` on standard output once it listens, and ends
on SIGTERM. Any number of them may run for one cell, wherever its agents and people reach them.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from muster.gateway.app import application
from muster.gateway.context import Gateway
from muster.gateway.follower import Follower
from muster.gateway.history import History
from muster.gateway.job_tokens import Secrets
from muster.gateway.kafka_intake import KafkaIntake
from muster.gateway.live import Live
from muster.gateway.measured import metrics_of
from muster.gateway.tokens import Tokens
from muster.log.bus import Bus
from muster.log.kafka import KafkaLog
from muster.log.kafka_reader import CONFIG_VARIABLE
from muster.log.topics import require_fit
from muster.measures.book import Book
from muster.metrics import serve
from muster.scheduler.loop import EXIT_DOUBT
from muster.scheduler.memory import settle
from muster.scheduler.recovery import recover
from muster.scheduler.snapshots import EVERY, Snapshots
from muster.up import places
from muster.up.places import CELL, EXIT_LOCKED, EXIT_PORT, HOST, PORT
from muster.up.process import hold, leave, let_go, run
from muster.up.serving import Server

logger = logging.getLogger("muster.gateway")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway of a bus is told."""

    bus: str
    config: str = ""
    """The file of settings."""
    folder: str
    """Of snapshots. One gateway a folder."""
    keys: str = ""
    """Of tokens and the key of running jobs' tokens, which several gateways may share; else `folder`."""
    cell: str = CELL
    host: str = HOST
    port: int = PORT
    tokens: bool = False
    """Tokens are required on loopback too."""
    metrics: str = ""
    """HOST:PORT of a port of their own for the metrics, which are at /metrics anyway."""


async def main(options: Options) -> int:
    """The process; its exit status."""
    folder = Path(options.folder)
    if not hold(folder):
        logger.error("another gateway uses the folder %s; give this one another with --data", folder)
        return EXIT_LOCKED
    try:
        listener = places.listen(options.host.strip("[]"), options.port)
    except OSError as error:
        logger.error("cannot listen at %s, port %d: %s", options.host, options.port, error.strerror or error)
        return EXIT_PORT
    if options.config:
        os.environ[CONFIG_VARIABLE] = options.config  # for the process that looks back
    bus = Bus.parse(options.bus, options.config or None)
    await require_fit(bus)
    async with AsyncExitStack() as closing:
        log = await KafkaLog.open(bus, writer=False)
        closing.push_async_callback(let_go, log.close)
        snapshots = Snapshots(folder, options.cell, EVERY)
        book = Book(folder, options.cell)
        snapshots.written = book.written
        began_s = time.monotonic()
        recovered = await recover(log, options.cell, snapshots, counted=book.follow)
        recovery_s = time.monotonic() - began_s
        book.settle(recovered.core)
        follower = Follower(recovered, log, snapshots=snapshots)
        follower.snapshot()
        live = Live(follower.core, follower.now_us)
        live.behind_us = follower.behind_us
        intake = KafkaIntake(bus, f"muster/gateway/{socket.gethostname()[:64]}", live, _broken)
        await intake.start()
        closing.push_async_callback(let_go, intake.close)
        keys = Path(options.keys or folder)
        secrets = Secrets(keys)
        gateway = Gateway(live, intake, History(bus.address, options.cell, folder), secrets)
        gateway.one_of_several = True
        metrics = gateway.metrics = metrics_of(gateway, follower.core, book, snapshots)
        metrics.set("muster_recovery_seconds", recovery_s)
        metrics.set("muster_recovery_cycles", recovered.folded)
        metrics.source(lambda: [("muster_follower_lag_records", ("gateway",), follower.behind)])
        follower.admitted = live.admitted
        settle()
        required = options.tokens or not places.is_loopback(options.host)
        if options.metrics:
            try:
                endpoint = await serve(metrics, options.metrics)
            except OSError as error:
                logger.error("metrics cannot be served at %s: %s", options.metrics, error.strerror or error)
                return EXIT_PORT
            closing.push_async_callback(endpoint.close)
            logger.info("metrics are at %s/metrics", places.url(endpoint.host, endpoint.port))
        server = Server(application(gateway, Tokens(keys), required, secrets))
        await _serve(server, listener, gateway, follower)
        follower.snapshot()
    return 0


async def _serve(server: Server, listener: socket.socket, gateway: Gateway, follower: Follower) -> None:
    """Serve and follow until told to stop, or until the log cannot be followed any more.

    Raises:
        LogHalted: the log was cut or altered.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    following = asyncio.create_task(follower.run())
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.serving.wait()
    host, port = listener.getsockname()[:2]
    sys.stdout.write(f"ready {places.url(host, port)}\n")
    sys.stdout.flush()
    told = asyncio.create_task(stop.wait())
    await asyncio.wait((told, following), return_when=asyncio.FIRST_COMPLETED)
    gateway.close()
    server.should_exit = True
    await serving
    told.cancel()
    following.cancel()
    for outcome in await asyncio.gather(following, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


def _broken(why: str) -> None:
    """The way to Kafka cannot be mended in this process."""
    logger.error("%s; the gateway starts again", why)
    leave(EXIT_DOUBT)


if __name__ == "__main__":
    run(main, Options, logger)
