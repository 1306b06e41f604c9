"""Nodes, queues, the cell, and what operators do, over HTTP."""

from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import Request, Response, get, post, put
from litestar.params import FromPath
from msgspec import Meta

from muster.cluster.state import State
from muster.engine.policies import unknown
from muster.events.catalogue import CatalogueSet
from muster.events.codec import Malformed, decode_input, encode_entry
from muster.events.nodes import NodeRemoved
from muster.events.operations import (
    LeaseExtended,
    LicencesSet,
    NodeCordoned,
    NodeDrained,
    NodeFenced,
    NodeUncordoned,
    Policy,
    PolicySet,
)
from muster.gateway import shown
from muster.gateway.context import answered, decoded, of, only
from muster.gateway.described import returns, taking
from muster.gateway.guard import caller
from muster.gateway.history import Question
from muster.gateway.jobs import Accepted, At
from muster.gateway.problems import Refused, malformed

LEASE_MAX_US: Final = 7 * 24 * 3600 * 1_000_000

Operation = Literal["cordon", "uncordon", "drain", "fence", "remove"]

Any3 = Request[Any, Any, Any]


class Extend(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For how long from now no node is held to be lost."""

    for_us: Annotated[int, Meta(ge=1, le=LEASE_MAX_US)]


class Consumables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All consumables of the cell: how many of each, by name."""

    licences: dict[str, int]


class Extended(msgspec.Struct, frozen=True, kw_only=True):
    """Until this instant of log time no node is held to be lost."""

    cycle: int
    until_us: int


@get("/nodes", responses=returns(shown.NodeList, 200, 404, 503), summary="List nodes")
async def nodes(request: Any3, at: At = 0) -> Response[bytes]:
    """All nodes, with what is free on each."""
    only(caller(request))
    return answered(await of(request).ask(Question(at=at, what="nodes")))


@get("/nodes/{name:str}", responses=returns(shown.NodeShown, 200, 404, 503), summary="Show a node")
async def node(request: Any3, name: FromPath[str], at: At = 0) -> Response[bytes]:
    """A node with its devices and what it holds."""
    return answered(await of(request).ask(Question(at=at, what="node", key=name, only=only(caller(request)))))


@get("/queues", responses=returns(shown.QueueList, 200, 404, 503), summary="List queues")
async def queues(request: Any3, at: At = 0) -> Response[bytes]:
    """The queues, and how much waits and runs in each."""
    only(caller(request))
    return answered(await of(request).ask(Question(at=at, what="queues")))


@get("/state", responses=returns(shown.CellShown, 200, 404, 503), summary="Show the cell")
async def state(request: Any3, at: At = 0) -> Response[bytes]:
    """Where the log stands, who leads by which term, and the policy."""
    only(caller(request))
    return answered(await of(request).ask(Question(at=at, what="state")))


@post(
    "/nodes/{name:str}/{operation:str}",
    status_code=202,
    responses=returns(Accepted, 202, 404, 503),
    summary="Operate a node",
)
async def operate(request: Any3, name: FromPath[str], operation: FromPath[str]) -> Response[bytes]:
    """`cordon`, `uncordon`, `drain`, `fence` (somebody made sure that nothing runs there) or `remove`."""
    who = caller(request)
    who.require("operate")
    kinds = {"cordon": NodeCordoned, "uncordon": NodeUncordoned, "drain": NodeDrained, "fence": NodeFenced}
    if operation not in kinds and operation != "remove":
        raise Refused(404, f"nodes are operated by {', '.join(kinds)} or remove, not by {operation[:64]!r}")
    gateway = of(request)
    uid = await gateway.live.read(lambda now: _uid(now, name))
    event = NodeRemoved(node=name, uid=uid) if operation == "remove" else kinds[operation](node=name, by=who.by)
    recorded = await gateway.intake.operation(event)
    return answered(Accepted(cycle=gateway.live.feed.number if recorded else 0), 202)


@post(
    "/lease/extend",
    status_code=202,
    operation_class=taking(Extend),
    responses=returns(Extended, 202, 422, 503),
    summary="Extend all leases",
)
async def extend(request: Any3) -> Response[bytes]:
    """Announce an outage: for so long no node is held to be lost, and tasks run on without word from here."""
    who = caller(request)
    who.require("operate")
    gateway = of(request)
    until_us = gateway.live.now_us() + decoded(await request.body(), Extend).for_us
    recorded = await gateway.intake.operation(LeaseExtended(until_us=until_us, by=who.by))
    return answered(Extended(cycle=gateway.live.feed.number if recorded else 0, until_us=until_us), 202)


@put(
    "/policy",
    status_code=202,
    operation_class=taking(Policy),
    responses=returns(Accepted, 202, 422, 503),
    summary="Set the policy",
)
async def policy(request: Any3) -> Response[bytes]:
    """From the next cycle on decisions follow this policy; fields that are left out take their defaults."""
    who = caller(request)
    who.require("operate")
    body = (await request.body()).strip()
    try:
        if not body.startswith(b"{"):
            raise Malformed("the body is no JSON object: a policy is one")
        by = msgspec.json.encode(who.by)
        event, _ = decode_input(b'["PolicySet",1,{"policy":' + body + b',"by":' + by + b"}]")
        if not isinstance(event, PolicySet):
            raise Malformed("the body is no policy")
        why = unknown(event.policy)
        if why:
            raise Malformed(why)
    except Malformed as error:
        raise malformed(error) from None
    gateway = of(request)
    recorded = await gateway.intake.operation(event)
    return answered(Accepted(cycle=gateway.live.feed.number if recorded else 0), 202)


@put(
    "/licences",
    status_code=202,
    operation_class=taking(Consumables),
    responses=returns(Accepted, 202, 422, 503),
    summary="Set the licences",
)
async def licences(request: Any3) -> Response[bytes]:
    """From the next cycle on the cell has these consumables, by name, and no others. What is held stays held."""
    who = caller(request)
    who.require("operate")
    body = (await request.body()).strip()
    try:
        said = LicencesSet(licences=decoded(body, Consumables).licences, by=who.by)
        event, _ = decode_input(encode_entry(said))
    except Malformed as error:
        raise malformed(error) from None
    gateway = of(request)
    recorded = await gateway.intake.operation(event)
    return answered(Accepted(cycle=gateway.live.feed.number if recorded else 0), 202)


@get("/catalogue", responses=returns(shown.Catalogue, 200, 404, 503), summary="The device catalogue")
async def catalogue(request: Any3, at: At = 0) -> Response[bytes]:
    """What models of GPU can do, as the cell was told. Jobs that ask for that are given models of it when they are submitted."""
    only(caller(request))
    return answered(await of(request).ask(Question(at=at, what="catalogue")))


@put(
    "/catalogue",
    status_code=202,
    operation_class=taking(shown.Catalogue),
    responses=returns(Accepted, 202, 422, 503),
    summary="Set the device catalogue",
)
async def set_catalogue(request: Any3) -> Response[bytes]:
    """From the next cycle on the cell knows these models of GPU and no others. Jobs keep the models that they were given."""
    who = caller(request)
    who.require("operate")
    body = (await request.body()).strip()
    try:
        event, _ = decode_input(encode_entry(CatalogueSet(models=decoded(body, shown.Catalogue).models, by=who.by)))
    except Malformed as error:
        raise malformed(error) from None
    gateway = of(request)
    recorded = await gateway.intake.operation(event)
    return answered(Accepted(cycle=gateway.live.feed.number if recorded else 0), 202)


def _uid(now: State, name: str) -> str:
    found = now.node(name)
    if found is None:
        raise Refused(404, f"there is no node {name[:64]!r}")
    return found.uid


HANDLERS = [nodes, node, queues, state, operate, extend, policy, licences, catalogue, set_catalogue]
