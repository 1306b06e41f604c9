"""When will my job start? What is planned, or what could be as everybody's promised end stands; nothing of it is recorded.

Nothing here decides; asking changes nothing but caches.
"""

from typing import Final

import msgspec

from muster.cluster.jobs import TERMINAL, Instance
from muster.cluster.plans import FAR, horizon_us, length_us, order_of
from muster.cluster.state import State
from muster.engine.candidates import CandidateCache
from muster.engine.horizon import Horizon
from muster.engine.profile import starts_us
from muster.engine.reserved import Reserved
from muster.engine.reserved_why import when, whom
from muster.events.base import INT_MAX
from muster.events.decisions import Placement
from muster.events.operations import Backfill

NAMED_MAX: Final = 4
"""So many reservations are named."""


class Eta(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; `text` says it to a person.

    `code`: `started`, `over`; `planned`; `overdue` (planned behind somebody who is past his promised end); `beyond-horizon`;
    `unknown-end` (somebody without a time limit is in the way, or no node here can hold it); `estimated` (not planned: as
    many as the policy plans for come before it, or it plans for nobody, and this is when it could start).
    """

    job: str
    instance: int
    phase: str
    cycle: int
    at_us: int
    """Log time of the cycle."""
    code: str
    start_us: int | None = None
    nodes: tuple[str, ...] = ()
    text: str


def eta(state: State, job_id: str, index: int = 0, cache: CandidateCache | None = None) -> Eta:
    """When the instance is to start.

    Raises:
        KeyError: the state does not know the job, or it has no such instance.
    """
    job = state.jobs[job_id]
    if index >= len(job.instances):
        raise KeyError(f"job {job_id} has {len(job.instances)} instances, numbered from 0")
    instance = job.instances[index]
    if instance.phase in TERMINAL:
        return _answer(state, instance, "over", f"it is {instance.phase}")
    if instance.attempt is not None:
        attempt = instance.attempt
        return _answer(state, instance, "started", f"it is {instance.phase}", attempt.running_since_us)
    cache = cache or CandidateCache(state.ledger, state.policy)
    nomination = state.nominations.get(instance.key)
    if nomination is not None:
        start_us, nodes = starts_us(state, nomination), _names(state, nomination.placements)
        late = start_us < state.at_us
        text = f"nominated {_where(nodes)}, {'overdue by' if late else 'its victims have'} {_span(abs(start_us - state.at_us))}"
        return _answer(state, instance, "overdue" if late else "planned", text, start_us, nodes)
    planned = state.plans.by_key.get(instance.key)
    if planned is not None:
        nodes = _names(state, planned.placements)
        where = _where(nodes)
        behind = _behind(state, cache, instance, horizon_us(state.policy))
        clear = Reserved(state).clear_of(planned)
        if planned.start_us < state.at_us or not clear or not behind.holds(planned, lenient=False):
            late_s = max(0, state.at_us - planned.start_us) // 1_000_000
            text = f"planned {where}, overdue by {late_s} s: somebody there is past the end that was promised"
            return _answer(state, instance, "overdue", text, planned.start_us, nodes)
        text = f"planned {_when(state, planned.start_us)} {where}{_around(state, instance)}"
        return _answer(state, instance, "planned", text, planned.start_us, nodes)
    if job.soft:
        text = f"not planned: it is {job.request.kind}, and starts where there is room"
        return _answer(state, instance, "unknown", text)
    if job.gang.rules is not None and not job.gang.rules.foreseen:
        text = "not planned: where a job with constraints may be depends on who is there then, which nobody knows"
        return _answer(state, instance, "unknown", text)
    found = Reserved(state).earliest(_behind(state, cache, instance, INT_MAX - state.at_us), instance)
    if found is None:
        text = "unknown end: what is in its way has no time limit or is overdue, or no node here can hold it"
        text += _around(state, instance)
        return _answer(state, instance, "unknown-end", text)
    start_us, nodes = found[0], _names(state, found[1])
    horizon = horizon_us(state.policy)
    if horizon and start_us > state.at_us + horizon:
        text = f"beyond horizon: {_when(state, start_us)} at the earliest; nothing is planned more than {_span(horizon)} ahead"
        text += _around(state, instance)
        return _answer(state, instance, "beyond-horizon", text, start_us)
    why = "the policy plans no starts" if not horizon else "as many as the policy plans for come before it, or it fits now"
    text = f"not planned ({why}); {_when(state, start_us)} at the earliest{_around(state, instance)}"
    return _answer(state, instance, "estimated", text, start_us, nodes)


def _around(state: State, instance: Instance) -> str:
    """What is reserved for others that it may not have now, of which the answer takes account."""
    reserved, length = Reserved(state), length_us(state.policy, instance.job)
    reserved.ask_for(instance, state.at_us, FAR if length == FAR else state.at_us + length)
    said = [
        f"; {len(held.rows)} nodes are reserved for {whom(held.reservation)} {when(window, state.at_us)}"
        for held, window in reserved.because[:NAMED_MAX]
    ]
    return "".join(said)


def _behind(state: State, cache: CandidateCache, instance: Instance, span_us: int) -> Horizon:
    """What is free over time behind the plans of those who rank above."""
    settings = Backfill(horizon_us=min(span_us, INT_MAX))
    if state.policy.backfill is not msgspec.UNSET:
        settings = msgspec.structs.replace(state.policy.backfill, horizon_us=settings.horizon_us)
    horizon = Horizon(state, cache, settings)
    horizon.begin(None)
    orders = {each: order_of(state.policy, each.instance, state.at_us) for each in state.plans.by_key.values()}
    mine = order_of(state.policy, instance, state.at_us)
    for each in sorted([each for each in orders if orders[each] < mine], key=orders.__getitem__):
        horizon.put(each)
    return horizon


def _answer(
    state: State, instance: Instance, code: str, text: str, start_us: int | None = None, nodes: tuple[str, ...] = ()
) -> Eta:
    return Eta(
        job=instance.job.id,
        instance=instance.index,
        phase=instance.phase,
        cycle=state.number,
        at_us=state.at_us,
        code=code,
        start_us=start_us,
        nodes=nodes,
        text=text,
    )


def _names(state: State, placements: tuple[Placement, ...]) -> tuple[str, ...]:
    nodes = state.ledger.nodes
    rows = dict.fromkeys([placement.row for placement in placements])
    return tuple([node.name for row in rows if row < len(nodes) and (node := nodes[row]) is not None])


def _where(nodes: tuple[str, ...]) -> str:
    return f"on {', '.join(nodes[:8])}{f' and {len(nodes) - 8} more nodes' if len(nodes) > 8 else ''}"


def _when(state: State, start_us: int) -> str:
    return "now" if start_us <= state.at_us else f"in {_span(start_us - state.at_us)}"


def _span(micros: int) -> str:
    """A span for a person: two units."""
    seconds = -(-micros // 1_000_000)
    for unit, size, below in (("d", 86_400, "h"), ("h", 3_600, "min"), ("min", 60, "s")):
        if seconds >= size:
            rest = seconds % size // {"h": 3_600, "min": 60, "s": 1}[below]
            return f"{seconds // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{seconds} s"
