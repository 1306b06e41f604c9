"""Budgets of disruption beside jobs in a manifest."""

import pytest

from muster.doors import DoorError, Opened, Origin, open_file

ORIGIN = Origin(new_id=lambda: "01900000-0000-7000-8000-000000000001", user="ann", submitted_us=7)
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train, labels: {app: train}}
spec:
  completionMode: Indexed
  completions: 8
  parallelism: 8
  template:
    metadata: {annotations: {muster.io/gang: "true"}}
    spec: {restartPolicy: Never, containers: [{name: c, image: x}]}
"""


def read(spec: str, jobs: str = JOB) -> Opened:
    text = f"apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {{name: b}}\nspec: {spec}\n---{jobs}"
    return open_file(text.encode(), "job.yaml", ORIGIN)


@pytest.mark.parametrize(
    ("said", "budget"),
    [
        ("maxUnavailable: 2", 2),
        ("maxUnavailable: 30%", 3),
        ("maxUnavailable: 0", 0),
        ("minAvailable: 6", 2),
        ("minAvailable: 30%", 5),
        ("minAvailable: 100%", 0),
        ("minAvailable: 9", 0),
        ("maxUnavailable: 100", 8),
    ],
)
def test_a_budget_is_that_of_the_job_that_it_selects(said: str, budget: int) -> None:
    opened = read(f"{{{said}, selector: {{matchLabels: {{app: train}}}}}}")
    assert [job.request.budget for job in opened.jobs] == [budget]
    assert not opened.notices


def test_a_budget_that_selects_nothing_or_several_is_named() -> None:
    opened = read("{maxUnavailable: 1, selector: {matchLabels: {app: other}}}")
    assert not opened.jobs[0].request.budget
    assert "selects no job" in opened.notices[0].sentence
    opened = read(
        "{maxUnavailable: 1, selector: {matchLabels: {app: train}}}", JOB + "---" + JOB.replace("name: train,", "name: b,")
    )
    assert [job.request.budget for job in opened.jobs] == [1, 1]
    assert "each keeps it for itself" in opened.notices[0].sentence


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("{selector: {matchLabels: {app: train}}}", "minAvailable or maxUnavailable"),
        ("{minAvailable: 1, maxUnavailable: 1}", "one of them"),
        ("{maxUnavailable: 101%, selector: {matchLabels: {app: train}}}", "percentage such as 50%"),
        ("{maxUnavailable: -1, selector: {matchLabels: {app: train}}}", "maxUnavailable"),
        ("{maxUnavailable: 1, selector: {matchExpressions: []}}", "selects by matchLabels"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: str, says: str) -> None:
    with pytest.raises(DoorError, match=says):
        read(spec)
