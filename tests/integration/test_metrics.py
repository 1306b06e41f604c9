"""What Prometheus reads of a stack under load: every panel of the dashboard shows something, and what it shows is true.

Where Debian's `prometheus` is installed, it asks the programs and evaluates the panels' queries. Where it is not, each series
that a query names is looked for on the pages.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from muster.gateway.tokens import Tokens
from muster.metrics.catalogue import AGENT, CELL, EVERY, SCHEDULER
from tests.support.dashboard import WORKERS, Page, parsed, queries, unanswered, value
from tests.support.gateway import job, running
from tests.support.kafka import unavailable
from tests.support.up import PATIENCE_S, Up, until, up

SAID = re.compile(r"metrics are at (http://\S+)/metrics")
SECOND = 1_000_000
QUICK = {
    "beat_us": SECOND // 2,
    "silent_after_us": 2 * SECOND,
    "lease_us": 4 * SECOND,
    "margin_us": SECOND,
    "queues": ["default", "gpu"],
}


def read(url: str) -> Page:
    """The page of a program."""
    answer = httpx.get(f"{url}/metrics", trust_env=False, timeout=30)
    assert answer.status_code == 200, answer.text
    return parsed(answer.text)


class Agent:
    """A real agent that Prometheus may ask."""

    def __init__(self, folder: Path, name: str, gateway: str, devices: str) -> None:
        self.said = folder / f"{name}.said"
        words = ["agent", "--gateway", gateway, "--node", name, "--devices", devices, "--data", str(folder / name)]
        words += ["--address", "127.0.0.1", "--metrics", "127.0.0.1:0"]
        with self.said.open("wb") as said:
            self.process = subprocess.Popen([sys.executable, "-m", "muster.cli", *words], cwd=folder, stderr=said)

    @property
    def url(self) -> str:
        """Where its page is."""
        found = until(lambda: SAID.search(self.said.read_text()))
        return str(found[1])

    def kill(self) -> None:
        """SIGKILL; what it runs ends with its lease."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


class Load:
    """A stack with two nodes on which jobs ran, wait, were preempted, and of which one is lost."""

    def __init__(self, stack: Up, url: str, agents: list[Agent]) -> None:
        self.stack = stack
        self.url = url
        self.agents = agents
        self.pages = [url, *[agent.url for agent in agents]]
        self._client = stack.client()

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def submit(self, name: str, command: tuple[str, ...] = ("true",), **fields: Any) -> str:
        """Submit a job; its id."""
        body = job(name, command=command, **fields)
        answer = self._client.post("/jobs", json=body)
        assert answer.status_code == 202, answer.text
        return str(body["job"])

    def play(self) -> None:
        """All of it. What is waited for is read off the page."""
        until(lambda: self.value("muster_nodes", state="open") == 2)
        for number in range(4):
            self.submit(f"quick-{number}", queue="gpu" if number % 2 else "default")
        self.submit("part", groups=[{"gpu_milli": 300}])
        self.submit("cpu", groups=[{"cpu_milli": 100}])
        until(lambda: self.value("muster_attempts_ended_total", outcome="finished") == 6)
        for number in range(3):
            self.submit(f"low-{number}", ("sleep", "600"), groups=[{"gpus": 2}])
        until(lambda: self.value("muster_devices_allocated") == 6)
        self.submit("high", ("sleep", "600"), groups=[{"gpus": 4}], priority=100)
        until(
            lambda: self.value("muster_preemptions_total") >= 2 and self.value("muster_requeues_total", reason="preempted") >= 2
        )
        self.submit("huge", groups=[{"gpus": 64}])
        until(lambda: self.value("muster_pending_instances", reason="resources") >= 2)
        self.agents[1].kill()
        until(lambda: self.value("muster_nodes", state="lost") == 1 and self.value("muster_requeues_total", reason="node-lost"))

    def value(self, name: str, **labels: str) -> float:
        """As it is now."""
        return value(read(self.url), name, **labels)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    folder = tmp_path_factory.mktemp("metrics")
    agents: list[Agent] = []
    with up(folder / "up", "--no-agent", "--metrics", "127.0.0.1:0") as stack:
        try:
            with stack.ready() as client:  # before there are nodes: a lease that was given is kept
                assert client.put("/policy", json=QUICK).status_code == 202
            url = str(SAID.search(stack.said.read_text())[1])  # type: ignore[index]  # it was said before it was ready
            gateway = stack.url.removesuffix("/v1")
            agents += [
                Agent(stack.folder, f"n{number}", gateway, each) for number, each in enumerate(("4xH100-80GB", "2xA100-40GB"))
            ]
            with contextlib.closing(Load(stack, url, agents)) as found:
                yield found
        finally:
            for agent in agents:
                agent.kill()


@contextlib.contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[Callable[[str], Any]]:
    """A real Prometheus that asks these pages every second; what evaluates a query in it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.mkdir()
    listed = "".join(
        f'  - {{job_name: j{number}, static_configs: [{{targets: ["{target.removeprefix("http://")}"]}}]}}\n'
        for number, target in enumerate(targets)
    )
    (folder / "prometheus.yml").write_text(f"global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n{listed}")
    words = [
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen([str(shutil.which("prometheus")), *words], stdout=said, stderr=said)

    def ask(query: str) -> Any:
        answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query}, trust_env=False, timeout=30)
        assert answer.status_code == 200, f"{query}: {answer.text}"
        return answer.json()["data"]["result"]

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(30)


def test_every_panel_shows_data_of_a_stack_under_load_and_the_figures_are_what_happened(load: Load, tmp_path: Path) -> None:
    real = shutil.which("prometheus") is not None
    with prometheus(tmp_path / "prometheus", load.pages) if real else contextlib.nullcontext() as ask:
        load.play()
        page = read(load.url)
        series = [page, *[read(agent.url) for agent in load.agents[:1]]]
        asked = queries(lambda row: row not in WORKERS)
        assert unanswered(asked, series) == []
        empty = {} if ask is None else dict.fromkeys(asked)

        def shown() -> bool:
            load.submit("more", groups=[{"cpu_milli": 100}])  # a rate is of what goes on
            for each in list(empty):
                if ask is not None and any(point["value"][1] != "NaN" for point in ask(each[1])):
                    del empty[each]
            return not empty

        with contextlib.suppress(AssertionError):
            until(shown, PATIENCE_S)
        assert not empty, f"no data: {list(empty)}"
    assert value(page, "muster_scheduling_latency_seconds_count") == 6 + 3 + 1
    assert value(page, "muster_scheduling_latency_seconds_count", queue="gpu", size="1") == 2
    assert value(page, "muster_scheduling_latency_seconds_count", size="share") == 1
    assert value(page, "muster_scheduling_latency_seconds_count", size="none") == 1
    assert value(page, "muster_devices_allocated", model="H100") == 4
    assert value(page, "muster_devices", model="A100", state="lost") == 2
    assert value(page, "muster_device_utilization_ratio", model="H100") == 1
    assert value(page, "muster_queue_share_ratio", queue="default", resource="gpu") == 1
    assert value(page, "muster_instances", queue="default", phase="pending") == value(page, "muster_pending_instances")
    assert value(page, "muster_scheduler_leads") == 1
    entries = value(page, "muster_log_entries_total")
    with load.stack.client() as client:
        assert 0 < value(page, "muster_head_cycle") <= client.get("/state").json()["cycle"]
    assert entries > 50
    if not real:
        unavailable("prometheus", "no query was evaluated, as it is not installed (apt-get install prometheus)")


def test_what_is_documented_is_what_is_exposed(load: Load) -> None:
    families = set()
    for url in load.pages[:2]:
        text = httpx.get(f"{url}/metrics", trust_env=False, timeout=30).text
        families |= {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE muster_")}
    assert families == {metric.name for metric in (*EVERY, *SCHEDULER, *CELL, *AGENT)}


def test_the_commands_of_the_page_run(load: Load) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    block = page.partition("```console\n")[2].partition("```")[0]
    ports = {"127.0.0.1:9464": load.url.removeprefix("http://"), "127.0.0.1:8470": f"127.0.0.1:{load.stack.port}"}
    for command in block.splitlines():
        words = [
            word.replace(written, here) for word in shlex.split(command) for written, here in ports.items() if written in word
        ]
        if command.startswith("muster up "):
            assert load.stack.options[-2] in command, "the stack was not started as the page says"
        else:
            assert command.startswith("curl -s http://")
            told = subprocess.run(["curl", "-s", *words], capture_output=True, text=True, timeout=60)
            assert "muster_build_info{" in told.stdout, command


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_wrong_with_the_pages(load: Load) -> None:
    for url in load.pages[:2]:
        text = httpx.get(f"{url}/metrics", trust_env=False, timeout=30).content
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, b""), checked.stderr.decode()


def test_openmetrics_is_given_to_who_asks_for_it(load: Load) -> None:
    wanted = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    answer = httpx.get(f"{load.url}/metrics", headers=wanted, trust_env=False, timeout=30)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_the_counters_go_on_where_they_were_after_the_stack_was_killed(load: Load) -> None:
    before = read(load.url)
    (item,) = load.stack.schedulers()
    os.kill(item.pid, signal.SIGKILL)
    until(lambda: [each for each in load.stack.schedulers() if each.pid != item.pid])
    gateway = load.stack.url.removesuffix("/v1")
    after: Page = until(lambda: read(gateway))
    assert value(after, "muster_terms_total") == value(before, "muster_terms_total") + 1
    assert value(after, "muster_measured_from_cycle") == 0
    for name in ("muster_log_cycles_total", "muster_log_bytes_total", "muster_log_entries_total", "muster_placements_total"):
        assert value(after, name) >= value(before, name) > 0, name
    for name in ("muster_scheduling_latency_seconds_count", "muster_preemptions_total"):
        assert value(after, name) == value(before, name) > 0, name


def test_where_tokens_are_needed_metrics_need_one_that_may_read(tmp_path: Path) -> None:
    (tmp_path / "cell").mkdir()
    tokens = Tokens(tmp_path / "cell")
    secrets = {role: tokens.create(role, user="ada")[1] for role in ("read", "operate", "submit", "agent")}
    with running(tmp_path / "cell", tokens=True) as stack:
        found = {
            role: httpx.get(f"{stack.url}/metrics", headers={"Authorization": f"Bearer {secret}"}, trust_env=False).status_code
            for role, secret in {**secrets, "none of ours": "x"}.items()
        }
        assert found == {"read": 200, "operate": 200, "submit": 403, "agent": 403, "none of ours": 401}
        assert httpx.get(f"{stack.url}/metrics", trust_env=False).status_code == 401


def test_the_place_of_metrics_that_is_taken_or_makes_no_sense_ends_a_start_with_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "muster.cli", "up", "--no-agent", "--data", str(tmp_path), "--port", "0", "--metrics"]
    bad = subprocess.run([*command, "nowhere"], capture_output=True, text=True, timeout=60)
    assert bad.returncode == 2
    assert "HOST:PORT would be right" in bad.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run([*command, place], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 3
    assert f"metrics cannot be served at {place}: " in ended.stderr
