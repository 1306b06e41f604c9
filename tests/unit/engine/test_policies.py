"""A policy that names what does not exist, or what cannot go together, is refused by name."""

import pytest

from muster.engine.policies import job_filters, unknown
from muster.events.operations import Policy, Weight


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (Policy(filters=("redy",)), "policy.filters: 'redy' does not exist; there are ready"),
        (Policy(job_filters=("topologie",)), "policy.job_filters: 'topologie' does not exist; there are topology"),
        (Policy(scores=(Weight(name="worst"),)), "policy.scores: 'worst' does not exist; there are model-preference"),
        (Policy(scores=(Weight(name="best-fit"), Weight(name="spread"))), "policy.scores: 'best-fit' is an order of its own"),
    ],
)
def test_a_policy_is_refused_by_the_name_of_what_is_wrong_with_it(policy: Policy, sentence: str) -> None:
    assert unknown(policy).startswith(sentence)


def test_a_policy_that_names_no_filters_of_jobs_has_all() -> None:
    assert unknown(Policy()) == ""
    assert job_filters(Policy()) == ("topology", "affinity", "exclusive", "licences", "ports", "numa")
    assert job_filters(Policy(job_filters=())) == ()
