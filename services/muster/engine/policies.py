"""Which plugins a policy may name. A policy that names another is refused before it steers anything."""

from msgspec import UnsetType

from muster.engine.filters import FILTERS, JOB_FILTERS
from muster.engine.scores import HOLDINGS, STATIC
from muster.events.operations import Policy

FILTER_NAMES = tuple(FILTERS)
JOB_FILTER_NAMES = tuple(JOB_FILTERS)
SCORE_NAMES = (*STATIC, "best-fit", *HOLDINGS)
"""`best-fit` is the order that the indexes of the ledger keep; the others are files in `scores`."""


def job_filters(policy: Policy) -> tuple[str, ...]:
    """The filters of jobs that the policy has: those it names, or all where it names none."""
    return JOB_FILTER_NAMES if isinstance(policy.job_filters, UnsetType) else policy.job_filters


def unknown(policy: Policy) -> str:
    """One sentence on the first plugin that does not exist, or an empty string."""
    if policy.strict and policy.backfill:
        return "policy.strict: who is planned for is protected by the plan; leave out one of `strict` and `backfill`"
    for name in policy.filters:
        if name not in FILTER_NAMES:
            return f"policy.filters: {name!r} does not exist; there are {', '.join(FILTER_NAMES)}"
    for name in job_filters(policy):
        if name not in JOB_FILTERS:
            return f"policy.job_filters: {name!r} does not exist; there are {', '.join(JOB_FILTER_NAMES)}"
    for score in policy.scores:
        if score.name not in SCORE_NAMES:
            return f"policy.scores: {score.name!r} does not exist; there are {', '.join(SCORE_NAMES)}"
    weighed = [score.name for score in policy.scores if score.name in HOLDINGS]
    if weighed and any(score.name == "best-fit" for score in policy.scores):
        return f"policy.scores: 'best-fit' is an order of its own and cannot be weighed against {weighed[0]!r}; name one of them"
    return ""
