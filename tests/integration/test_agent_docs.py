"""docs/agents.md says what is so: its commands run, its options, names, labels and files are there."""

import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from muster.agent.environment import Place, binding
from muster.cli.main import run
from muster.events.jobs import GroupRequest
from tests.support.agents import Gateway, Node, node, task, until

TEXT = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]


def test_the_commands_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) == 4
    data = tmp_path / "agent"
    for line in COMMANDS[:2]:
        words = shlex.split(line)
        assert words[:4] == ["muster", "agent", "--gateway", "http://10.0.0.1:8470"]
        gateway = Gateway()
        agent = Node(gateway, data, *words[words.index("--data") + 2 :], name=words[words.index("--node") + 1])
        agent.start()
        try:
            until(partial(getattr, gateway, "spec"))
            assert gateway.reports[0].node == words[words.index("--node") + 1]
        finally:
            agent.end()
            gateway.close()
    for line, said in zip(COMMANDS[2:], ("failed", "healthy"), strict=True):
        words = [str(data) if word == "/var/lib/muster" else word for word in shlex.split(line)]
        assert run(words[1:]) == 0
        assert f"-3 is {said}" in capsys.readouterr().out


def test_its_options_are_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        run(["agent", "--help"])
        run(["agent", "break", "--help"])
    known = capsys.readouterr().out
    for option in re.findall(r"`?(--[a-z][a-z-]+)", TEXT):
        assert option in known, option


def test_its_names_are_those_of_a_task() -> None:
    place = Place(node="n1", mark="m", port=1, folder=Path("/t"), credentials=Path("/t/credentials"))
    names = set(binding(task("true", group_request=GroupRequest(gpu_milli=500), elastic=True), place))
    table = TEXT.split("| name | is |")[1].split("\n\n")[0]
    assert set(re.findall(r"`([A-Z][A-Z_]+)`", table)) == names


def test_its_labels_are_those_of_a_node(tmp_path: Path) -> None:
    with node(tmp_path, "--devices", "2xT4-16GB") as (gateway, _):
        assert gateway.spec is not None
        assert gateway.spec.spec is not None
        labels = set(gateway.spec.spec.labels)
        assert labels == set(re.findall(r"`((?:kubernetes\.io|nvidia\.com|muster)[./][a-z.]+)`", TEXT))


def test_its_files_are_those_of_a_data_folder(tmp_path: Path) -> None:
    table = TEXT.split("| file | is |")[1].split("\n\n")[0]
    named = set(re.findall(r"^\| `([a-z.]+)/?", table, re.MULTILINE))
    inside = set(re.findall(r"`([a-z.]+)`", re.findall(r"^\| `tasks/.*$", table, re.MULTILINE)[0].split("|", 2)[2]))
    with node(tmp_path) as (gateway, agent):
        gateway.assign(task("true"))
        gateway.reaches("exited")
        assert {path.name for path in agent.data.iterdir()} == named - {"broken.json"}
        [folder] = (agent.data / "tasks").iterdir()
        assert {path.name for path in folder.iterdir()} >= inside
