"""What a task finds in its environment, and where its output goes."""

import os
from pathlib import Path
from typing import Any

import pytest

from muster.agent import outputs
from muster.agent.environment import EXTENSIONS, Place, environment, hostfile
from muster.agent.protocol import Ranks
from muster.agent.runtimes import UnknownRuntime, load, names
from muster.agent.slurm_names import slurm_names
from muster.events.jobs import GroupRequest
from tests.support.agents import task

PLACE = Place(node="gpu2", mark="m", port=20_123, visible=("0", "2"), devices=("GPU-a", "GPU-c"), folder=Path("/t"), cell="main")
MANY = Ranks(world_size=10, nodes=("gpu1", "gpu2", "gpu3", "login"), ranks_per_node=(4, 4, 1, 1))


def test_little_of_the_agents_own_environment_is_passed_on() -> None:
    own = {"PATH": "/bin", "HOME": "/h", "MUSTER_TOKEN": "secret", "AWS_KEY": "secret"}
    found = environment(task("true"), PLACE, own)
    assert (found["PATH"], found["HOME"]) == ("/bin", "/h")
    assert "secret" not in found.values()
    assert environment(task("true"), PLACE, {})["PATH"].endswith("/bin")


def test_the_job_may_say_anything_but_where_it_is() -> None:
    own = {"OMP_NUM_THREADS": "1", "SLURM_JOB_ID": "4711", "WORLD_SIZE": "99", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "PATH": "/mine"}
    found = environment(task("true", environment=own, group_request=GroupRequest(cpu_milli=4500)), PLACE, {})
    assert (found["OMP_NUM_THREADS"], found["SLURM_JOB_ID"], found["PATH"]) == ("1", "4711", "/mine")
    assert (found["WORLD_SIZE"], found["CUDA_VISIBLE_DEVICES"]) == ("1", "0,2")
    assert environment(task("true", group_request=GroupRequest(cpu_milli=4500)), PLACE, {})["OMP_NUM_THREADS"] == "4"


def test_a_task_without_devices_sees_none() -> None:
    place = Place(node="n1", mark="m", port=1, folder=Path("/t"))
    found = environment(task("true"), place, {})
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert found["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "SLURM_JOB_GPUS" not in found


def test_until_the_members_know_where_to_meet_they_meet_here() -> None:
    found = environment(task("true", master=None), PLACE, {})
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("127.0.0.1", "20123")


def test_names_that_no_process_can_have_are_left_out() -> None:
    found = environment(task("true", environment={"A=B": "c", "": "d", "NUL": "a\0b", "GOOD": "x=y"}), PLACE, {})
    assert found["GOOD"] == "x=y"
    assert not {"A=B", "", "NUL"} & set(found)


def test_other_doors_add_names() -> None:
    EXTENSIONS.append(lambda task, place: {"PBS_JOBID": task.job + "@" + place.node})
    try:
        assert environment(task("true"), PLACE, {})["PBS_JOBID"] == "j1@gpu2"
    finally:
        EXTENSIONS.pop()


def test_slurms_names_are_as_slurm_writes_them() -> None:
    group = GroupRequest(count=10, cpu_milli=6000, memory_mib=2048, gpus=2)
    found = slurm_names(task("true", rank=5, local_rank=1, attempt=3, ranks=MANY, group_request=group, array=8), PLACE)
    assert {name: found[name] for name in found if name in EXPECTED} == EXPECTED


EXPECTED = {
    "SLURM_JOB_ID": "j1",
    "SLURM_JOB_NAME": "test",
    "SLURM_JOB_NODELIST": "gpu[1-3],login",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NNODES": "4",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "10",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_TASKS_PER_NODE": "4(x2),1(x2)",
    "SLURM_CPUS_PER_TASK": "6",
    "SLURM_CPUS_ON_NODE": "24",
    "SLURM_JOB_CPUS_PER_NODE": "24(x2),6(x2)",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURM_JOB_GPUS": "0,2",
    "SLURM_MEM_PER_NODE": "8192",
    "SLURM_RESTART_COUNT": "2",
    "SLURM_ARRAY_JOB_ID": "j1",
    "SLURM_ARRAY_TASK_ID": "0",
    "SLURM_ARRAY_TASK_COUNT": "8",
    "SLURM_ARRAY_TASK_MAX": "7",
    "SLURMD_NODENAME": "gpu2",
}


def test_an_element_of_an_array_has_the_index_that_was_asked_for() -> None:
    of: dict[str, Any] = {"environment": {"MUSTER_ARRAY": "1,5-7"}, "array": 4, "instance": 2}
    assert slurm_names(task("true", **of), PLACE)["SLURM_ARRAY_TASK_ID"] == "6"
    assert outputs.expand("%A_%a", task("true", **of), "n1") == "j1_6"
    odd: dict[str, Any] = {"environment": {"MUSTER_ARRAY": "nonsense"}, "array": 4, "instance": 2}
    assert slurm_names(task("true", **odd), PLACE)["SLURM_ARRAY_TASK_ID"] == "2"


def test_the_hostfile_names_each_node_once() -> None:
    assert hostfile(task("true", ranks=MANY)) == "gpu1 slots=4\ngpu2 slots=4\ngpu3 slots=1\nlogin slots=1\n"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("slurm-%j.out", "slurm-j1.out"),
        ("%x/%A_%a.%t.%u", "test/j1_0.3.ada"),
        ("%4a-%3t-%N-%n", "0000-003-gpu2-1"),
        ("100%%-%j", "100%-j1"),
        ("%q-%5z", "%q-%5z"),
        ("plain", "plain"),
        ("%10x", "test"),
    ],
)
def test_patterns_in_the_names_of_outputs(path: str, expected: str) -> None:
    assert outputs.expand(path, task("true", rank=3, ranks=MANY), "gpu2") == expected


def test_outputs_are_found_by_attempt_and_the_newest_by_none(tmp_path: Path) -> None:
    for attempt in (1, 2, 10):
        out, error = outputs.prepare(tmp_path, task("true", attempt=attempt), "n1", tmp_path)
        Path(out).write_text(f"attempt {attempt}")
        assert out != error
    assert (found := outputs.find(tmp_path, "j1", 0, 0, 0, "stdout")) is not None
    assert outputs.read(found, 8, 100) == b"10"
    assert (found := outputs.find(tmp_path, "j1", 0, 2, 0, "stdout")) is not None
    assert outputs.read(found, 0, 7) == b"attempt"
    assert outputs.find(tmp_path, "j1", 0, 3, 0, "stdout") is None
    assert outputs.find(tmp_path, "j2", 0, 0, 0, "stdout") is None


def test_where_the_job_wants_its_output_a_link_leads(tmp_path: Path) -> None:
    out, error = outputs.prepare(tmp_path / "root", task("true", output="a/%j.out", error="%j.err"), "n1", tmp_path)
    assert (out, error) == (str(tmp_path / "a" / "j1.out"), str(tmp_path / "j1.err"))
    Path(out).write_text("here")
    assert (found := outputs.find(tmp_path / "root", "j1", 0, 0, 0, "stdout")) is not None
    assert found.read_text() == "here"
    both = outputs.prepare(tmp_path / "root", task("true", output="a/%j.out"), "n1", tmp_path)
    assert both == (out, out)


def test_outputs_that_nobody_wrote_for_long_go_and_those_of_present_jobs_stay(tmp_path: Path) -> None:
    for job in ("old", "busy", "written"):
        Path(outputs.prepare(tmp_path, task("true", job=job), "n1", tmp_path)[0]).write_text("x")
    dropped = []
    for hour in range(10):
        if hour == 8:
            Path(outputs.prepare(tmp_path, task("true", job="written"), "n1", tmp_path)[0]).write_text("more")
        dropped += [outputs.drop_old(tmp_path, {"busy"}, "boot", hour * outputs.SWEEP_US + extra, 9) for extra in (0, 1000)]
    assert dropped == [0] * 18 + [1, 0]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["busy", "written"]
    later = [outputs.drop_old(tmp_path, set(), f"boot-{number}", 0, 9) for number in range(20)]
    assert sum(later) == 2, "a new boot counts as well, once"


def test_no_date_makes_an_output_old(tmp_path: Path) -> None:
    path = Path(outputs.prepare(tmp_path, task("true", job="old"), "n1", tmp_path)[0])
    path.write_text("x")
    for each in (path, path.parent):
        os.utime(each, (1, 1))  # written when the clock stood at 1970
    assert outputs.drop_old(tmp_path, set(), "boot", 0) == 0
    (tmp_path / outputs.AGES).write_bytes(b"{")
    assert outputs.drop_old(tmp_path, set(), "boot", outputs.SWEEP_US) == 0
    assert path.exists()


def test_runtimes_are_found_by_their_names() -> None:
    assert names() == ["container", "process"]
    assert load("process").check() == ""
    with pytest.raises(UnknownRuntime, match="there are container, process"):
        load("os")
