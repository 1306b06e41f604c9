"""Services over HTTP: how many replicas there are to be, what their metric is, and what they are to be from now on."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, post, put
from litestar.params import FromPath
from msgspec import Meta

from muster.cluster.jobs import Job
from muster.cluster.services import Service, edition
from muster.events.codec import Malformed, decode_input, encode_entry
from muster.events.jobs import JobRequest, JobRevised, JobRun
from muster.events.services import JobMetricReported, JobScaleRequested, ReplicaBound, Revision
from muster.gateway.context import answered, decoded, job_of, of
from muster.gateway.described import returns, taking
from muster.gateway.guard import caller
from muster.gateway.job_tokens import SUBMITTED_WITH
from muster.gateway.jobs import Accepted, allow_priority
from muster.gateway.problems import Refused, malformed

Any3 = Request[Any, Any, Any]


class Scale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many replicas there are to be."""

    replicas: ReplicaBound


class Metric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the metric of a service is, over all its replicas."""

    value_milli: Annotated[int, Meta(ge=0, le=2**53)]
    metric: Annotated[str, Meta(max_length=128)] = ""


class Revise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a service is to be from now on. Its name, user and queue stay."""

    request: JobRequest
    run: JobRun = JobRun()
    follows: Revision = 0


@post(
    "/jobs/{job:str}/scale",
    status_code=202,
    operation_class=taking(Scale),
    responses=returns(Accepted, 202, 404, 409, 422, 503),
    summary="Scale a service",
)
async def scale(request: Any3, job: FromPath[str]) -> Response[bytes]:
    """Give a service so many replicas. Answered when that is durable, and not when they run."""
    service = await _service(request, job)
    wanted = decoded(await request.body(), Scale).replicas
    if service.asked.autoscale:
        metric = service.asked.autoscale.metric
        raise Refused(409, f"replicas: the service is scaled by its metric {metric!r}; revise it to change its bounds")
    return await _say(request, JobScaleRequested(job=job, replicas=wanted, by=caller(request).by))


@post(
    "/jobs/{job:str}/metric",
    status_code=202,
    operation_class=taking(Metric),
    responses=returns(Accepted, 202, 404, 409, 422, 503),
    summary="Feed a service's metric",
)
async def metric(request: Any3, job: FromPath[str]) -> Response[bytes]:
    """Say what the metric is by which a service is scaled. It stands until another value comes."""
    service = await _service(request, job)
    said = decoded(await request.body(), Metric)
    scaled = service.asked.autoscale
    if not scaled:
        raise Refused(409, "the service is scaled by no metric: it has no request.service.autoscale")
    if said.metric not in ("", scaled.metric):
        raise Refused(422, f"metric: the service is scaled by {scaled.metric!r}, not by {said.metric!r}", field="metric")
    by = caller(request).by
    return await _say(request, JobMetricReported(job=job, value_milli=said.value_milli, metric=said.metric, by=by))


@put(
    "/jobs/{job:str}",
    status_code=202,
    operation_class=taking(Revise),
    responses=returns(Accepted, 202, 404, 409, 413, 422, 503),
    summary="Revise a service",
)
async def revise(request: Any3, job: FromPath[str]) -> Response[bytes]:
    """Replace the replicas of a service one after the other by such as these. Answered when that is durable."""
    service = await _service(request, job)
    wanted = decoded(await request.body(), Revise)
    if wanted.follows not in (0, service.job.revision):
        raise Refused(409, f"follows: the newest revision is {service.job.revision}, not {wanted.follows}", field="follows")
    if wanted.request.priority != service.job.request.priority:
        allow_priority(caller(request), wanted.request.priority, "request.priority")
    return await _revise(request, service.job, wanted.request, wanted.run, wanted.follows)


@post(
    "/jobs/{job:str}/rollback",
    status_code=202,
    responses=returns(Accepted, 202, 404, 409, 503),
    summary="Roll a service back",
)
async def rollback(request: Any3, job: FromPath[str]) -> Response[bytes]:
    """Revise a service to what it was: in a roll to the revision before it, else to the one before the present one."""
    service = await _service(request, job)
    revision = service.back if service.phase == "kept" else service.whole
    former = edition(service, revision)
    if not revision or former is None or former is service.job:
        raise Refused(409, f"there is no revision before {service.job.revision} to which the service could go back")
    asked = msgspec.structs.replace(former.request, priority=service.job.request.priority, service=service.asked)
    return await _revise(request, service.job, asked, former.run, service.job.revision)


HANDLERS = [scale, metric, revise, rollback]


async def _service(request: Any3, job: str) -> Service:
    """The service, if the caller may change it.

    Raises:
        Refused: 403, 404; 409, it is none, or it has ended.
    """
    caller(request).require("submit", "operate")
    service: Service | None = (await job_of(request, job, change=True)).service
    if service is None:
        raise Refused(409, "the job is no service: it has no request.service")
    if service.ended:
        raise Refused(409, "the service was cancelled")
    return service


async def _revise(request: Any3, job: Job, wanted: JobRequest, run: JobRun, follows: int) -> Response[bytes]:
    signed = {name: value for name, value in run.environment.items() if name != SUBMITTED_WITH}
    if SUBMITTED_WITH in job.run.environment:
        signed[SUBMITTED_WITH] = job.run.environment[SUBMITTED_WITH]
    run = msgspec.structs.replace(run, environment=signed)
    by = caller(request).by
    return await _say(request, JobRevised(job=job.id, request=wanted, run=run, follows=follows, by=by))


async def _say(request: Any3, event: JobScaleRequested | JobMetricReported | JobRevised) -> Response[bytes]:
    gateway = of(request)
    try:
        _, data = decode_input(encode_entry(event))
    except Malformed as error:
        raise malformed(error) from None
    recorded = await gateway.intake.job(data, event.job)
    return answered(Accepted(cycle=gateway.live.feed.number if recorded else 0), 202)
