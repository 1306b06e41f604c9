"""Whether a job keeps its deadline: what became of it, or what is to be expected. Said by explain, `muster job` and a metric.

A deadline decides one thing only: among those who stand equal who has the earlier one is asked first (`Job.turn`). Nobody is told
to stop for it, and one that is missed ends nothing.
"""

from muster.cluster.jobs import TERMINAL, Instance, Job


def about(instance: Instance, now_us: int, start_us: int | None = None) -> str:
    """One sentence; empty where it has none. `start_us`: when a pending instance is expected to start, where that is known."""
    due_us, limit_us = instance.job.request.deadline_us, instance.job.limit_us
    if not isinstance(due_us, int):
        return ""
    if instance.phase == "finished":
        return _by(instance.ended_us, due_us, "met its deadline", "missed its deadline")
    if instance.phase in TERMINAL:
        return f"did not finish, and has no use for its deadline: it is {instance.phase}"
    attempt = instance.attempt
    begun_us = attempt.running_since_us if attempt is not None else start_us
    if now_us > due_us:
        return f"misses its deadline by {_span(now_us - due_us)} so far"
    if begun_us is None:
        return f"its deadline is in {_span(due_us - now_us)}, and when it starts is not known"
    if limit_us is None:
        text = f"its deadline is in {_span(due_us - now_us)}, and without a time limit its end is not known"
        return text if begun_us <= due_us else f"misses its deadline by {_span(begun_us - due_us)} at least"
    return _by(
        max(begun_us, now_us if attempt is None else 0) + limit_us, due_us, "expected to keep its deadline", "misses its deadline"
    )


def outcome(job: Job, now_us: int) -> str:
    """Of a job with a deadline: met, missed, or ahead where neither is so yet."""
    due_us = job.request.deadline_us
    assert isinstance(due_us, int)
    ended_us = [one.ended_us if one.phase == "finished" else 0 for one in job.instances]
    if not job.open:
        return "met" if all(0 < each <= due_us for each in ended_us) else "missed"
    return "ahead" if now_us <= due_us else "missed"


def _by(end_us: int, due_us: int, kept: str, missed: str) -> str:
    """With how much to spare, by its time limit where it has not ended."""
    return f"{kept}, with {_span(due_us - end_us)} to spare" if end_us <= due_us else f"{missed} by {_span(end_us - due_us)}"


def _span(micros: int) -> str:
    seconds = -(-micros // 1_000_000)
    return f"{seconds} s"
