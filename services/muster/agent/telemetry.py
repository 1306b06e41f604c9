"""The agent's samples on their way to `muster.telemetry`: what its devices measured, every few seconds.

Nothing that the agent is for waits for this, and nothing is kept: while the bus is away samples are dropped.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from muster.client import ClientError, Muster
from muster.events.telemetry import GpusSampled

PATIENCE_S: Final = 5.0
AWAY_S: Final = 5.0


async def tell(
    address: str, config: str, every_s: float, measured: Callable[[], GpusSampled], say: Callable[[str], None]
) -> None:
    """Send what is measured every so often, until cancelled. `say` is told what is wrong, or nothing where all is well."""
    muster: Muster | None = None
    loop = asyncio.get_running_loop()
    try:
        while True:
            began_s = loop.time()
            try:
                if muster is None:
                    opened = Muster(address, config=config or None, patience_s=PATIENCE_S)
                    muster = await opened.__aenter__()
                sampled = await asyncio.to_thread(measured)
                if sampled.samples:
                    await muster.gpus_sampled(sampled)
                say("")
            except ClientError as error:
                say(f"samples are not sent: {error}")
                await asyncio.sleep(AWAY_S)
            await asyncio.sleep(max(0.05, every_s - (loop.time() - began_s)))
    finally:
        if muster is not None:
            with contextlib.suppress(ClientError):
                await muster.close()
