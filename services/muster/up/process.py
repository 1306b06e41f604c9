"""What the programs of this package do alike as processes: how they begin, hold a folder, and leave."""

import asyncio
import fcntl
import gc
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from muster.log.bus import BusConfigError
from muster.log.errors import LogUnreachable, OffsetsLost, OperatingError
from muster.log.topics import BusUnfit
from muster.scheduler.loop import EXIT_DOUBT, EXIT_HALTED, EXIT_LOST
from muster.up.places import EXIT_LOCKED, EXIT_PORT

EXIT_UNFIT: Final = 78
"""The topics of the bus are not as they must be, or its settings cannot be followed."""
FINAL: Final = (EXIT_PORT, EXIT_LOCKED, EXIT_HALTED, EXIT_LOST, EXIT_UNFIT)
"""What starting again does not mend."""

Program = TypeVar("Program", bound=msgspec.Struct)
"""The options of a program."""


def prepare() -> None:
    """Logging and the collector of garbage, as every program of a bus has them."""
    gc.set_threshold(50_000, 20, 100)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="muster: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it says of each try, our own sentences say once


def hold(folder: Path) -> bool:
    """Take the folder for this process's life, and write its number there, for people. Whether nobody else has it."""
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return False
    os.truncate(held, 0)
    os.pwrite(held, b"%d\n" % os.getpid(), 0)
    return True


async def let_go(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Close something at the end of the process, where it does not matter whether that goes well.

    A client of Kafka whose broker is away may end with a cancellation that nobody asked for.
    """
    await asyncio.gather(close(), return_exceptions=True)


def leave(status: int) -> NoReturn:
    """How a program of a bus leaves in doubt: at once, and nothing of it goes on."""
    sys.stderr.flush()
    os._exit(status)


def status_of(error: OperatingError) -> int:
    """How a program of a bus leaves because of this."""
    if isinstance(error, OffsetsLost):
        return EXIT_LOST
    if isinstance(error, LogUnreachable):
        return EXIT_DOUBT
    return EXIT_UNFIT if isinstance(error, (BusUnfit, BusConfigError)) else EXIT_HALTED


def run(main: Callable[[Program], Coroutine[Any, Any, int]], options: type[Program], logger: logging.Logger) -> NoReturn:
    """Be a program of a bus: `main` with the options that stand, as JSON, on the command line."""
    import uvloop

    prepare()
    try:
        status = uvloop.run(main(msgspec.json.decode(sys.argv[1], type=options)))
    except OperatingError as error:
        logger.error("%s", error)
        status = status_of(error)
    sys.exit(status)
