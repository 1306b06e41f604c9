"""Slurm scripts through their door."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from muster.doors import DoorError, Opened, Origin, open_file
from muster.doors.dependencies import write_after
from muster.doors.names import door_names
from muster.doors.slurm import read_script
from muster.doors.slurm_values import BadValue, read_deadline_us
from muster.events.jobs import Constraints, JobSubmitted
from tests.unit.doors.scripts import SCRIPTS, WRONG

JOB = "01900000-0000-7000-8000-000000000001"


def read(script: str, name: str = "train.sbatch", **origin: Any) -> Opened:
    told: dict[str, Any] = {"user": "ann", "directory": "/home/ann", "host": "login1", "submitted_us": 5}
    return open_file(script.encode(), name, Origin(new_id=lambda: JOB, **(told | origin)))


def summary(job: JobSubmitted) -> dict[str, Any]:
    """What a table of scripts speaks of."""
    group = job.request.groups[0]
    limit = job.request.time_limit_us
    asked = job.request.constraints or Constraints()
    environment = job.run.environment
    return {
        "name": job.name,
        "queue": job.queue,
        "nodes": sum(group.count for group in job.request.groups),
        "nodes_min": sum(group.min for group in job.request.groups),
        "cpus": group.cpu_milli // 1000,
        "memory_mib": group.memory_mib,
        "disk_mib": group.disk_mib,
        "gpus": group.gpus,
        "models": group.gpu_models,
        "gpu_memory_mib": group.gpu_memory_mib,
        "any_of": [[one.key for one in term] for term in group.any_of or ()],
        "prefers": [[one.key for one in wish.labels] for wish in group.prefers or ()],
        "exclusive": asked.exclusive,
        "licences": {one.name: one.count for one in asked.licences},
        "spread": [(one.level, one.most) for one in asked.spread],
        "within": [(one.level, one.required) for one in asked.within],
        "selector": [(one.op, len(one.values)) for one in group.selector],
        "time_s": None if limit is None else limit // 1_000_000,
        "array": job.request.array,
        "at_once": job.request.at_once or None,
        "after": write_after(job.request.after or ()),
        "array_spec": environment.get("MUSTER_ARRAY"),
        "priority": job.request.priority,
        "labels": job.request.labels,
        "output": job.run.output,
        "error": job.run.error,
        "directory": job.run.directory,
        "tasks": environment["SLURM_NTASKS"],
        "slurm_name": environment["SLURM_JOB_NAME"],
        "exported": environment.get("SECRET"),
        "interpreter": job.run.command[: job.run.command.index("-c") + 1],
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_comes_to_what_slurm_would_make_of_it(name: str) -> None:
    script, expected, named = SCRIPTS[name]
    opened = read(script, f"{name}.sbatch", environment={"HF_HOME": "/cache", "SECRET": "s"})
    (job,) = opened.jobs
    found = summary(job)
    environment = expected.get("environment", {})
    plain = {key: value for key, value in expected.items() if key != "environment"}
    assert {key: found[key] for key in plain} == plain
    assert {key: job.run.environment.get(key) for key in environment} == environment
    assert sorted(notice.key for notice in opened.notices) == sorted(named)
    assert script in job.run.command


@pytest.mark.parametrize("name", WRONG)
def test_an_error_names_the_line_the_option_and_what_would_be_right(name: str) -> None:
    script, line, key, words = WRONG[name]
    with pytest.raises(DoorError) as caught:
        read(script)
    assert (caught.value.line, caught.value.key) == (line, key)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"train.sbatch:{line}: {key} ")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("30:15", 1815),
        ("3:00", 180),
        ("24:00:00", 86400),
        ("50:0:0", 180000),
        ("2-12", 216000),
        ("1-06:30", 109800),
        ("1-06:30:10", 109810),
        ("0", None),
        ("UNLIMITED", None),
        ("infinite", None),
        ("-1", None),
    ],
)
def test_a_time_is_read_in_all_its_forms(text: str, seconds: int | None) -> None:
    limit = read(f"#!/bin/bash\n#SBATCH --time={text}\nx\n").jobs[0].request.time_limit_us
    assert limit == (None if seconds is None else seconds * 1_000_000)


def test_the_example_is_one_task_with_four_gpus_under_bash() -> None:
    (job,) = read(SCRIPTS["plain-one-gpu"][0]).jobs
    assert job.user == "ann"
    assert job.submitted_us == 5
    assert job.request.grace_us == 30_000_000
    assert job.request.success == ""
    assert job.run.command[:2] == ("/bin/bash", "-c")
    assert job.run.command[3] == "slurm_script"
    assert job.run.environment["MUSTER_DOOR"] == "slurm"
    assert job.run.environment["SLURM_SUBMIT_DIR"] == "/home/ann"
    assert job.run.environment["SLURM_SUBMIT_HOST"] == "login1"


def test_of_several_nodes_the_first_runs_the_script_and_decides() -> None:
    (job,) = read("#!/bin/bash\n#SBATCH -N 3\n#SBATCH --ntasks-per-node=2\n#SBATCH --gres=gpu:2\nsrun hostname\n").jobs
    assert [(group.name, group.count, group.min, group.gpus) for group in job.request.groups] == [
        ("batch", 1, 1, 2),
        ("node", 2, 2, 2),
    ]
    assert job.request.success == "batch"
    assert job.run.environment["SLURM_NNODES"] == "3"
    assert job.run.environment["SLURM_TASKS_PER_NODE"] == "2(x3)"
    assert job.run.environment["SLURM_JOB_CPUS_PER_NODE"] == "2(x3)"


def test_tasks_that_do_not_divide_are_spread_as_evenly_as_they_go() -> None:
    (job,) = read("#!/bin/bash\n#SBATCH -N 2\n#SBATCH -n 5\nsrun hostname\n").jobs
    assert [group.cpu_milli for group in job.request.groups] == [3000, 3000]
    assert job.run.environment["SLURM_TASKS_PER_NODE"] == "3,2"


def test_fewer_tasks_than_nodes_need_fewer_nodes() -> None:
    (job,) = read("#!/bin/bash\n#SBATCH -N 4\n#SBATCH -n 1\nhostname\n").jobs
    assert sum(group.count for group in job.request.groups) == 1


def test_variables_that_slurm_sets_only_when_asked_are_set_only_then() -> None:
    (job,) = read("#!/bin/bash\nhostname\n").jobs
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS", "SLURM_MEM_PER_NODE", "SLURM_ARRAY_TASK_COUNT"):
        assert name not in job.run.environment
    (job,) = read("#!/bin/bash\n#SBATCH -c 3 --mem=2G --gpus=a100:2\nhostname\n").jobs
    assert job.run.environment["SLURM_CPUS_PER_TASK"] == "3"
    assert job.run.environment["SLURM_MEM_PER_NODE"] == "2048"
    assert job.run.environment["SLURM_GPUS"] == "a100:2"


def test_an_array_says_which_index_each_element_has() -> None:
    (job,) = read("#!/bin/bash\n#SBATCH --array=1,3,10-14:2\nhostname\n").jobs
    environment = job.run.environment
    assert [environment[f"SLURM_ARRAY_TASK_{name}"] for name in ("COUNT", "MIN", "MAX", "STEP")] == ["5", "1", "14", "1"]
    indices = [door_names(environment, 0, instance, 5)["SLURM_ARRAY_TASK_ID"] for instance in range(5)]
    assert indices == ["1", "3", "10", "12", "14"]
    assert "SLURM_ARRAY_TASK_ID" not in door_names({"MUSTER_DOOR": "slurm"}, 0, 0, None)


def test_options_of_the_command_line_win_and_arguments_reach_the_script() -> None:
    origin = Origin(new_id=lambda: JOB, user="ann")
    script = "#!/bin/bash\n#SBATCH --gpus=1\n#SBATCH --time=10\necho $1\n"
    (job,) = read_script(script, "a.sh", origin, ["--gpus", "2", "-Jb"], ["one", "two"]).jobs
    assert (job.request.groups[0].gpus, job.name) == (2, "b")
    assert job.request.time_limit_us == 600_000_000
    assert job.run.command[-3:] == ("slurm_script", "one", "two")
    with pytest.raises(DoorError, match="command line:1: --time must be minutes"):
        read_script(script, "a.sh", origin, ["--time=soon"])


def test_a_script_in_latin_1_is_run_and_it_is_said() -> None:
    opened = open_file("#!/bin/bash\n# grün\nhostname\n".encode("latin-1"), "a.sh", Origin(new_id=lambda: JOB, user="ann"))
    assert [notice.sentence for notice in opened.notices] == ["is not UTF-8: it is read as Latin-1"]


def test_a_name_that_is_no_name_here_stays_what_slurm_calls_the_job() -> None:
    (job,) = read("#!/bin/bash\n#SBATCH -J Deep_Learning\nx\n").jobs
    assert (job.name, job.run.environment["SLURM_JOB_NAME"]) == ("deep-learning", "Deep_Learning")


def test_a_deadline_is_read_as_sbatch_reads_it() -> None:
    now_us = 1_767_225_600_000_000
    here = datetime.fromtimestamp(now_us // 1_000_000).astimezone()
    assert read_deadline_us("now+90minutes", now_us) == now_us + 5_400_000_000
    assert read_deadline_us("now+10", now_us) == now_us + 10_000_000
    later = here + timedelta(hours=1)
    assert read_deadline_us(later.strftime("%H:%M:%S"), now_us) == now_us + 3_600_000_000
    earlier = here - timedelta(hours=1)
    assert read_deadline_us(earlier.strftime("%Y-%m-%dT%H:%M"), now_us) == now_us - 3_600_000_000
    assert read_deadline_us(earlier.strftime("%H:%M"), now_us) == now_us + 23 * 3_600_000_000
    for wrong in ("soon", "25:99", "2026-13-01", "now+1fortnight"):
        with pytest.raises(BadValue, match="HH:MM"):
            read_deadline_us(wrong, now_us)
