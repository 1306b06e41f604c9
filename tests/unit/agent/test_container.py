"""What the engines of containers are told to run."""

from pathlib import Path

import pytest

from muster.agent.runtimes.container import Container
from tests.support.agents import task


@pytest.fixture(params=["podman", "docker", "apptainer"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The only engine on the PATH."""
    path = tmp_path / str(request.param)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return str(request.param)


def told(*command: str, environment: dict[str, str] | None = None) -> tuple[str, ...]:
    run = task(*command, image="an/image:1", environment=environment or {})
    return Container().launch(run, {"MUSTER_TASK": "a.0.1.0-uid", **(environment or {})}, Path("/folder")).argv


def test_a_command_is_run_instead_of_the_images_own(engine: str) -> None:
    argv = told("python", "train.py")
    if engine == "apptainer":
        assert (argv[1], argv[-3:]) == ("exec", ("docker://an/image:1", "python", "train.py"))
    else:
        assert argv[-4:] == ("--entrypoint", "python", "an/image:1", "train.py")


def test_arguments_alone_go_to_what_the_image_runs(engine: str) -> None:
    argv = told("--steps", "5", environment={"MUSTER_ENTRYPOINT": "image"})
    assert "--entrypoint" not in argv
    assert argv[-2:] == ("--steps", "5")
    if engine == "apptainer":
        assert argv[1] == "run"


def test_without_a_command_the_image_runs_what_it_says(engine: str) -> None:
    argv = told()
    assert argv[-1].endswith("an/image:1")
    assert argv[1] == "run"


def test_what_the_agent_wrote_for_the_task_is_there_inside_too(engine: str) -> None:
    argv = told("true", environment={"MUSTER_HOSTFILE": "/t/hostfile", "MUSTER_CREDENTIALS": "/t/credentials"})
    for path in ("/t/hostfile", "/t/credentials"):
        assert argv[argv.index(f"{path}:{path}:ro") - 1] == ("--bind" if engine == "apptainer" else "--volume")
