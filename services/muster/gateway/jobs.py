"""Jobs over HTTP: submitting, looking, explaining, cancelling, changing priority and size."""

import re
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from muster.cluster.evolve_elastic import resize_fault
from muster.cluster.jobs import Job
from muster.cluster.state import State
from muster.engine.eta import Eta
from muster.engine.explain import Explanation
from muster.engine.whynot import WhyNot
from muster.events.base import InstanceIndex, Priority, TaskCount
from muster.events.codec import Malformed, decode_input, encode_entry
from muster.events.jobs import JobCancelRequested, JobCheckpointed, JobReprioritised, JobResizeRequested, JobSubmitted
from muster.gateway import shown
from muster.gateway.context import Gateway, answered, decoded, job_of, of, only
from muster.gateway.described import returns, taking
from muster.gateway.guard import Caller, caller
from muster.gateway.history import Question
from muster.gateway.job_tokens import SUBMITTED_WITH
from muster.gateway.problems import Refused, malformed

SUBMISSIONS_MAX = 1000
IDS_MAX = 500

At = Annotated[int, QueryParameter(name="at", ge=0, le=2**53, description="As it was after this cycle; 0 is now.")]
After = Annotated[str, QueryParameter(description="The id of the last job seen: go on behind it.")]
Ids = Annotated[str, QueryParameter(name="id", description="Only these jobs: ids, with commas between them.")]
JobState = Literal["", "pending", "starting", "running", "stopping", "finished", "failed", "cancelled", "rejected"]


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """The submission is taken: this job is in the log for good, or on the bus and will be."""

    job: str
    cycle: int
    """0 where it waits to be recorded: `/v1/submissions/ID` says what becomes of it."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one submission."""

    job: str
    cycle: int = 0
    state: Literal["recorded", "refused", "waiting"] = "recorded"
    reason: str = ""


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """It is recorded, in this cycle or one before it; 0 where it is on the bus and waits to be recorded."""

    cycle: int


class Cancel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to cancel: one instance, or all of the job."""

    instance: InstanceIndex | None = None


class NewPriority(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The priority that the job is to have."""

    priority: Priority


class NewSize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many tasks each instance is to have."""

    count: TaskCount


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What saved its work: one instance, or all of the job."""

    instance: InstanceIndex | None = None


Any3 = Request[Any, Any, Any]


@post(
    "/jobs",
    status_code=202,
    operation_class=taking(JobSubmitted),
    responses=returns(Submitted, 202, 409, 413, 422, 503),
    summary="Submit a job",
)
async def submit(request: Any3) -> Response[bytes]:
    """Answered when the submission is durable. The same id again gets the same answer, and is no second job."""
    return answered(await take(of(request), caller(request), await request.body()), 202)


@post(
    "/submissions",
    status_code=202,
    operation_class=taking(JobSubmitted, many=True),
    responses=returns(list[Submission], 202, 413, 422, 503),
    summary="Submit many jobs",
)
async def submit_many(request: Any3) -> Response[bytes]:
    """Each is taken or refused by itself; what is refused here already (422) names the place, and then none is taken."""
    who = caller(request)
    who.require("submit", "operate")
    try:
        bodies = msgspec.json.decode(await request.body(), type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise Refused(422, f"the body is no list of jobs: {error}") from None
    if len(bodies) > SUBMISSIONS_MAX:
        raise Refused(413, f"the list has {len(bodies)} jobs; at most {SUBMISSIONS_MAX} are taken at once")
    taken: list[tuple[JobSubmitted, bytes]] = []
    for place, body in enumerate(bodies):
        try:
            taken.append(_signed(who, *_decode(bytes(body))))
        except Malformed as error:
            raise Refused(422, f"[{place}]: {error}", field=f"[{place}]") from None
    gateway = of(request)
    for event, _ in taken:
        _allow(gateway, who, event, len(taken))
        await _allow_after(gateway, who, event)
    waiting = [gateway.intake.begin_job(data, event.job) for event, data in taken]
    await gateway.intake.durable(waiting)
    return answered(msgspec.json.encode([await _became(gateway, who, event.job) for event, _ in taken]), 202)


@get("/submissions/{job:str}", responses=returns(Submission, 200, 404, 503), summary="What became of a submission")
async def submission(request: Any3, job: FromPath[str]) -> Response[bytes]:
    """Whether the submission with this id was recorded, in which cycle, why it was refused, or that it waits on the bus."""
    who = caller(request)
    who.require("submit", "operate", "read")
    return answered(await _became(of(request), who, job, ours=False))


@get("/jobs", responses=returns(shown.JobList, 200, 404, 422, 503), summary="List jobs")
async def jobs(
    request: Any3,
    phase: Annotated[JobState, QueryParameter(name="state", description="Only jobs in this state.")] = "",
    user: FromQuery[str] = "",
    queue: FromQuery[str] = "",
    name: FromQuery[str] = "",
    at: At = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=10_000)] = shown.LIMIT,
    after: After = "",
    ids: Ids = "",
) -> Response[bytes]:
    """Jobs in the order in which they were submitted: those that the cell still knows."""
    question = Question(
        at=at,
        what="jobs",
        state=phase,
        user=user,
        queue=queue,
        name=name,
        only=only(caller(request)),
        limit=limit,
        after=after,
        ids=_ids(ids),
    )
    return answered(await of(request).ask(question))


@get("/elements", responses=returns(shown.ElementList, 200, 404, 422, 503), summary="List jobs with their instances")
async def elements(
    request: Any3,
    user: FromQuery[str] = "",
    queue: FromQuery[str] = "",
    name: FromQuery[str] = "",
    over: Annotated[bool, QueryParameter(description="Also jobs and instances that are over.")] = False,
    at: At = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=shown.LIMIT)] = shown.LIMIT,
    after: After = "",
    ids: Ids = "",
) -> Response[bytes]:
    """Jobs and the instances of each, one line an instance is enough for: what `squeue` shows."""
    question = Question(
        at=at,
        what="elements",
        user=user,
        queue=queue,
        name=name,
        only=only(caller(request)),
        limit=limit,
        after=after,
        ids=_ids(ids),
        over=over,
    )
    return answered(await of(request).ask(question))


def _ids(text: str) -> tuple[str, ...]:
    found = tuple(part for part in text.split(",") if part)
    if len(found) > IDS_MAX:
        raise Refused(422, f"id: {len(found)} jobs are asked for; at most {IDS_MAX} are shown at once", field="id")
    if text and not found:
        raise Refused(422, "id: no id of a job is said", field="id")
    return found


@get("/jobs/{job:str}", responses=returns(shown.JobShown, 200, 404, 503), summary="Show a job")
async def job(request: Any3, job: FromPath[str], at: At = 0) -> Response[bytes]:
    """A job with its instances and their present attempts."""
    return answered(await of(request).ask(Question(at=at, what="job", key=job, only=only(caller(request)))))


@get("/jobs/{job:str}/explain", responses=returns(Explanation, 200, 404, 503), summary="Explain a job")
async def explain(
    request: Any3,
    job: FromPath[str],
    instance: Annotated[int, QueryParameter(ge=0, le=100_000)] = 0,
    at: At = 0,
    advise: FromQuery[bool] = False,
) -> Response[bytes]:
    """Why it waits or where it is, worked out from the state, with all numbers; with `advise`, what would start it now too."""
    question = Question(at=at, what="explain", key=job, instance=instance, only=only(caller(request)), advise=advise)
    return answered(await of(request).ask(question))


@get("/jobs/{job:str}/why-not/{node:str}", responses=returns(WhyNot, 200, 404, 503), summary="Explain a job on one node")
async def why_not(
    request: Any3,
    job: FromPath[str],
    node: FromPath[str],
    instance: Annotated[int, QueryParameter(ge=0, le=100_000)] = 0,
    at: At = 0,
) -> Response[bytes]:
    """Everything that keeps the job off this node, worked out from the state."""
    question = Question(at=at, what="why-not", key=job, name=node, instance=instance, only=only(caller(request)))
    return answered(await of(request).ask(question))


@get("/jobs/{job:str}/eta", responses=returns(Eta, 200, 404, 503), summary="Say when a job is to start")
async def eta(
    request: Any3, job: FromPath[str], instance: Annotated[int, QueryParameter(ge=0, le=100_000)] = 0, at: At = 0
) -> Response[bytes]:
    """When and where it is planned, or when it could start as everybody's promised end stands."""
    question = Question(at=at, what="eta", key=job, instance=instance, only=only(caller(request)))
    return answered(await of(request).ask(question))


@post(
    "/jobs/{job:str}/cancel",
    status_code=202,
    operation_class=taking(Cancel),
    responses=returns(Accepted, 202, 404, 422, 503),
    summary="Cancel a job",
)
async def cancel(request: Any3, job: FromPath[str]) -> Response[bytes]:
    """Tell the job, or one instance of it, to end. Answered when that is durable."""
    caller(request).require("submit", "operate")
    found = await job_of(request, job, change=True)
    instance = decoded(await request.body() or b"{}", Cancel).instance
    _has(found, instance)
    return await _say(request, JobCancelRequested(job=job, instance=instance, by=caller(request).by))


def _has(job: Job, instance: int | None) -> None:
    if instance is not None and instance >= len(job.instances):
        raise Refused(422, f"the job has the instances 0 to {len(job.instances) - 1}, not {instance}", field="instance")


@post(
    "/jobs/{job:str}/priority",
    status_code=202,
    operation_class=taking(NewPriority),
    responses=returns(Accepted, 202, 404, 422, 503),
    summary="Change priority",
)
async def priority(request: Any3, job: FromPath[str]) -> Response[bytes]:
    """Give the job another priority. Answered when that is durable."""
    who = caller(request)
    who.require("submit", "operate")
    await job_of(request, job, change=True)
    wanted = decoded(await request.body(), NewPriority).priority
    allow_priority(who, wanted, "priority")
    return await _say(request, JobReprioritised(job=job, priority=wanted, by=who.by))


@post(
    "/jobs/{job:str}/resize",
    status_code=202,
    operation_class=taking(NewSize),
    responses=returns(Accepted, 202, 404, 422, 503),
    summary="Change the size of a gang",
)
async def resize(request: Any3, job: FromPath[str]) -> Response[bytes]:
    """Give each instance so many tasks: of an elastic gang at any time, of another before it runs."""
    who = caller(request)
    who.require("submit", "operate")
    await job_of(request, job, change=True)
    count = decoded(await request.body(), NewSize).count

    def fault(state: State) -> str:
        found = state.jobs.get(job)
        return "" if found is None else resize_fault(state, found, count)

    why = await of(request).live.read(fault)
    if why:
        raise Refused(422, f"count: {why}", field="count")
    return await _say(request, JobResizeRequested(job=job, count=count, by=who.by))


@post(
    "/jobs/{job:str}/checkpoint",
    status_code=202,
    operation_class=taking(Checkpoint),
    responses=returns(Accepted, 202, 404, 422, 503),
    summary="Say that a job saved its work",
)
async def checkpoint(request: Any3, job: FromPath[str]) -> Response[bytes]:
    """The job, or one instance of it, has saved its work: that much is not lost if it is told to stop."""
    who = caller(request)
    who.require("submit", "operate")
    found = await job_of(request, job, change=True)
    instance = decoded(await request.body() or b"{}", Checkpoint).instance
    _has(found, instance)
    return await _say(request, JobCheckpointed(job=job, instance=instance, by=who.by))


async def _say(
    request: Any3, event: JobCancelRequested | JobReprioritised | JobResizeRequested | JobCheckpointed
) -> Response[bytes]:
    gateway = of(request)
    recorded = await gateway.intake.job(encode_entry(event), event.job)
    return answered(Accepted(cycle=gateway.live.feed.number if recorded else 0), 202)


async def take(gateway: Gateway, who: Caller, body: bytes) -> bytes:
    """Take a submission; the answer as JSON, once it is durable.

    Raises:
        Refused: it is none, may not be made, or was refused when it was recorded.
    """
    who.require("submit", "operate")
    try:
        event, data = _signed(who, *_decode(body))
    except Malformed as error:
        raise malformed(error) from None
    _allow(gateway, who, event, 1)
    await _allow_after(gateway, who, event)
    await gateway.intake.job(data, event.job)
    became = await _became(gateway, who, event.job)
    if became.state == "refused":
        raise Refused(422, became.reason)
    return msgspec.json.encode(Submitted(job=became.job, cycle=became.cycle))


def _decode(body: bytes) -> tuple[JobSubmitted, bytes]:
    """The submission in a body, and its entry.

    Raises:
        Malformed: what is wrong, naming the field.
    """
    body = body.strip()
    if not body.startswith(b"{"):
        raise Malformed("the body is no JSON object: a job is one")
    event, data = decode_input(b'["JobSubmitted",1,' + body + b"]")
    if not isinstance(event, JobSubmitted):
        raise Malformed("the body is no job")
    return event, data


def _signed(who: Caller, event: JobSubmitted, data: bytes) -> tuple[JobSubmitted, bytes]:
    """The submission with the id of the token with which it was made, whatever it says itself.

    Raises:
        Malformed: then it has too much in its environment.
    """
    environment = event.run.environment
    id = who.token.id if who.token is not None else ""
    if environment.get(SUBMITTED_WITH, "") == id:
        return event, data
    signed = {name: value for name, value in environment.items() if name != SUBMITTED_WITH}
    if id:
        signed[SUBMITTED_WITH] = id
    run = msgspec.structs.replace(event.run, environment=signed)
    found, data = decode_input(encode_entry(msgspec.structs.replace(event, run=run)))
    assert isinstance(found, JobSubmitted)
    return found, data


def _allow(gateway: Gateway, who: Caller, event: JobSubmitted, count: int) -> None:
    """Refuse what the token does not allow: another's name, another queue, starving others.

    Raises:
        Refused: 403, or 429 where the user has too many jobs already.
    """
    token = who.token
    if token is None or token.role != "submit":
        return
    if event.user != token.user:
        raise Refused(403, f"user: this token submits as {token.user}, not as {event.user}", field="user")
    if token.queues and event.queue not in token.queues:
        raise Refused(403, f"queue: this token submits to {', '.join(token.queues)}, not to {event.queue}", field="queue")
    allow_priority(who, event.request.priority, "request.priority")
    if gateway.live.recorded(event.job) is None:
        open_jobs = gateway.live.books.open.get(event.user, 0)
        if open_jobs + count > token.jobs_max:
            detail = f"{event.user} has {open_jobs} jobs that are not over; this token allows {token.jobs_max}"
            raise Refused(429, detail, headers={"Retry-After": "60"})


async def _allow_after(gateway: Gateway, who: Caller, event: JobSubmitted) -> None:
    """Refuse to wait for a job that the caller may not see: when that starts and how it ends is nobody else's business.

    Raises:
        Refused: 403.
    """
    for condition in event.request.after or ():
        found = await gateway.live.read(partial(_recorded, job=condition.job))
        if found is not None and not who.sees(found[1]):
            raise Refused(403, f"request.after: you may not see the job {condition.job}", field="request.after")


def allow_priority(who: Caller, priority: int, field: str) -> None:
    token = who.token
    if token is not None and token.role == "submit" and priority > token.priority_max:
        raise Refused(403, f"{field}: this token allows priorities up to {token.priority_max}, not {priority}", field=field)


async def _became(gateway: Gateway, who: Caller, job: str, ours: bool = True) -> Submission:
    """What the log says of a submission. `ours`: the caller has just made it, and is told if its id is taken.

    Raises:
        Refused: 404, nothing that the caller may see; 409, the id is another's.
    """
    live = gateway.live
    found = live.recorded(job)
    if found is None:
        found = await live.read(lambda state: _recorded(state, job))
    if found is not None:
        if who.sees(found[1]):
            return Submission(job=job, cycle=found[0])
        if ours:
            raise Refused(409, "job: another job has this id; make a new one", field="job")
    refusal = live.books.refused.get(job) if found is None else None
    if refusal is not None:
        return Submission(job=job, cycle=refusal.cycle, state="refused", reason=refusal.reason)
    if gateway.intake.waits(job):
        return Submission(job=job, state="waiting")
    raise Refused(404, f"no submission {re.sub(r'[^ -~]', '?', job[:64])!r} is known: it never came, or was forgotten long ago")


def _recorded(state: State, job: str) -> Any:
    found = state.jobs.get(job)
    return None if found is None else (found.place[0], found)


HANDLERS = [submit, submit_many, submission, jobs, elements, job, explain, why_not, eta, cancel, priority, resize, checkpoint]
