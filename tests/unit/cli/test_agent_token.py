"""What `muster agent` tells its gateway of itself: the token, from where a node keeps it."""

from pathlib import Path
from typing import Any

import pytest

import muster.agent.agent
from muster.cli.main import run


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens of the agents that were made; none of them runs."""
    seen: list[str] = []

    class Seen(muster.agent.agent.Agent):
        def __init__(self, options: Any, runtime: Any) -> None:
            seen.append(options.token)
            super().__init__(options, runtime)

        async def run(self, stop: Any) -> None:
            self.home.close()

    monkeypatch.setattr(muster.agent.agent, "Agent", Seen)
    return seen


def agent(folder: Path, number: int) -> int:
    return run(["agent", "--node", "n", "--data", str(folder / str(number)), "--devices", "1xH100-80GB", "--no-cgroup"])


def test_an_agent_reads_its_token_from_the_variable_or_from_the_file_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str]
) -> None:
    monkeypatch.delenv("MUSTER_TOKEN", raising=False)
    monkeypatch.delenv("MUSTER_TOKEN_FILE", raising=False)
    assert agent(tmp_path, 1) == 0
    (tmp_path / "token").write_text("of-the-file\n")
    monkeypatch.setenv("MUSTER_TOKEN_FILE", str(tmp_path / "token"))
    assert agent(tmp_path, 2) == 0
    monkeypatch.setenv("MUSTER_TOKEN", "of-the-variable")
    assert agent(tmp_path, 3) == 0
    assert tokens == ["", "of-the-file", "of-the-variable"]


def test_an_agent_whose_token_cannot_be_read_says_so_and_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MUSTER_TOKEN", raising=False)
    monkeypatch.setenv("MUSTER_TOKEN_FILE", str(tmp_path / "none"))
    assert agent(tmp_path, 1) == 2
    assert not tokens
    assert "the token cannot be read from" in capsys.readouterr().err
