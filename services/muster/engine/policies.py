"""Which plugins a policy may name. A policy that names another is refused before it steers anything."""

from muster.engine.filters import FILTERS
from muster.engine.scores import HOLDINGS, STATIC
from muster.events.operations import Policy

FILTER_NAMES = tuple(FILTERS)
SCORE_NAMES = (*STATIC, "best-fit", *HOLDINGS)
"""`best-fit` is the order that the indexes of the ledger keep; the others are files in `scores`."""


def unknown(policy: Policy) -> str:
    """One sentence on the first plugin that does not exist, or an empty string."""
    for name in policy.filters:
        if name not in FILTERS:
            return f"policy.filters: {name!r} does not exist; there are {', '.join(FILTER_NAMES)}"
    for score in policy.scores:
        if score.name not in SCORE_NAMES:
            return f"policy.scores: {score.name!r} does not exist; there are {', '.join(SCORE_NAMES)}"
    return ""
