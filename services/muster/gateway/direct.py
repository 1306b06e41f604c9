"""The requests that come by hundreds or thousands a second, answered without an ASGI application.

These are submissions, reports, assignments, and the plain reads of what is now, because while a gateway in the leader's
process answers, nobody decides. They do the same as the handlers that describe them in the OpenAPI document
(`muster.gateway.jobs`, `agents`, `cluster`), through the same functions. Whatever is not plainly one of these goes the usual
way. How they come over a connection is `muster.gateway.wire`'s.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from muster.agent.protocol import POLL_S, Problem
from muster.events.codec import Malformed
from muster.gateway import agents, jobs, problems, shown
from muster.gateway.context import JSON, Gateway, only
from muster.gateway.guard import Caller
from muster.gateway.history import Question
from muster.gateway.problems import Refused

JOBS: Final = b"/v1/jobs"
JOB: Final = b"/v1/jobs/"
EXPLAIN: Final = b"/explain"
READS: Final = {b"/v1/jobs": "jobs", b"/v1/nodes": "nodes", b"/v1/queues": "queues", b"/v1/state": "state"}
NODES: Final = b"/v1/nodes/"
REPORTS: Final = b"/reports"
ASSIGNMENT: Final = b"/assignment"
QUERY: Final = frozenset(("after", "uid", "wait"))
PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-.")
"""What the names of nodes, and nearly all ids of jobs, are made of."""
PAGE_MAX: Final = 10_000

logger = logging.getLogger(__name__)


class Answer(msgspec.Struct, frozen=True):
    """What is sent back."""

    status: int
    body: bytes = b""
    media_type: str = JSON
    headers: dict[str, str] = {}


Handle = Callable[[Caller, bytes], Awaitable[Answer]]
"""Does a request with this body; see `Direct.find`."""


class Direct:
    """Finds what answers a request."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def find(self, method: bytes, url: bytes) -> Handle | None:
        """What answers this request, if it is plainly one of these."""
        if method == b"POST":
            if url == JOBS:
                return self._submit
            if url.startswith(NODES) and url.endswith(REPORTS):
                name = _name(url[len(NODES) : -len(REPORTS)])
                return self._report(name) if name else None
        elif method == b"GET":
            path, _, query = url.partition(b"?")
            if path.startswith(NODES) and path.endswith(ASSIGNMENT):
                name = _name(path[len(NODES) : -len(ASSIGNMENT)])
                asked = _asked(query)
                return self._assignment(name, *asked) if name and asked is not None else None
            question = _question(path, query)
            return self._read(question) if question is not None else None
        return None

    async def _submit(self, who: Caller, body: bytes) -> Answer:
        return Answer(202, await jobs.take(self._gateway, who, body))

    def _report(self, name: str) -> Handle:
        async def handle(who: Caller, body: bytes) -> Answer:
            return Answer(202, await agents.take(self._gateway, who, name, body))

        return handle

    def _assignment(self, name: str, after: int, uid: str, wait_s: float) -> Handle:
        async def handle(who: Caller, body: bytes) -> Answer:
            who.require_node(name)
            found = await self._gateway.polls.poll(name, after, uid, wait_s)
            return Answer(204) if found is None else Answer(200, found)

        return handle

    def _read(self, question: Question) -> Handle:
        async def handle(who: Caller, body: bytes) -> Answer:
            user = only(who)
            if user and question.what in ("jobs", "job", "explain", "node"):
                return Answer(200, await self._gateway.ask(msgspec.structs.replace(question, only=user)))
            return Answer(200, await self._gateway.ask(question))

        return handle


async def answer(handle: Handle, who: Caller, body: bytes) -> Answer:
    """Do a request. Whatever goes wrong is an answer too."""
    try:
        return await handle(who, body)
    except Refused as error:
        return Answer(error.problem.status, problems.body(error.problem), problems.PROBLEM, error.headers)
    except Malformed as error:
        problem = problems.malformed(error).problem
        return Answer(problem.status, problems.body(problem), problems.PROBLEM)
    except Exception as error:
        logger.error("a request failed", exc_info=error)
        return Answer(
            500, problems.body(Problem(title="Internal Server Error", status=500, detail=problems.FAILED)), problems.PROBLEM
        )


def _name(part: bytes) -> str:
    """The name of a node, if this part of a path plainly is one."""
    return part.decode() if part and PLAIN.issuperset(part) else ""


def _question(path: bytes, query: bytes) -> Question | None:
    """What is read, if this plainly is a read of what is now."""
    if query:
        name, _, limit = query.partition(b"=")
        if path == JOBS and name == b"limit" and limit.isdigit() and len(limit) < 6 and 1 <= int(limit) <= PAGE_MAX:
            return Question(at=0, what="jobs", limit=int(limit))
        return None
    if path in READS:
        return Question(at=0, what=READS[path], limit=shown.LIMIT)
    if path.startswith(JOB):
        what = "explain" if path.endswith(EXPLAIN) else "job"
        job = _name(path[len(JOB) : -len(EXPLAIN)] if what == "explain" else path[len(JOB) :])
        return Question(at=0, what=what, key=job) if job else None
    if path.startswith(NODES):
        node = _name(path[len(NODES) :])
        return Question(at=0, what="node", key=node) if node else None
    return None


def _asked(query: bytes) -> tuple[int, str, float] | None:
    """`after`, `uid` and `wait`, if the query plainly has these and nothing else."""
    try:
        given = dict(parse_qsl(query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(query)))
        after, wait_s = given.get("after", "0"), float(given.get("wait", POLL_S))
    except ValueError:
        return None
    if not (QUERY.issuperset(given) and after.isdecimal() and len(after) < 17 and 0 <= wait_s <= POLL_S):
        return None
    return int(after), given.get("uid", ""), wait_s
