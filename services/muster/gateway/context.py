"""What all handlers share, and how they find it."""

import asyncio
from typing import Any, TypeVar

import msgspec
from litestar import Response

from muster.cluster.jobs import Job
from muster.cluster.state import State
from muster.gateway.guard import Caller, caller
from muster.gateway.history import History, Question, answer
from muster.gateway.intake import Intake
from muster.gateway.job_tokens import Secrets
from muster.gateway.live import Live
from muster.gateway.outputs import Outputs
from muster.gateway.polls import Polls
from muster.gateway.problems import Refused
from muster.gateway.shown import CellShown
from muster.metrics import Metrics

JSON = "application/json"

Body = TypeVar("Body", bound=msgspec.Struct)


class Gateway:
    """One cell's gateway, without its HTTP."""

    def __init__(self, live: Live, intake: Intake, history: History, secrets: Secrets | None = None) -> None:
        """`secrets`: those of attempts; without them no job proves to anybody that it is one."""
        self.live = live
        self.intake = intake
        self.history = history
        self.polls = Polls(live, secrets.of if secrets is not None else None)
        self.outputs = Outputs(self.polls)
        self.metrics: Metrics | None = None
        self.heard: dict[str, tuple[str, float]] = {}
        """Uid and monotonic time of the last report taken, by name of the node."""
        self.contested: dict[str, tuple[str, float]] = {}
        """Names that another agent claims: what to tell the one that has it, and when that was."""
        self.one_of_several = False
        """Whether agents may be at other gateways than this one."""
        self.closing = asyncio.Event()

    def close(self) -> None:
        """Nobody waits any longer."""
        self.closing.set()
        self.polls.close()
        self.outputs.close()
        self.live.feed.close()
        self.history.close()

    async def ask(self, question: Question, head_too: bool = False) -> bytes:
        """The answer as JSON, from the state as it is, or as it was where the question names a cycle."""
        if question.at:
            return await self.history.ask(question)

        def look(state: State) -> bytes:
            if question.what == "queues":
                return msgspec.json.encode(self.live.books.queues.shown(state))
            found = answer(state, question, self.live.head)
            if isinstance(found, CellShown):
                found = msgspec.structs.replace(found, behind_us=self.live.behind_us())
            return msgspec.json.encode(found)

        return await self.live.read(look)


def of(request: Any) -> Gateway:
    """The gateway of this application."""
    found: Gateway = request.app.state["gateway"]
    return found


def only(who: Caller) -> str:
    """Whose jobs the caller may see: empty for all."""
    who.require("read", "operate", "submit")
    token = who.token
    if token is None or token.role != "submit":
        return ""
    if not token.user:
        raise Refused(403, "this token names no user, so it has no jobs to read")
    return token.user


async def job_of(request: Any, job: str, *, change: bool = False) -> Job:
    """The job, if the caller may see it (or change it).

    Raises:
        Refused: 404, also where it may not be seen.
    """
    who = caller(request)

    def look(state: State) -> Job | None:
        found = state.jobs.get(job)
        return found if found is not None and (who.changes(found) if change else who.sees(found)) else None

    found = await of(request).live.read(look)
    if found is None:
        raise Refused(404, f"there is no job {job[:64]!r}" + (" that this token may change" if who.token else ""))
    return found


def decoded(body: bytes, kind: type[Body]) -> Body:
    """A small body.

    Raises:
        Refused: 422, naming the field.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        text, _, place = str(error).partition(" - at `$.")
        field = place.removesuffix("`") or None
        raise Refused(422, f"{field}: {text}" if field else text, field=field) from None


def answered(data: bytes | msgspec.Struct, status: int = 200) -> Response[bytes]:
    """A JSON answer."""
    return Response(data if isinstance(data, bytes) else msgspec.json.encode(data), status_code=status, media_type=JSON)
