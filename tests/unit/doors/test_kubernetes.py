"""Kubernetes manifests through their door."""

from typing import Any

import pytest

from muster.doors import DoorError, Opened, Origin, open_file
from muster.doors.names import door_names
from muster.events.jobs import JobSubmitted
from tests.unit.doors.manifests import MANIFESTS, WRONG

JOB = "01900000-0000-7000-8000-000000000001"


def read(manifest: str) -> Opened:
    return open_file(manifest.encode(), "pod.yaml", Origin(new_id=lambda: JOB, user="ann"))


def summary(job: JobSubmitted) -> dict[str, Any]:
    """What a table of manifests speaks of."""
    (group,) = job.request.groups
    limit = job.request.time_limit_us
    return {
        "name": job.name,
        "queue": job.queue,
        "count": group.count,
        "min": group.min,
        "cpu_milli": group.cpu_milli,
        "memory_mib": group.memory_mib,
        "disk_mib": group.disk_mib,
        "gpus": group.gpus,
        "selector": [(one.key, one.op, one.values) for one in group.selector],
        "any_of": [[(one.key, one.op, one.values) for one in term] for term in group.any_of or ()],
        "prefers": [(wish.weight, [(one.key, one.op, one.values) for one in wish.labels]) for wish in group.prefers or ()],
        "ports": group.ports or (),
        "at_once": job.request.at_once or None,
        "tolerations": [(one.key, one.value, one.any_value, one.effect) for one in group.tolerations],
        "array": job.request.array,
        "service": job.request.service,
        "priority": job.request.priority,
        "max_retries": job.request.max_retries,
        "time_s": None if limit is None else limit // 1_000_000,
        "grace_s": job.request.grace_us // 1_000_000,
        "labels": job.request.labels,
        "image": job.run.image,
        "command": job.run.command,
        "directory": job.run.directory,
        "environment": job.run.environment,
    }


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_comes_to_what_kubernetes_would_make_of_it(name: str) -> None:
    manifest, expected, named = MANIFESTS[name]
    opened = read(manifest)
    found = summary(opened.jobs[0])
    assert {key: found[key] for key in expected} == expected
    assert sorted(notice.key for notice in opened.notices) == sorted(named)
    lines = manifest.count("\n")
    assert all(1 < notice.line <= lines for notice in opened.notices)


@pytest.mark.parametrize("name", WRONG)
def test_an_error_names_the_line_the_key_and_what_would_be_right(name: str) -> None:
    manifest, line, key, words = WRONG[name]
    with pytest.raises(DoorError) as caught:
        read(manifest)
    assert (caught.value.line, caught.value.key) == (line, key)
    assert words in str(caught.value)


def test_several_documents_are_several_jobs_in_their_order() -> None:
    pods = [f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p{n}}}\nspec: {{containers: [{{image: x}}]}}\n" for n in range(5)]
    assert [job.name for job in read("---\n".join(pods)).jobs] == ["p0", "p1", "p2", "p3", "p4"]
    assert [job.name for job in read(MANIFESTS["list-of-objects"][0]).jobs] == ["one", "two"]


def test_variables_that_would_double_and_double_again_are_refused() -> None:
    variables = ["- {name: V0, value: xxxxxxxxxx}"]
    variables += [f"- {{name: V{n}, value: $(V{n - 1})$(V{n - 1})$(V{n - 1})$(V{n - 1})}}" for n in range(1, 40)]
    text = "\n".join(f"    {line}" for line in variables)
    with pytest.raises(DoorError, match="characters"):
        read(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - image: x\n    env:\n{text}\n")


def test_an_element_knows_its_index_and_a_member_of_a_gang_its_rank() -> None:
    (job,) = read(MANIFESTS["job-indexed"][0]).jobs
    assert door_names(job.run.environment, rank=0, instance=4, array=job.request.array) == {"JOB_COMPLETION_INDEX": "4"}
    (job,) = read(MANIFESTS["job-indexed-gang"][0]).jobs
    assert door_names(job.run.environment, rank=1, instance=0, array=job.request.array) == {"JOB_COMPLETION_INDEX": "1"}
    assert door_names({}, rank=1, instance=0, array=None) == {}
