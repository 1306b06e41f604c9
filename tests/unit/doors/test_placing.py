"""Constraints in a job file: read, refused by name, and written so that they are read as the same."""

import json

import pytest

from muster.doors.errors import DoorError
from muster.doors.muster_file import job_document, read_job_file
from muster.doors.origin import Origin
from muster.events.jobs import Constraints, JobSubmitted, JobTerm, Licences, Requirement, Spread, Within
from muster.reading.values import read_documents

FILE = """
name: train
command: ./train
gpus: 8
within: {rack: required, block: preferred}
spread: {node: 1, zone: {most: 4, skew: 2}}
affinity: {labels: {app: cache}, by: rack}
anti_affinity: [{labels: [{key: app, op: Exists}], required: false}]
exclusive: true
licences: {solver: 2}
numa: required
ports: [8080, 9090]
datasets: imagenet
tolerations: [{key: bad, effect: NoExecute, seconds: 60}]
"""


def jobs(text: str) -> list[JobSubmitted]:
    origin = Origin(user="u", queue="default", directory="/", submitted_us=1, new_id=lambda: "j1")
    return read_job_file(read_documents(text, "job.yaml"), origin)


def test_every_constraint_is_read() -> None:
    (job,) = jobs(FILE)
    (group,) = job.request.groups
    assert (group.numa, group.ports, group.datasets) == ("required", (8080, 9090), ("imagenet",))
    assert group.tolerations[0].seconds == 60
    assert job.request.constraints == Constraints(
        within=(Within(level="rack"), Within(level="block", required=False)),
        spread=(Spread(level="node", most=1), Spread(level="zone", most=4, skew=2)),
        affinity=(JobTerm(labels=(Requirement(key="app", values=("cache",)),), by="rack"),),
        anti_affinity=(JobTerm(labels=(Requirement(key="app", op="Exists"),), required=False),),
        exclusive=True,
        licences=(Licences(name="solver", count=2),),
    )


def test_what_is_written_is_read_as_the_same_job() -> None:
    (job,) = jobs(FILE)
    document = job_document(job)
    assert jobs(json.dumps(document)) == [job]
    (plain,) = jobs("{name: plain, command: ls}")
    assert not {"within", "numa", "ports", "exclusive"} & set(job_document(plain))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("within: {shelf: required}", "is no level: 'shelf'; there are zone, block, rack, nvlink_domain, node"),
        ("within: {rack: always}", "must be one of required, preferred, not 'always'"),
        ("spread: {rack: 0}", "must be a whole number from 1 to"),
        ("affinity: {by: rack}", "needs the labels of the other jobs in labels"),
        ("anti_affinity: {labels: [{key: a, op: NotIn, values: [x]}]}", "needs In, Exists, Gt or Lt"),
        ("ports: [0]", "must be a whole number from 1 to"),
        ("numa: never", "must be one of required, preferred"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(DoorError) as caught:
        jobs(f"name: a\ncommand: ls\n{text}\n")
    assert sentence in str(caught.value)
    assert "job.yaml" in str(caught.value)
