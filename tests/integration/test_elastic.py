"""An elastic gang on real processes: it is shrunk and grown by hand, for others and by itself, and each member notices."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.client import Muster, Refused, sync
from muster.up.places import running as what_runs

READY_S = 60
PAGE = Path(__file__).parents[2] / "docs" / "elastic.md"
PROGRAM = """
import json, os, signal, time

def told(*_):
    with open(os.environ["MUSTER_MEMBERS"]) as file, open(os.environ["RANK"] + ".told", "a") as out:
        members = json.load(file)
        hosts = [line.split() for line in open(os.environ["MUSTER_HOSTFILE"])]
        out.write(json.dumps([os.getpid(), members, hosts]) + "\\n")

signal.signal(signal.SIGWINCH, told)
told()
while True:
    time.sleep(60)
"""


class Site:
    """A stack with two agents of two devices."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        python = Path(sys.executable).parent
        self.environment = {**os.environ, "PATH": f"{python}:{os.environ['PATH']}"}
        options = ["--port", "0", "--agents", "2", "--devices", "2xH100-80GB"]
        command = [sys.executable, "-m", "muster.cli", "up", "--data", str(folder / "data"), *options]
        self.process = subprocess.Popen(command, env=self.environment)
        try:
            until(lambda: (told := what_runs(folder / "data")) is not None and len(told.agents) == 2, "the stack is ready")
        except BaseException:
            self.close()
            raise
        told = what_runs(folder / "data")
        assert told is not None
        self.url = self.environment["MUSTER_GATEWAY"] = told.url

    def close(self) -> None:
        """End the stack."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def muster(self, *arguments: str, code: int = 0) -> str:
        """What the command prints."""
        command = [sys.executable, "-m", "muster.cli", *arguments]
        result = subprocess.run(
            command, cwd=self.work, env=self.environment, capture_output=True, text=True, timeout=90, check=False
        )
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + result.stderr

    def told(self, rank: int) -> list[Any]:
        """What the members of a rank noticed: process, who the members are, and the file of hosts."""
        path = self.work / f"{rank}.told"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def notices(self, *ranks: int) -> None:
        """Rank 0, still the same process, comes to know these as the members."""

        def so() -> bool:
            told = self.told(0)
            return bool(told) and told[-1][1]["ranks"] == list(ranks)

        until(so, f"rank 0 knows {ranks}; it knows {self.told(0)[-1:]}")
        told = self.told(0)
        assert len(dict.fromkeys([pid for pid, _, _ in told])) == 1
        members, hosts = told[-1][1:]
        assert members["world_size"] == sum(members["ranks_per_node"]) == len(ranks)
        assert hosts == [[node, f"slots={many}"] for node, many in zip(members["nodes"], members["ranks_per_node"], strict=True)]

    def size(self) -> int:
        """How many members there are, as the one says that was told last."""
        last = [told[-1][1] for rank in range(4) if (told := self.told(rank))]
        return int(max([(each["changed"], each["world_size"]) for each in last])[1])

    def shown(self, job: str) -> Any:
        """The first instance of a job, as the gateway shows it."""
        return json.loads(self.muster("job", job, "--json"))["elements"][0]


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for it."""
    end = time.monotonic() + READY_S
    while not true():
        assert time.monotonic() < end, f"it does not become true: {what}"
        time.sleep(0.05)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def test_a_gang_that_runs_is_shrunk_and_grown_and_notices(site: Site) -> None:
    """The commands of the page, with the file of the page."""
    (yaml,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (block,) = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    commands = [command.split() for command in re.findall(r"^muster (.*)$", block, re.MULTILINE)]
    assert [command[0] for command in commands] == ["submit", "resize", "checkpoint", "job", "cancel"]
    (site.work / "wide.yaml").write_text(yaml)
    (site.work / "train.py").write_text(PROGRAM)
    id = site.muster(*commands[0]).split()[-1]
    until(lambda: len(site.told(3)) == 1, "all four run")

    site.muster(*commands[1])
    site.notices(0, 1)
    until(lambda: len(site.shown("wide")["attempt"]["tasks"]) == 2, "two have left")

    with sync.Muster(site.url) as client:
        client.resize(id, 4)
        site.notices(0, 1, 2, 3)
        until(lambda: len(site.told(3)) == 2, "another process is rank 3")
        assert site.told(3)[-1][0] != site.told(3)[0][0]
        client.checkpoint(id)
    site.muster(*commands[2])

    async def by_hand() -> None:
        async with Muster(site.url) as client:
            with pytest.raises(Refused, match="count"):
                await client.resize(id, 10**6)
            await client.resize(id, 1)

    asyncio.run(by_hand())
    site.notices(0)
    site.muster("resize", "wide", "4")
    site.notices(0, 1, 2, 3)

    site.muster("submit", "--name", "high", "--priority", "5", "--gpus", "2", "--", "sleep", "600")
    until(lambda: site.shown("high")["state"] == "running", "who needs two devices of one node has them")
    until(lambda: site.size() == 2, "two members made way, and the others know")
    site.muster("cancel", "high")
    until(lambda: site.size() == 4, "it has grown again, and all know")
    attempt = site.shown("wide")
    assert (attempt["attempts"], attempt["state"]) == (1, "running")
    assert '"rank":0' in site.muster(*commands[3], "--json")

    site.muster("submit", "--name", "rigid", "--count", "2", "--", "sleep", "600")
    until(lambda: site.shown("rigid")["state"] == "running", "a rigid gang runs")
    assert "is not elastic and holds its places" in site.muster("resize", "rigid", "3", code=2)
    site.muster(*commands[4])
    until(lambda: site.shown("wide")["state"] == "cancelled", "it has ended")
