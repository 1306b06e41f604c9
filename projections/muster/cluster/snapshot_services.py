"""Services in a snapshot. `muster.cluster.snapshot` writes and reads the rest."""

from collections.abc import Sequence

from muster.cluster import services
from muster.cluster.jobs import Job, mark
from muster.cluster.services import Service
from muster.cluster.shapes import intern_gang
from muster.cluster.snapshot_rows import EditionRow, ServiceRow
from muster.cluster.state import State
from muster.events.services import REPLICAS_MAX


def services_out(jobs: Sequence[Job]) -> tuple[ServiceRow, ...]:
    """What is kept of those of the jobs that are services."""
    return tuple([_out(job, job.service) for job in jobs if job.service is not None])


def _out(job: Job, service: Service) -> ServiceRow:
    request, run = service.proposed or (None, None)
    return ServiceRow(
        job.id,
        service.replicas,
        job.revision,
        service.phase,
        service.whole,
        service.back,
        tuple(
            [
                EditionRow(revision, each.request, each.run, each.avoid, each.limit_us)
                for revision, each in sorted(service.former.items())
            ]
        ),
        tuple([instance.job.revision for instance in job.instances]),
        request,
        run,
        service.fault,
        service.ended,
        service.value_milli,
        tuple(service.highs),
        tuple(service.lows),
    )


def service_in(job: Job, row: ServiceRow) -> list[Job]:
    """The job is this service; of which revision each of its replicas is."""
    request, run = row.request, row.run
    service = job.service = Service(
        job,
        row.replicas,
        row.phase,
        row.whole,
        row.back,
        {},
        None if request is None or run is None else (request, run),
        row.fault,
        row.ended,
        row.value_milli,
        list(row.highs),
        list(row.lows),
    )
    job.revision = row.revision
    job.open = 0 if row.ended else 1
    for kept in row.former:
        former = Job(
            job.id,
            job.name,
            job.user,
            job.queue,
            kept.request,
            kept.run,
            intern_gang(kept.request),
            job.place,
            job.submitted_us,
            job.priority,
            0,
            job.instances,
            kept.avoid,
            limit_us=kept.limit_us,
            next=REPLICAS_MAX,
            revision=kept.revision,
            service=service,
        )
        mark(former)
        service.former[kept.revision] = former
    return [job if revision == row.revision else service.former[revision] for revision in row.of]


def reindex_service(state: State, service: Service) -> None:
    """Its timers; and something may have to be decided about it."""
    if service.ended:
        return
    services.look(state, service)
    services.stir(state, service)
    for instance in service.job.instances:
        services.set_settle(state, service, instance)
