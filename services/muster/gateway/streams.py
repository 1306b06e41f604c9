"""What goes on and on, over HTTP: the log and a job as server-sent events, and the output of a task."""

import re
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import Request, get
from litestar.exceptions import ClientException
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream

from muster.agent.protocol import POLL_S
from muster.cluster.state import State
from muster.gateway.context import Gateway, job_of, of
from muster.gateway.described import BYTES, STREAMED, returns
from muster.gateway.feed import Batch
from muster.gateway.guard import caller
from muster.gateway.problems import Refused

ALIVE_S: Final = 15.0
"""So often a quiet stream says that it lives."""
ELSEWHERE_S: Final = 2 * POLL_S
"""An agent that has not asked here for so long is dead, or asks another gateway."""
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}

Any3 = Request[Any, Any, Any]


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A server-sent event."""

    id: str
    """The entry's place in the log, `CYCLE.INDEX`; a returning client says it as Last-Event-ID."""
    data: str
    """The entry as JSON: `{"cycle","at_us","side","kind","body"}`."""


@get("/log", responses=returns(Sent, 200, 404, 503, media_type=STREAMED), summary="Follow the log", media_type=STREAMED)
async def log(
    request: Any3,
    first: Annotated[int, QueryParameter(name="from", ge=0, le=2**53, description="Begin at this cycle; 0 is now.")] = 0,
    until: Annotated[int, QueryParameter(ge=0, le=2**53, description="End after this cycle; 0 is never.")] = 0,
) -> Stream:
    """Every entry as a server-sent event: `{"cycle","at_us","side","kind","body"}`; its id is its place in the log."""
    caller(request).require("read", "operate")
    gateway = of(request)
    begin = _begin(request, (first or gateway.live.feed.number + 1, 0))
    return Stream(events(gateway, "", begin, until), media_type=STREAMED, headers=HEADERS)


@get(
    "/jobs/{job:str}/events",
    responses=returns(Sent, 200, 404, 503, media_type=STREAMED),
    summary="Follow a job",
    media_type=STREAMED,
)
async def job_events(request: Any3, job: FromPath[str]) -> Stream:
    """Every entry about the job since it was submitted, as `/v1/log` says them. It ends when the cell forgets the job."""
    found = await job_of(request, job)
    return Stream(events(of(request), job, _begin(request, (found.place[0], 0)), 0), media_type=STREAMED, headers=HEADERS)


@get(
    "/jobs/{job:str}/output",
    responses=returns(bytes, 200, 404, 503, media_type=BYTES),
    summary="Read output",
    media_type=BYTES,
)
async def output(
    request: Any3,
    job: FromPath[str],
    rank: Annotated[int, QueryParameter(ge=0, le=100_000)] = 0,
    instance: Annotated[int, QueryParameter(ge=0, le=100_000)] = 0,
    attempt: Annotated[int, QueryParameter(ge=0, le=2**53, description="0 is the newest.")] = 0,
    stream: FromQuery[Literal["stdout", "stderr"]] = "stdout",
    offset: Annotated[int, QueryParameter(ge=0, le=2**53)] = 0,
    follow: Annotated[bool, QueryParameter(description="Go on until the task has ended.")] = False,
) -> Stream:
    """What a task has written, as its agent has it. With `follow` a job that is not bound yet is waited for."""
    await job_of(request, job)
    gateway = of(request)
    node = await _where(gateway, job, instance, rank, follow)
    if gateway.one_of_several and time.monotonic() - gateway.polls.seen_s.get(node, -1e9) > ELSEWHERE_S:
        raise Refused(503, f"the agent of {node} is not at this gateway: ask another one", headers={"Retry-After": "5"})
    what = {
        "job": job,
        "instance": instance,
        "attempt": attempt,
        "rank": rank,
        "stream": stream,
        "offset": offset,
        "follow": follow,
    }
    headers = {**HEADERS, "X-Muster-Node": node}
    return Stream(gateway.outputs.read(node, what), media_type=BYTES, headers=headers)


async def events(gateway: Gateway, job: str, begin: tuple[int, int], until: int) -> AsyncIterator[bytes]:
    """Entries from a place (cycle, index) on: first from the log, then as they are admitted."""
    live = gateway.live
    yield b": muster\n\n"
    while not live.feed.closed:
        subscription = live.feed.follow(job)
        try:
            kept = live.feed.kept(begin[0], subscription.after, job)
            async for batch in gateway.history.entries(begin[0], subscription.after, job) if kept is None else _each(kept):
                if until and batch.cycle > until:
                    return
                yield _events(batch, begin)
            begin = max(begin, (subscription.after + 1, 0))
            while not subscription.overflowed and not live.feed.closed:
                if until and live.feed.number >= until and begin[0] > until:
                    return
                live_batch = await subscription.next(ALIVE_S)
                if live_batch is None:
                    yield b": alive\n\n"
                    continue
                if until and live_batch.cycle > until:
                    return
                if live_batch.cycle >= begin[0]:
                    yield _events(live_batch, begin)
                    begin = (live_batch.cycle + 1, 0)
                    if job and live.recorded(job) is None:
                        return
        finally:
            subscription.close()


async def _each(batches: list[Batch]) -> AsyncIterator[Batch]:
    for batch in batches:
        yield batch


def _events(batch: Batch, begin: tuple[int, int]) -> bytes:
    lines = []
    for index, entry in batch.entries:
        if (batch.cycle, index) >= begin:
            lines.append(b"id: %d.%d\ndata: %b\n\n" % (batch.cycle, index, entry))
    return b"".join(lines)


def _begin(request: Any3, begin: tuple[int, int]) -> tuple[int, int]:
    """Where to begin; behind the event that a returning client saw last."""
    last = request.headers.get("last-event-id")
    if last is None:
        return begin
    match = re.fullmatch(r"([0-9]{1,16})\.([0-9]{1,9})", last)
    if match is None:
        raise ClientException(f"Last-Event-ID: {last[:64]!r} is no place in a log")
    return int(match[1]), int(match[2]) + 1


async def _where(gateway: Gateway, job: str, instance: int, rank: int, follow: bool) -> str:
    """The node where this task of the newest attempt is or was.

    Raises:
        Refused: 404, there is no such task, or it was never bound and is not waited for.
    """
    live = gateway.live
    await _recall(gateway, job)
    subscription = live.feed.follow(job)
    try:
        while True:
            found = await live.read(lambda state: _look(gateway, state, job, instance, rank))
            if found:
                return found
            if not follow or live.feed.closed:
                raise Refused(404, f"instance {instance} of job {job} has no attempt yet, so its rank {rank} has no output")
            await subscription.next(ALIVE_S)
    finally:
        subscription.close()


async def _recall(gateway: Gateway, job: str) -> None:
    """Look up in the log where attempts were that had ended when this gateway started."""
    live = gateway.live
    known = live.books.places.setdefault(job, {}) if live.recorded(job) is not None else {}

    def unknown(state: State) -> tuple[int, int]:
        found = state.jobs.get(job)
        if found is None or all(not each.attempts or each.index in known for each in found.instances):
            return 0, 0
        return found.place[0], state.number

    first, last = await live.read(unknown)
    if first:
        for instance, places in (await gateway.history.places(job, first, last)).items():
            known.setdefault(instance, places)


def _look(gateway: Gateway, state: State, job: str, instance: int, rank: int) -> str:
    found = state.jobs.get(job)
    if found is None:
        raise Refused(404, f"there is no job {job[:64]!r}")
    if instance >= len(found.instances):
        raise Refused(404, f"job {job} has the instances 0 to {len(found.instances) - 1}, not {instance}")
    places = gateway.live.books.places.get(job, {}).get(instance)
    if places is not None and (places.attempt == found.instances[instance].attempts):
        if rank not in places.nodes:
            raise Refused(404, f"attempt {places.attempt} of instance {instance} of job {job} has no rank {rank}")
        return places.nodes[rank]
    if found.instances[instance].phase in ("cancelled", "rejected", "failed") and not found.instances[instance].attempts:
        raise Refused(404, f"instance {instance} of job {job} is {found.instances[instance].phase} and never had an attempt")
    return ""


HANDLERS = [log, job_events, output]
