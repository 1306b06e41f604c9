"""The tree of queues over HTTP: what operators say of a queue, and that it goes."""

from typing import Any, Final

import msgspec
from litestar import Request, Response, delete, put
from litestar.params import FromPath

from muster.cluster.queuetree import fault
from muster.cluster.state import State
from muster.events.codec import Malformed, decode_input, encode_entry
from muster.events.queues import QueueRemoved, QueueSet
from muster.gateway.context import answered, decoded, of
from muster.gateway.described import returns, taking
from muster.gateway.guard import caller
from muster.gateway.jobs import Accepted
from muster.gateway.problems import Refused, malformed

Any3 = Request[Any, Any, Any]

QueueSaid: Final = msgspec.defstruct(
    "QueueSaid",
    [
        (field.name, field.type, field.default)
        for field in msgspec.structs.fields(QueueSet)
        if field.name not in ("queue", "by") and field.default is not msgspec.NODEFAULT
    ],
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    namespace={"__doc__": "What a queue is: all its fields; those that are left out take their defaults."},
)


@put(
    "/queues/{queue:str}",
    status_code=202,
    operation_class=taking(QueueSaid),
    responses=returns(Accepted, 202, 422, 503),
    summary="Set a queue",
)
async def set_queue(request: Any3, queue: FromPath[str]) -> Response[bytes]:
    """Make the queue, or change all its fields at once. Nothing that runs ends by that."""
    who = caller(request)
    who.require("operate")
    said = decoded(await request.body(), QueueSaid)
    return await _say(request, QueueSet(queue=queue, by=who.by, **msgspec.structs.asdict(said)))


@delete("/queues/{queue:str}", status_code=202, responses=returns(Accepted, 202, 422, 503), summary="Remove a queue")
async def remove_queue(request: Any3, queue: FromPath[str]) -> Response[bytes]:
    """Close the queue: nothing more is bound from it, and it is gone when it is empty."""
    who = caller(request)
    who.require("operate")
    return await _say(request, QueueRemoved(queue=queue, by=who.by))


async def _say(request: Any3, event: QueueSet | QueueRemoved) -> Response[bytes]:
    """Record it, if it can be said of the queues that there are.

    Raises:
        Refused: 422, with what is wrong.
    """
    try:
        event, _ = decode_input(encode_entry(event))  # type: ignore[assignment]  # of the same kind
    except Malformed as error:
        raise malformed(error) from None
    gateway = of(request)

    def wrong(state: State) -> str:
        return fault(state.tree.said if state.tree is not None else {}, event)

    why = await gateway.live.read(wrong)
    if why:
        raise Refused(422, why, field="queue")
    recorded = await gateway.intake.operation(event)
    return answered(Accepted(cycle=gateway.live.feed.number if recorded else 0), 202)


HANDLERS = [set_queue, remove_queue]
