"""Rules of elastic gangs left out, one a mutant (see `mutants`)."""

from muster.engine import elastic, members, passes, preempt
from muster.events.jobs import JobCheckpointed, JobResizeRequested
from muster.scheduler import recorder
from muster.simulator.scenario.leaving_out import Mutant, ignored, instead


def elastic_mutants() -> dict[str, Mutant]:
    """By name."""
    return {
        "no-growth": instead(passes, "grow", lambda asked, first: None),
        "growth-before-others": instead(elastic, "_wanted", lambda asked, instance, first: 0),
        "no-growth-by-reclaim": instead(elastic, "_reclaim", lambda asked, tree, instance: None),
        "evict-before-shrink": instead(preempt, "split_all", lambda attempts, here: list(attempts)),
        "shrink-below-minimum": instead(
            members, "spare", lambda attempt: [len(attempt.tasks)] * len(attempt.instance.job.gang.minima)
        ),
        "every-loss-ends-all": instead(members, "_enough", lambda attempt, gone: False),
        "no-checkpoints": ignored(JobCheckpointed),
        "no-resize": ignored(JobResizeRequested),
        "rigid-is-resized": instead(recorder, "resize_fault", lambda state, job, count: ""),
    }
