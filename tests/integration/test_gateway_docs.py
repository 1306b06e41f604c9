"""docs/gateway.md says what is so: its commands run, its paths are those of the API, its options are there."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from muster.cli.main import run
from muster.gateway.app import litestar
from tests.support.gateway import running

TEXT = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_requests_are_answered(tmp_path: Path) -> None:
    requests = [line for line in COMMANDS if line.startswith("curl ")]
    assert len(requests) == 7
    with running(tmp_path) as stack:
        for line in requests:
            words = [word.replace("http://127.0.0.1:8470", stack.url) for word in shlex.split(line)]
            answer = subprocess.run([*words, "--fail-with-body"], capture_output=True, text=True, timeout=30, check=False)
            assert answer.returncode == 0, (line, answer.stdout)
            assert "hello" in answer.stdout or "cycle" in answer.stdout


def test_the_commands_about_tokens_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in COMMANDS:
        if line.startswith("muster "):
            words = [str(tmp_path) if word == "/tmp/muster" else word for word in shlex.split(line)]
            assert run(words[1:]) == 0
    assert "gpu-17" in capsys.readouterr().out


def test_its_paths_are_those_of_the_api() -> None:
    document = litestar(None).openapi_schema.to_schema()
    known = {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}
    assert set(re.findall(r"^\| `([A-Z]+ /v1/\S+)`", TEXT, re.MULTILINE)) == known


def test_its_options_are_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        run(["up", "--help"])
        run(["token", "create", "--help"])
    known = capsys.readouterr().out
    for option in re.findall(r"`?(--[a-z][a-z-]+)", TEXT):
        assert option in known, option
