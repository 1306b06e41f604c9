"""A parent that keeps one program of a bus alive: it starts it, and starts it again when it left in doubt.

A scheduler leaves at once where it is not sure what stands in the log, and learns it by reading at its next start; so being
started again is part of how it works. What starting again does not mend ends the parent too. Now and then the parent has a
snapshot written, by `muster.up.bus_snapshot`.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from typing import Final

from muster.up.parent import BACKOFF_S, LIVED_S, end_with_parent

END_S: Final = 20.0
"""So long it may take to end; then it is killed."""
SNAPSHOTS_S: Final = 600.0
"""So often it is looked whether a snapshot is due."""

logger = logging.getLogger("muster.up")


class Keeper:
    """Keeps one child alive."""

    def __init__(
        self, what: str, module: str, options: bytes, final: tuple[int, ...], snapshots_s: float | None = SNAPSHOTS_S
    ) -> None:
        """`python -m module OPTIONS` is the child. Statuses in `final` are not mended by another start.

        `snapshots_s` is how often it is looked whether a snapshot is due; None of a program that has none.
        """
        self._what = what
        self._command = [sys.executable, "-m", module, options.decode()]
        self._snapshot = [sys.executable, "-m", "muster.up.bus_snapshot", options.decode()]
        self._snapshots_s = snapshots_s
        self._final = final
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Until SIGTERM or SIGINT, or until the child left for good; its last status, 0 where it was told to end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        snapshots = asyncio.create_task(self._write_snapshots())
        try:
            return await self._keep()
        finally:
            snapshots.cancel()
            await asyncio.gather(snapshots, return_exceptions=True)

    async def _keep(self) -> int:
        died = 0
        while True:
            began = time.monotonic()
            status = await self._watch(await _start(self._command))
            if self._stop.is_set():
                return 0
            if status == 0 or status in self._final:
                return status
            died = died + 1 if time.monotonic() - began < LIVED_S else 1
            logger.warning("%s left with status %d and is started again", self._what, status)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BACKOFF_S[min(died, len(BACKOFF_S)) - 1]):
                    await self._stop.wait()
            if self._stop.is_set():
                return 0

    async def _write_snapshots(self) -> None:
        while self._snapshots_s is not None:
            await asyncio.sleep(self._snapshots_s)
            process = await _start(self._snapshot)
            try:
                await process.wait()
            except asyncio.CancelledError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                raise

    async def _watch(self, process: asyncio.subprocess.Process) -> int:
        """Wait until it ends, or end it."""
        ended, told = asyncio.create_task(process.wait()), asyncio.create_task(self._stop.wait())
        await asyncio.wait((ended, told), return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait((ended,), timeout=END_S)
            if not ended.done():
                logger.warning("%s did not end within %d s and is killed", self._what, int(END_S))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        return await ended


async def _start(command: list[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C is ours to hand on
        preexec_fn=end_with_parent,
    )
