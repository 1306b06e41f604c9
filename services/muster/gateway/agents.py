"""Agents over HTTP: reports, assignments, output. The types are `muster.agent.protocol`'s."""

import time
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from muster.agent.protocol import CHUNK_BYTES, POLL_S, AgentAssignment, ReportAnswer
from muster.cluster.state import State
from muster.events.codec import Malformed, decode_report
from muster.events.levels import NodeReport
from muster.gateway.context import Gateway, answered, of
from muster.gateway.described import TakingBytes, nothing, returns, taking
from muster.gateway.guard import Caller, caller
from muster.gateway.problems import Refused, malformed

REFUSE_S: Final = 20.0
"""An agent whose last report is older than this no longer keeps others from its name, once the log agrees."""
CONTESTED_S: Final = 60.0

Any3 = Request[Any, Any, Any]


@post(
    "/nodes/{name:str}/reports",
    status_code=202,
    operation_class=taking(NodeReport),
    responses=returns(ReportAnswer, 202, 409, 413, 422, 503),
    summary="Report a node's level",
)
async def report(request: Any3, name: FromPath[str]) -> Response[bytes]:
    """Answered when what is new in it is durable: then the node's tasks may run on for `lease_us` from when it was sent."""
    return answered(await take(of(request), caller(request), name, await request.body()), 202)


async def take(gateway: Gateway, who: Caller, name: str, body: bytes) -> bytes:
    """Take a report; the answer as JSON, once what is new in it is durable.

    Raises:
        Refused: it is none, or not this node's, or another agent has the name.
    """
    who.require_node(name)
    try:
        said = decode_report(body)
    except Malformed as error:
        raise malformed(error) from None
    if said.node != name:
        raise Refused(422, f"node: the report is of {said.node!r}, and came as one of {name[:64]!r}", field="node")
    now = time.monotonic()
    books = gateway.live.books
    uid, heard = gateway.heard.get(name, ("", 0.0))
    if books.lives.get(name, ("", ""))[0] != said.uid or (uid != said.uid and now - heard < REFUSE_S):
        await gateway.live.read(lambda state: _claim(gateway, state, said))
    gateway.heard[name] = (said.uid, now)
    await gateway.intake.report(body, name)
    return _report_answer(gateway, said)


@get(
    "/nodes/{name:str}/assignment",
    responses=returns(AgentAssignment, 200, 404, 409, 503) | {204: nothing("Nothing new in the time")},
    summary="Wait for a node's assignment",
)
async def assignment(
    request: Any3,
    name: FromPath[str],
    after: Annotated[int, QueryParameter(ge=0, le=2**53, description="The cycle of the newest assignment the agent has.")] = 0,
    uid: FromQuery[str] = "",
    wait: Annotated[float, QueryParameter(ge=0, le=POLL_S, description="Seconds.")] = POLL_S,
) -> Response[bytes]:
    """Answered as soon as the assignment is newer than cycle `after` or output is wanted; 204 when nothing came of it."""
    caller(request).require_node(name)
    found = await of(request).polls.poll(name, after, uid, wait)
    return Response(b"", status_code=204) if found is None else answered(found)


@post(
    "/nodes/{name:str}/output/{wanted:str}",
    status_code=204,
    operation_class=TakingBytes,
    responses=returns(None, 204, 409, 410, 413, 503),
    summary="Send output that is wanted",
)
async def output(
    request: Any3,
    name: FromPath[str],
    wanted: FromPath[str],
    offset: Annotated[int, QueryParameter(ge=0, le=2**53)] = 0,
    end: Annotated[bool, QueryParameter(description="No more will come.")] = False,
) -> None:
    """A piece of the output of a task, from its place `offset` on."""
    caller(request).require_node(name)
    data = await request.body()
    if len(data) > CHUNK_BYTES:
        raise Refused(413, f"the piece has {len(data)} bytes; at most {CHUNK_BYTES} are taken at once")
    await of(request).outputs.put(name, wanted, data, offset, end)


def _claim(gateway: Gateway, state: State, said: NodeReport) -> None:
    """Refuse an agent whose name another one has that is heard.

    Raises:
        Refused: 409.
    """
    now = time.monotonic()
    node = state.node(said.node)
    uid, heard = gateway.heard.get(said.node, ("", 0.0))
    recent = bool(uid) and now - heard < REFUSE_S
    if node is not None and node.uid != said.uid and node.liveness == "heard":
        holder = node.uid
    elif recent and uid != said.uid:
        holder = uid
    else:
        return
    gateway.contested[said.node] = (said.uid, now)
    detail = f"another agent, with uid {holder}, has the name {said.node} and is heard; give this one another name, or stop that"
    raise Refused(409, detail, field="node")


def _report_answer(gateway: Gateway, said: NodeReport) -> bytes:
    """The answer to a report, as of the last admitted cycle."""
    books = gateway.live.books
    rival, when = gateway.contested.get(said.node, ("", 0.0))
    warning = ""
    if rival and rival != said.uid and time.monotonic() - when < CONTESTED_S:
        warning = f"another agent, with uid {rival}, claims the name {said.node} and was refused"
    return msgspec.json.encode(
        ReportAnswer(
            lease_us=max(books.lease_us, books.lease_until_us - gateway.live.now_us()),
            known=books.lives.get(said.node) == (said.uid, said.boot),
            warning=warning,
        )
    )


HANDLERS = [report, assignment, output]
