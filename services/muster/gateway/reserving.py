"""Reservations over HTTP. What recurs is expanded into instants here, and the version of the tables used is noted beside them."""

from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, delete, get, put
from litestar.params import FromPath
from msgspec import Meta

from muster.cluster.reservations import fault
from muster.cluster.state import State
from muster.events.codec import Malformed, decode_input, encode_entry
from muster.events.reservations import WINDOWS_MAX, ReservationRemoved, ReservationSet, Window
from muster.gateway.context import answered, decoded, of, only
from muster.gateway.described import returns, taking
from muster.gateway.guard import caller
from muster.gateway.history import Question
from muster.gateway.jobs import Accepted, At
from muster.gateway.problems import Refused, malformed
from muster.gateway.reserved import ReservationList
from muster.reading.recurring import expanded, tables

FOR_MAX_US: Final = 400 * 86_400_000_000

Any3 = Request[Any, Any, Any]


class ReservationSaid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is reserved: `nodes`, or `count` pieces of `gpus` GPUs; in these `windows`, or from `begin` on `for_us` long."""

    nodes: tuple[str, ...] = ()
    count: int = 0
    gpus: int = 0
    queue: str = ""
    """For this queue and those below it; or for a user; or for a job, by its id; none of them: maintenance."""
    user: str = ""
    job: str = ""
    windows: tuple[Window, ...] = ()
    begin: Annotated[str, Meta(max_length=64)] = ""
    """An instant such as 2026-12-05T08:00, in `zone`; with its own offset where it has one; empty is now."""
    for_us: Annotated[int, Meta(ge=0, le=FOR_MAX_US)] = 0
    every: Annotated[str, Meta(max_length=64)] = ""
    """Empty is once; `daily@02:00`, `weekdays@22:30`, `mon,thu@06:00` by the clocks of `zone`; or a span, such as `12h`."""
    zone: Annotated[str, Meta(max_length=64)] = ""
    """The name of a time zone such as Europe/Berlin; empty is UTC."""
    tzdata: Annotated[str, Meta(max_length=256)] = ""
    """With `windows` that were read by somebody else: by which version of the tables."""
    times: Annotated[int, Meta(ge=0, le=WINDOWS_MAX)] = 0
    """How often, with `every`; 0 is as often as can be said at once: 400 times."""


@get("/reservations", responses=returns(ReservationList, 200, 404, 503), summary="List reservations")
async def reservations(request: Any3, at: At = 0) -> Response[bytes]:
    """All reservations that are not over."""
    only(caller(request))
    return answered(await of(request).ask(Question(at=at, what="reservations")))


@put(
    "/reservations/{reservation:str}",
    status_code=202,
    operation_class=taking(ReservationSaid),
    responses=returns(Accepted, 202, 422, 503),
    summary="Reserve",
)
async def reserve(request: Any3, reservation: FromPath[str]) -> Response[bytes]:
    """Reserve nodes or an amount of GPUs, or change what is reserved by this name."""
    who = caller(request)
    who.require("operate")
    said = decoded(await request.body(), ReservationSaid)
    windows, zone, read_by = said.windows, said.zone, said.tzdata
    if windows and (said.begin or said.for_us or said.times):
        raise Refused(422, "windows: either these, or begin, for_us and times", field="windows")
    if not windows:
        try:
            windows, zone = expanded(said.begin, said.for_us, said.every, zone, said.times, of(request).live.now_us())
        except ValueError as error:
            raise Refused(422, str(error), field=str(error).partition(":")[0]) from None
        read_by = tables() if zone else ""
    event = ReservationSet(
        reservation=reservation,
        nodes=said.nodes,
        count=said.count,
        gpus=said.gpus,
        windows=windows,
        queue=said.queue,
        user=said.user,
        job=said.job,
        every=said.every,
        zone=zone,
        tzdata=read_by,
        by=who.by,
    )
    return await _say(request, event)


@delete(
    "/reservations/{reservation:str}", status_code=202, responses=returns(Accepted, 202, 422, 503), summary="Remove a reservation"
)
async def unreserve(request: Any3, reservation: FromPath[str]) -> Response[bytes]:
    """It is no more. What runs there goes on."""
    who = caller(request)
    who.require("operate")
    return await _say(request, ReservationRemoved(reservation=reservation, by=who.by))


async def _say(request: Any3, event: ReservationSet | ReservationRemoved) -> Response[bytes]:
    """Record it, if it can be said of the reservations that there are.

    Raises:
        Refused: 422, with what is wrong.
    """
    try:
        event, _ = decode_input(encode_entry(event))  # type: ignore[assignment]  # of the same kind
    except Malformed as error:
        raise malformed(error) from None
    gateway = of(request)

    def wrong(state: State) -> str:
        known = {name: each.spec for name, each in state.reservations.by_name.items()}
        queue = event.queue if isinstance(event, ReservationSet) else ""
        tree = {} if state.tree is None else state.tree.queues
        if queue and queue not in tree and queue not in state.policy.queues:
            return f"queue: there is no queue {queue!r}"
        return fault(state, known, event, gateway.live.now_us())

    why = await gateway.live.read(wrong)
    if why:
        raise Refused(422, why, field=why.partition(":")[0])
    recorded = await gateway.intake.operation(event)
    return answered(Accepted(cycle=gateway.live.feed.number if recorded else 0), 202)


HANDLERS = [reservations, reserve, unreserve]
