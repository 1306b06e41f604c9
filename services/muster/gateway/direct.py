"""The requests that come by thousands a second, answered without Litestar: submissions, reports, assignments.

They do the same as the handlers that describe them in the OpenAPI document (`jobs.submit`, `agents.report`,
`agents.assignment`) and cost a fifth. Whatever is not plainly one of these goes the usual way.
"""

import logging
from typing import Any, Final
from urllib.parse import parse_qsl

from litestar.types import Receive, Send

from muster.agent.protocol import POLL_S, Problem
from muster.events.codec import Malformed
from muster.gateway import agents, jobs, problems
from muster.gateway.context import Gateway
from muster.gateway.guard import Caller, answer
from muster.gateway.problems import Refused

NODES: Final = "/v1/nodes/"
QUERY: Final = frozenset(("after", "uid", "wait"))

logger = logging.getLogger(__name__)


class Direct:
    """Answers what it can."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Any, receive: Receive, send: Send, who: Caller) -> bool:
        """Whether the request was one of these, and is answered."""
        path: str = scope["path"]
        method: str = scope["method"]
        name, _, last = path[len(NODES) :].partition("/") if path.startswith(NODES) else ("", "", "")
        try:
            if method == "POST" and path == "/v1/jobs":
                await answer(send, 202, await jobs.take(self._gateway, who, await _body(receive)))
            elif method == "POST" and last == "reports":
                await answer(send, 202, await agents.take(self._gateway, who, name, await _body(receive)))
            elif method == "GET" and last == "assignment":
                asked = _asked(scope["query_string"])
                if asked is None:
                    return False
                who.require_node(name)
                found = await self._gateway.polls.poll(name, *asked)
                await answer(send, 204 if found is None else 200, found or b"")
            else:
                return False
        except Refused as error:
            await answer(send, error.problem.status, problems.body(error.problem), problems.PROBLEM, error.headers)
        except Malformed as error:
            problem = problems.malformed(error).problem
            await answer(send, problem.status, problems.body(problem), problems.PROBLEM)
        except Exception as error:
            logger.error("%s %s", method, path, exc_info=error)
            problem = Problem(title="Internal Server Error", status=500, detail=problems.FAILED)
            await answer(send, 500, problems.body(problem), problems.PROBLEM)
        return True


async def _body(receive: Receive) -> bytes:
    """All of the body; the guard has looked how long it is."""
    parts: list[bytes] = []
    while True:
        message: Any = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the connection ended before the body did")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


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
