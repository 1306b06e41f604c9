"""Ends of attempts, as the second judge sees them: what may become of an instance, and what it is charged for."""

from collections.abc import Iterator

from muster.events.decisions import AttemptEnded
from muster.verify import services
from muster.verify.world import Attempt


def end_faults(attempt: Attempt, event: AttemptEnded) -> Iterator[tuple[str, str]]:
    """Each rule that the end breaks, and how; nothing of it is folded in yet."""
    instance, reason, held = attempt.instance, attempt.stop_reason or event.reason, attempt.holding()
    most, own, then = instance.job.request.max_retries, attempt.own_failure, event.then
    if held:
        yield "held", f"attempt {event.attempt} ends while {held} of its tasks hold something"
    clean = not attempt.degraded_until_us and all(t.phase == "exited" and not t.code for t in attempt.tasks.values())
    well = attempt.stop_reason == "finished" or (clean and attempt.started_us >= 0 and not attempt.stop_reason)
    so = {
        "finished": attempt.went_well(),
        "cancelled": instance.cancelled,
        "failed": reason == "time-limit" or bool(own and instance.retries >= most and not well),
        "pending": not instance.cancelled and not well,
    }[then]
    served = instance.job.service
    if served is not None:
        yield "service", services.ended(served, attempt, event)
        own, most = own or well or bool(attempt.stop_reason), event.charged + instance.retries
    elif not so:
        yield "outcome", f"attempt {event.attempt} ({reason}) is {then}, which is not so"
    if event.charged and not own and reason != "time-limit":
        yield "retries", f"it is charged for {reason}, not its own doing"
    if then != "pending":
        return
    if own and not attempt.node_failure and reason == "member-failed" and not event.charged and served is None:
        yield "retries", "it failed by its own fault and is tried again without being charged"
    if event.charged and instance.retries + event.charged > most:
        yield "retries", f"this is retry {instance.retries + event.charged} of {most}"
