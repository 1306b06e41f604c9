"""What lists jobs and nodes asks the gateway once, however many there are."""

import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from muster.cli.main import run as muster
from muster.simulator.agents import Behaviour
from muster.slurm.__main__ import main as program
from tests.support.gateway import Simulated, Stack, job, running

JOBS = 40


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("listings")) as stack, stack.client() as client:
        agents = Simulated(client, nodes=2, gpus=4, behaviour=Behaviour(runtime_us=3_600_000_000))
        bodies = [job(f"j-{number}", user=f"u{number % 2}") for number in range(JOBS)]
        script = {"command": ["x"], "environment": {"MUSTER_DOOR": "slurm", "MUSTER_ARRAY": "1,3,7", "SLURM_JOB_NAME": "Arr"}}
        bodies.append(job("arr", id="listed-array", array=3, run=script))
        bodies.append(job("over", id="listed-over"))
        assert client.post("/submissions", json=bodies).status_code == 202
        assert client.post("/jobs/listed-over/cancel").status_code == 202
        assert client.post("/jobs/listed-array/cancel", json={"instance": 1}).status_code == 202
        agents.until(lambda: len(client.get("/jobs", params={"state": "running"}).json()["jobs"]) == 8)
        yield stack


@pytest.fixture
def asked(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that commands send from here on."""
    sent: list[str] = []
    send = httpx.Client.send

    def noted(self: httpx.Client, request: httpx.Request, **how: Any) -> httpx.Response:
        sent.append(f"{request.method} {request.url.path}")
        return send(self, request, **how)

    monkeypatch.setattr(httpx.Client, "send", noted)
    monkeypatch.setenv("MUSTER_GATEWAY", stack.url)
    return sent


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        (["squeue", "-h"], JOBS + 2),
        (["squeue", "-h", "-t", "all"], JOBS + 4),
        (["squeue", "-h", "-t", "R"], 8),
        (["squeue", "-h", "-t", "CA"], 2),
        (["squeue", "-h", "-u", "u1"], JOBS // 2),
        (["squeue", "-h", "-n", "j-1,j-2"], 2),
        (["squeue", "-h", "-w", "n1", "-o", "%i %N"], 4),
        (["squeue", "-h", "-j", "01900000-0000-7000-8000-000000000001"], 0),
        (["sinfo", "-h", "-N"], 2),
    ],
)
def test_slurms_listings_ask_once(asked: list[str], capsys: pytest.CaptureFixture[str], command: list[str], lines: int) -> None:
    assert program(command) == 0
    assert len(capsys.readouterr().out.splitlines()) == lines
    assert len(asked) == 1


@pytest.mark.parametrize(("command", "requests"), [(["jobs"], 1), (["nodes"], 1), (["top", "--once"], 3)])
def test_musters_listings_ask_once_for_each_table(
    asked: list[str], capsys: pytest.CaptureFixture[str], command: list[str], requests: int
) -> None:
    assert muster(command) == 0
    assert capsys.readouterr().out
    assert len(asked) == requests


def test_an_array_is_shown_by_the_indices_of_its_script(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program(["squeue", "-h", "-j", "listed-array", "-t", "all", "-o", "%i %K %j %T"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "listed-array_1 1 Arr PENDING",
        "listed-array_3 3 Arr CANCELLED",
        "listed-array_7 7 Arr PENDING",
    ]
    assert program(["squeue", "-h", "-j", "listed-array_7", "-o", "%i"]) == 0
    assert capsys.readouterr().out == "listed-array_7\n"


def test_whoever_waits_for_many_jobs_asks_for_all_of_them_at_once(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("".join(f"---\nname: w-{number}\ngpus: 9\nqueue: nowhere\ncommand: x\n" for number in range(20)))
    assert muster(["submit", str(file), "--wait"]) == 1
    assert len(capsys.readouterr().out.split()) == 20
    assert asked[0] == "POST /v1/submissions"
    assert 1 <= len(asked[1:]) <= 3
    assert set(asked[1:]) == {"GET /v1/jobs"}


def test_pages_follow_one_another_and_leave_nothing_out(stack: Stack) -> None:
    found: list[str] = []
    with stack.client() as client:
        page: dict[str, Any] = {"more": True}
        while page["more"]:
            after = {"after": found[-1]} if found else {}
            page = client.get("/elements", params={"limit": 7, "over": True, **after}).json()
            assert 0 < len(page["jobs"]) <= 7
            found += [each["job"]["job"] for each in page["jobs"]]
        rows = client.get("/jobs").json()["jobs"]
        assert found == [row["job"] for row in rows]
        some = ",".join([found[3], "nothing", found[1]])
        assert [row["job"] for row in client.get("/jobs", params={"id": some}).json()["jobs"]] == [found[3], found[1]]
        for wrong in (",", ",".join(["x"] * 501)):
            assert client.get("/jobs", params={"id": wrong}).json()["field"] == "id"


RED = (Path(__file__).parents[2] / "docs" / "queues.md").read_text().partition("```toml\n")[2].partition("```")[0]


def test_queues_become_what_the_page_says(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_GATEWAY", stack.url)
    path = tmp_path / "queues.toml"
    path.write_text(RED)

    def apply(*options: str) -> tuple[int, list[str]]:
        code = muster(["apply", str(path), *options])
        said = capsys.readouterr()
        return code, (said.out + said.err).splitlines()

    assert apply("--dry-run") == (
        0,
        [
            '+ red: guarantee {"gpu_milli":2000,"memory_mib":1024}, limit {"gpu_milli":4000,"jobs":9}',
            '+ blue: parent "red", weight 3, max_time_us 172800000000',
        ],
    )
    code, lines = apply()
    assert (code, lines[-1]) == (2, "muster: nobody can be asked here: say --yes to send it, or --dry-run to see it")
    assert apply("--yes")[0] == 0
    assert apply("--yes") == (0, ["the queues are as the file says"])
    path.write_text(
        RED.replace("weight = 3", "weight = 4").replace("[queues.red]", '[queues.gray]\nparent = "none"\n[queues.red]')
    )
    code, lines = apply("--yes")
    assert (code, lines[-1]) == (2, "muster: parent: there is no queue 'none'; set it first")
    path.write_text("[queues.red]\n")
    assert apply("--yes", "--prune") == (
        0,
        ['~ red: guarantee {"gpu_milli":2000,"memory_mib":1024} -> none, limit {"gpu_milli":4000,"jobs":9} -> none', "- blue"],
    )
    with stack.client() as client:
        shown = {row["queue"]: row["tree"] for row in client.get("/queues").json()["queues"]}
        assert (shown["red"]["limit"], "blue" in shown) == ({}, False)
        assert client.delete("/queues/default").status_code == 422
        assert client.put("/queues/blue", json={"parent": "blue"}).status_code == 422
        assert client.put("/queues/blue", json={"weight": -1}).status_code == 422
    path.write_text("[queues.red]\nguarantee = {gpus = 0.0001}\n")
    code, lines = apply()
    assert code == 2
    assert "queues.red.guarantee.gpus must be GPUs from 0 in whole thousandths" in lines[-1]


PAGE = (Path(__file__).parents[2] / "docs" / "reservations.md").read_text().partition("```bash\n")[2].partition("```")[0]


def test_the_commands_about_reservations_do_what_the_page_says(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_GATEWAY", stack.url)
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)

    def run(line: str) -> tuple[int, str]:
        code = muster(shlex.split(line)[1:])
        said = capsys.readouterr()
        return code, said.out + said.err

    with stack.client() as client:
        names = [row["node"] for row in client.get("/nodes").json()["nodes"]]
        lines = PAGE.replace("gpu-7", names[0]).replace("2026-12-05", str(tomorrow)).splitlines()
        assert [run(line)[0] for line in lines[:2]] == [0, 0]
        code, table = run(lines[2])
        assert code == 0
        assert [line.split()[0] for line in table.splitlines()] == ["RESERVATION", "course", "patches"]
        assert "weekdays@09:00 Europe/Berlin, 60 left" in table
        assert "nobody" in table
        shown = {row["reservation"]: row for row in client.get("/reservations").json()["reservations"]}
        assert shown["patches"]["window"]["until_us"] - shown["patches"]["window"]["from_us"] == 4 * 3_600_000_000
        assert shown["course"]["tzdata"].startswith("tzdata 20")
        code, said = run(lines[0].replace("patches", "again"))
        assert code == 2
        assert "is reserved by patches" in said
        assert run(lines[0].replace("4h", "soon"))[0] == 2
        assert run("muster reserve a --count 1 --gpus 1 --for 1h --queue nowhere") == (
            2,
            "muster: queue: there is no queue 'nowhere'\n",
        )
        for wrong in (
            {},
            {"for_us": 1},
            {"nodes": ["nowhere"], "for_us": 1},
            {"gpus": 1, "count": 1, "for_us": 1, "zone": "Mars"},
        ):
            answer = client.put("/reservations/wrong", json=wrong)
            assert (answer.status_code, bool(answer.json()["field"])) == (422, True)
        assert run(lines[3])[0] == 0
        assert client.get("/reservations").json()["reservations"] == []
        assert run(lines[3])[0] == 2
