"""docs/kafka.md says what is so: the takeover that its reader provokes happens."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.log.fsck import fsck
from tests.support.kafka import Brokers, bus_broker

TEXT = (Path(__file__).parents[2] / "docs" / "kafka.md").read_text()
PATIENCE_S = 300


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Brokers]:
    with bus_broker(tmp_path / "brokers") as started:
        yield started


def test_the_takeover_that_a_reader_provokes_happens(tmp_path: Path, broker: Brokers) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", TEXT.partition("## A takeover that you provoke")[2], re.DOTALL)
    assert len(blocks) == 4
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    script = "\n".join(blocks).replace("8470", port).replace("/tmp/muster", str(tmp_path / "muster"))
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MUSTER_BUS": broker.address,
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", "-eu", "-c", f"trap 'kill $(jobs -p)' EXIT\n{script}\nwait"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    said = done.stdout
    verdicts = ("the log is whole", "every decision was legal", "none differs")
    for line in ("term=1", "term=2", "during", "while-stopped", "after", *verdicts):
        assert line in said, said
    assert len(fsck(broker.address).terms) >= 2
