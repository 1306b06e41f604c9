"""What the types cannot say about a service."""

from muster.events.jobs import JobRequest
from muster.events.services import REPLICAS_MAX


def service_fault(request: JobRequest) -> str:
    """What is wrong with the service that the job is, naming the field; empty for nothing, or where it is none."""
    service = request.service
    if not service:
        return ""
    if request.array is not None:
        return "request.array and request.service exclude each other: a service has replicas"
    if request.deadline_us:
        return "request.deadline_us and request.service exclude each other: a service does not finish"
    if request.max_retries:
        return "request.max_retries: a replica of a service is placed again however often it ends"
    if not service.max_unavailable and not service.max_surge:
        return "request.service: max_unavailable and max_surge are both 0, so that nothing could ever be rolled"
    most = service.autoscale.max if service.autoscale else service.replicas
    if most + service.max_surge > REPLICAS_MAX:
        return (
            f"request.service: {most} replicas and a max_surge of {service.max_surge}; at most {REPLICAS_MAX} are taken together"
        )
    scale = service.autoscale
    if scale and not scale.min <= service.replicas <= scale.max:
        return f"request.service.replicas is {service.replicas}, outside request.service.autoscale: {scale.min} to {scale.max}"
    return ""
