"""Why a request was not done: one exception, and every failure as `application/problem+json` (RFC 9457).

A person reads `detail`: one sentence, what is wrong and what would be right. `field` names the field of the body.
"""

import logging
import re
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from muster.agent.protocol import Problem
from muster.events.codec import Malformed

PROBLEM: Final = "application/problem+json"
FAILED: Final = "the gateway failed; its log says how"

SAID: Final = {"first": "from", "phase": "state", "ids": "id"}
"""How a request calls parameters that are called otherwise here."""

logger = logging.getLogger(__name__)


class Refused(Exception):
    """The request is not done, and why."""

    def __init__(self, status: int, detail: str, field: str | None = None, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, field=field)
        self.headers = headers or {}


def malformed(error: Malformed) -> Refused:
    """What the edge says of a body; its sentence begins with the field where there is one."""
    text = str(error)
    match = re.match(r"([A-Za-z_][\w.\[\]-]*): ", text)
    return Refused(422, text, field=match[1] if match else None)


def body(problem: Problem) -> bytes:
    """The problem's bytes; what says nothing is left out."""
    return msgspec.json.encode({name: value for name, value in msgspec.structs.asdict(problem).items() if value is not None})


def respond(problem: Problem, headers: dict[str, str] | None = None) -> Response[bytes]:
    """The problem as a response."""
    return Response(body(problem), status_code=problem.status, media_type=PROBLEM, headers=headers)


def on_refused(_: Request[Any, Any, Any], error: Refused) -> Response[bytes]:
    """Litestar's handler of `Refused`."""
    return respond(error.problem, error.headers)


def on_malformed(_: Request[Any, Any, Any], error: Malformed) -> Response[bytes]:
    """Litestar's handler of `Malformed`."""
    return respond(malformed(error).problem)


def on_http(_: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """What Litestar itself refuses: no such path, a parameter that is none."""
    detail = error.detail
    field = None
    extra = getattr(error, "extra", None)
    if isinstance(extra, list) and extra and isinstance(extra[0], dict):
        key = str(extra[0].get("key") or "")
        field = SAID.get(key, key) or None
        detail = f"{field}: {extra[0].get('message')}" if field else detail
    status = error.status_code
    headers = dict(error.headers) if isinstance(error.headers, dict) else None
    return respond(Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, field=field), headers)


def on_failure(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """A fault of ours: the log of the process says more than the answer does."""
    logger.error("%s %s", request.method, request.url.path, exc_info=error)
    return respond(Problem(title="Internal Server Error", status=500, detail=FAILED))
