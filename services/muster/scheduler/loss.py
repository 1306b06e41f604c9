"""An operator's word that messages of input topics are lost, written into the log.

No scheduler starts where `beginning <= position <= end` does not hold for each partition. This writes one cycle that says
what is lost, by whose word, and where reading goes on; then schedulers start again. It leads for that one cycle, by the
same rules as every scheduler: only when nobody else does.
"""

import asyncio
import secrets
import socket
from typing import Final

from muster.events.operations import Loss, LossAccepted
from muster.log.admit import Admitted, Halt
from muster.log.errors import AppendDoubt, LogHalted, OperatingError
from muster.log.port import Log
from muster.scheduler.kafka_inbox import KafkaInbox
from muster.scheduler.recovery import Recovered
from muster.scheduler.terms import Anchor, SystemClock, Watch

QUIET_S: Final = 4.0
"""So long nothing may come from a leader before this one leads."""
DEADLINE_S: Final = 15.0


class SomebodyLeads(OperatingError):
    """A scheduler leads; what it needs it has."""


async def accept_loss(recovered: Recovered, log: Log, inbox: KafkaInbox, by: str) -> LossAccepted | None:
    """Write it down; None where nothing is lost.

    Raises:
        SomebodyLeads: a scheduler leads, or began to meanwhile.
        AppendDoubt: it may stand in the log or not; look again.
        LogHalted: the log was cut or altered.
    """
    core = recovered.core
    clock = SystemClock()
    watch = Watch(clock.monotonic_us(), core.state.at_us)
    await _see_that_nobody_leads(recovered, log, inbox)
    found = await inbox.lost(core.positions)
    if not found:
        return None
    lost = [
        Loss(source=each.source, position=each.position, resumed=await inbox.resumed(each, core.state.at_us)) for each in found
    ]
    event = LossAccepted(lost=tuple(lost), by=by[:1024])
    now_us = clock.monotonic_us()
    at_us = max(core.state.at_us, watch.start_us(now_us, clock.wall_us()))
    gap_us = max(0, at_us - core.state.at_us) if core.head.number else 0
    anchor = Anchor(at_us, now_us)
    host = socket.gethostname()[:128]
    await _append(recovered, log, core.start_term(at_us, secrets.token_hex(16), host, "muster recover", gap_us))
    if not core.leads:
        raise SomebodyLeads(f"another scheduler began to lead, at cycle {core.head.number}")
    await _append(recovered, log, core.accept_loss(anchor.now_us(clock.monotonic_us()), event))
    return event


async def _see_that_nobody_leads(recovered: Recovered, log: Log, inbox: KafkaInbox) -> None:
    loop = asyncio.get_running_loop()
    limit = loop.time() + QUIET_S
    while loop.time() < limit:
        if await _follow(recovered, log) or inbox.beats():
            term = recovered.core.head.term
            raise SomebodyLeads(f"a scheduler leads, by term {term}: while one does, nothing is lost that it needs")
        await log.wait(recovered.position, 0.25)
    if await log.end() > recovered.position:
        raise SomebodyLeads("a scheduler leads: something was written just now")


async def _append(recovered: Recovered, log: Log, data: bytes) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            await log.append(data)
            while data not in await _follow(recovered, log):
                await log.wait(recovered.position, 0.25)
    except TimeoutError:
        raise AppendDoubt("the log did not answer: whether this was written is not known; run it again") from None


async def _follow(recovered: Recovered, log: Log) -> list[bytes]:
    """Read what there is. The records."""
    records = await log.read(recovered.position)
    for record in records:
        verdict = recovered.core.follow(record.data)
        recovered.position = record.position
        if isinstance(verdict, Admitted):
            recovered.head_position = record.position
        elif isinstance(verdict, Halt):
            raise LogHalted(record.position, recovered.core.head.number, verdict.reason)
    return [record.data for record in records]
