"""What `muster submit` makes of files, flags and the environment, before anything is sent."""

import re
from pathlib import Path

import pytest

from muster.cli.main import run
from muster.cli.output import UNREADABLE, USAGE, Failure
from muster.cli.submit import Exported, read_jobs
from muster.doors import DoorError
from muster.doors.fields import JOB_FIELDS, REQUEST_FIELDS, RUN_FIELDS, TASK_FIELDS
from muster.doors.placing import CONSTRAINT_FIELDS, PLACE_FIELDS
from muster.events.jobs import Requirement

SCRIPT = "#!/bin/bash\n#SBATCH -J two\n#SBATCH --nodes=2\n#SBATCH --export=ALL,MY_TOKEN\n#SBATCH --mail-type=ALL\nsrun hostname\n"


def test_every_field_of_a_job_has_a_flag(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert run(["submit", "--help"]) == 0
    flags = set(re.findall(r"--([a-z-]+)", capsys.readouterr().out))
    called = {"labels": "label", "environment": "env", "tolerations": "toleration", "command": "wait", "prefers": "prefer"}
    called |= {"ports": "port", "datasets": "dataset", "licences": "licence", "service": "replicas"}
    tables = (JOB_FIELDS, REQUEST_FIELDS, TASK_FIELDS, PLACE_FIELDS, CONSTRAINT_FIELDS, RUN_FIELDS)
    keys = [field.key for table in tables for field in table]
    assert [key for key in keys if called.get(key, key).replace("_", "-") not in flags] == []


def test_flags_alone_make_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = {"command": ["/usr/bin/Env", "a b"], "gpus": 2, "count": 4, "time_limit": "2h", "selector": {"zone": "a"}}
    ((job,), notices) = read_jobs([], said, None)
    (group,) = job.request.groups
    assert (job.name, job.run.command, job.run.directory) == ("env", ("/usr/bin/Env", "a b"), str(tmp_path))
    assert (group.count, group.min, group.gpus) == (4, 4, 2)
    assert group.selector == (Requirement(key="zone", values=("a",)),)
    assert job.request.time_limit_us == 7_200_000_000
    assert notices == ()


def test_a_flag_goes_before_what_the_file_says_and_the_rest_stays(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: a\ngpus: 1\nenvironment: {A: x, B: y}\ncommand: 'true'\n")
    ((job,), _) = read_jobs([str(file)], {"gpus": 3, "environment": {"B": "z"}, "priority": 7}, None)
    assert job.request.groups[0].gpus == 3
    assert job.run.environment == {"A": "x", "B": "z"}
    assert (job.name, job.request.priority) == ("a", 7)
    with pytest.raises(DoorError, match=r"job\.yaml.*gpus"):
        read_jobs([str(file)], {"gpus": 1000}, None)


def test_no_secret_goes_into_the_log_with_a_slurm_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "t")
    monkeypatch.setenv("OTHER_SECRET", "s")
    monkeypatch.setenv("PLAIN", "p")
    file = tmp_path / "two.sbatch"
    file.write_text(SCRIPT)
    ((job,), notices) = read_jobs([str(file)], {}, None)
    assert not [name for name in job.run.environment if "SECRET" in name]
    assert job.run.environment["PLAIN"] == "p"
    assert job.run.environment["MY_TOKEN"] == "t"
    assert "OTHER_SECRET" not in job.run.environment
    assert any("mail-type" in str(notice) for notice in notices)


def test_secrets_and_the_session_are_exported_only_by_name() -> None:
    exported = Exported({"A": "1", "HF_TOKEN": "x", "SSH_TTY": "y", "SLURM_JOB_ID": "7", "BAD": "a\nb"})
    assert dict(exported) == {"A": "1"}
    assert len(exported) == 1
    assert "HF_TOKEN" in exported
    assert exported["HF_TOKEN"] == "x"


def test_an_image_is_replaced_by_its_command_where_images_toml_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images.toml").write_text('[images]\n"pytorch/*" = ["python", "train.py"]\n')
    ((known,), _) = read_jobs([], {"image": "pytorch/pytorch:2.1.0-cuda12.1"}, None)
    assert (known.run.image, known.run.command, known.run.directory) == ("", ("python", "train.py"), str(tmp_path))
    ((other,), _) = read_jobs([], {"image": "busybox:1"}, None)
    assert (other.run.image, other.run.command) == ("busybox:1", ())
    with pytest.raises(Failure, match="no such file"):
        read_jobs([], {"image": "busybox"}, tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("arguments", "says", "status"),
    [
        ((), "nothing to submit", USAGE),
        (("python", "train.py"), "python cannot be read: No such file or directory; a command stands behind `--`", UNREADABLE),
        (("--gpus", "99", "--", "true"), "gpus", USAGE),
        (("--label", "x", "--", "true"), "--label must be KEY=VALUE", USAGE),
        (("--env", "NOT_SET_ANYWHERE", "--", "true"), "is not set here", USAGE),
        (("--group", "{name", "--", "true"), "--group must be a mapping", USAGE),
        (("--priority", "high", "--", "true"), "--priority", USAGE),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    says: str,
    status: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["submit", "--gateway", "http://127.0.0.1:1", *arguments]) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert says in printed.err


def test_strict_submits_nothing_where_something_cannot_be_honoured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "two.sbatch").write_text(SCRIPT)
    assert run(["submit", "--strict", "--gateway", "http://127.0.0.1:1", str(tmp_path / "two.sbatch")]) == USAGE
    said = capsys.readouterr().err
    assert "two.sbatch:5: --mail-type" in said
    assert "nothing is submitted" in said
