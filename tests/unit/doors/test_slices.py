"""Slices of GPUs (MIG) as every door asks for them."""

import pytest

from muster.doors import DoorError, Origin, open_file
from muster.doors.muster_file import job_document
from muster.events.jobs import GroupRequest
from muster.reading.catalogue import find_slice

ORIGIN = Origin(new_id=lambda: "01900000-0000-7000-8000-000000000001", user="ann", submitted_us=7)
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}
  containers: [{name: c, image: x, resources: {limits: {RESOURCE: 2}}}]
"""


def group(text: str, name: str = "job.yaml") -> GroupRequest:
    (job,) = open_file(text.encode(), name, ORIGIN).jobs
    return job.request.groups[0]


@pytest.mark.parametrize(
    ("text", "name", "gpus", "profile", "models"),
    [
        ("name: a\nmig: 3g.40gb\n", "job.yaml", 1, "3g.40gb", ()),
        ("name: a\nmig: 1g.10gb+me\ngpus: 4\ngpu_model: H100\n", "job.yaml", 4, "1g.10gb+me", ("H100",)),
        (POD.replace("RESOURCE", "nvidia.com/mig-3g.40gb"), "pod.yaml", 2, "3g.40gb", ("A100",)),
        (POD.replace("RESOURCE", "nvidia.com/mig-1g.10gb.me"), "pod.yaml", 2, "1g.10gb+me", ("A100",)),
        ("#!/bin/bash\n#SBATCH --gres=gpu:1g.10gb:3\nx\n", "a.sbatch", 3, "1g.10gb", ()),
        (
            "#!/bin/bash\n#SBATCH --gpus=nvidia_a100_3g.20gb:1\nx\n",
            "a.sbatch",
            1,
            "3g.20gb",
            ("nvidia_a100", "NVIDIA_A100", "A100"),
        ),
        ('#!/bin/bash\n#SBATCH --gres=gpu:1g.10gb:1\n#SBATCH --constraint="80gb"\nx\n', "a.sbatch", 1, "1g.10gb", ()),
    ],
)
def test_each_door_asks_for_slices(text: str, name: str, gpus: int, profile: str, models: tuple[str, ...]) -> None:
    found = group(text, name)
    assert (found.gpus, found.gpu_profile, found.gpu_models, found.gpu_memory_mib) == (gpus, profile, models, 0)


def test_what_is_written_as_a_job_file_is_read_again() -> None:
    (job,) = open_file(b"name: a\nmig: 3g.40gb\ngpus: 2\n", "job.yaml", ORIGIN).jobs
    written = job_document(job)
    assert (written["mig"], written["gpus"]) == ("3g.40gb", 2)
    assert group(str(written)).gpu_profile == "3g.40gb"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: a\nmig: 3g\n", "must be a profile of slices such as 3g.40gb, not '3g'"),
        ("name: a\nmig: 8g.80gb\n", "must be a profile"),
        ("name: a\nmig: 3g.40gb\ngpu_share: '0.5'\n", "a slice is not shared"),
        (POD.replace("{RESOURCE: 2}", "{nvidia.com/mig-3g.40gb: 1, nvidia.com/gpu: 1}"), "a second kind of GPU"),
    ],
)
def test_what_is_no_slice_is_refused(text: str, says: str) -> None:
    with pytest.raises(DoorError, match=says):
        open_file(text.encode(), "a.yaml", ORIGIN)


def test_a_profile_is_told_from_a_model() -> None:
    assert find_slice("nvidia_a100_3g.20gb") == ("nvidia_a100", "3g.20gb")
    assert find_slice("1g.10gb") == ("", "1g.10gb")
    assert find_slice("a100-80gb") == ("a100-80gb", "")
