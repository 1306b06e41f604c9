"""Documentation that does not run fails.

Every command in the README and in docs/ is run by a test, or stands here with the reason why it is not.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from muster.cli.main import run
from muster.up.places import running

ROOT = Path(__file__).parents[2]
ENDS_S = 120
BLOCK = re.compile(r"^```(bash|sh|shell|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]

ELSEWHERE = {
    ("docs/agents.md", r"muster agent .*"): "test_agent_docs.test_the_commands_run",
    (
        "docs/constraints.md",
        r"muster (?:submit|explain|why-not|cancel|catalogue) .*",
    ): "test_slurm_programs.test_the_commands_of_the_page_on_constraints_run",
    (
        "docs/services.md",
        r"muster (?:submit|job|explain|scale|revise|rollback|cancel) .*",
    ): "test_services.test_a_service_is_kept_scaled_revised_and_rolled_back",
    (
        "docs/elastic.md",
        r"muster (?:submit|resize|checkpoint|job|cancel) .*",
    ): "test_elastic.test_a_gang_that_runs_is_shrunk_and_grown_and_notices",
    ("docs/queues.md", r"muster apply .*"): "test_listings.test_queues_become_what_the_page_says",
    (
        "docs/reservations.md",
        r"muster (?:reserve|unreserve|reservations)(?: .*)?",
    ): "test_listings.test_the_commands_about_reservations_do_what_the_page_says",
    ("docs/cli.md", r".*"): "test_slurm_programs.test_every_command_of_the_documentation_runs",
    ("docs/gateway.md", r"curl .*"): "test_gateway_docs.test_the_requests_are_answered",
    ("docs/gateway.md", r"muster token .*"): "test_gateway_docs.test_the_commands_about_tokens_run",
    ("docs/metrics.md", r"muster up .*|curl .*"): "test_metrics.test_the_commands_of_the_page_run",
    (
        "docs/kafka.md",
        r"export MUSTER_GATEWAY=.*|until muster .*|kill .*|leader=.*|muster jobs|muster submit --name (?!hello ).*"
        r"|muster (?:audit|verify|fsck|log) \$MUSTER_BUS.*|muster (?:scheduler|gateway|agent) .* &",
    ): "test_kafka_docs.test_the_takeover_that_a_reader_provokes_happens",
    ("docs/producing-events.md", r"(?:echo|  kcat|    -H) .*"): "test_client_alone.test_the_job_of_the_page_is_handed_in_by_kcat",
    ("docs/history.md", r"muster history.*"): "test_history_command.test_the_commands_of_the_page_run",
    (
        "docs/cluster.md",
        r"export .*|runuser -u muster .*|/opt/muster/bin/muster bus .*|(?:until )?muster (?:nodes|jobs|submit|audit|history).*",
    ): "test_cluster_docs.test_the_units_make_the_cluster_of_the_page",
    (
        "README.md",
        r"muster (?:audit|verify|fsck|log|at|explain) build/demo.*",
    ): "test_demo.test_what_the_readme_asks_of_a_demo_is_answered",
}
"""Which test runs them."""
HERE = {
    ("docs/gateway.md", r"muster up.*"),
    ("README.md", r"muster scenario .*"),
}
"""Run by this file."""
NOT_RUN = {
    ("README.md", r"make test.*"): "it is what runs this",
    ("README.md", r"make demo.*"): "test_demo plays the demo as `make demo` does",
    ("README.md", r"MUSTER_DEMO_PLANT=.* make demo.*"): "test_demo plays each plant",
    ("README.md", r"tail .*"): "it prints files of the demo, which test_demo reads",
    (
        "README.md",
        r"muster simulate openb .*",
    ): "the trace is not part of the repository; test_openb_gate and tests/unit/openb run it",
    ("docs/kafka.md", r"make broker|export MUSTER_BUS=.*"): "test_broker starts brokers as `make broker` does",
    ("docs/kafka.md", r"muster bus create"): "test_bus runs it on brokers of its own",
    (
        "docs/kafka.md",
        r"muster (?:scheduler|gateway|agent) --data \S+(?: --devices \S+)?|muster submit --name hello .*",
    ): "the takeover of the same page starts the same programs",
    (
        "docs/producing-events.md",
        r"muster (?:log|fsck) kafka.*",
    ): "test_bus_gateway runs both on a bus of its own",
    ("docs/cluster.md", r"systemctl .*"): "test_cluster_docs starts what the units start; systemd runs on few machines of tests",
    (
        "docs/cluster.md",
        r"apt-get .*|python3 -m venv .*|/opt/muster/bin/pip .*",
    ): "test_client_alone installs Muster from a wheel",
    ("docs/cluster.md", r"cp infra/.*|systemd-sysusers|install .*"): "they change the machine; tests/unit/cli reads the units",
    ("docs/cluster.md", r"runuser -u postgres .*"): "the tests' own server is made by tests/support/postgres.py",
    (
        "docs/compose.md",
        r"docker compose .*|export .*|cd .*|git pull|muster (?:nodes|jobs|job moved|submit .*|(?:audit|log) kafka.*)",
    ): "infra/compose-test, which CI runs, does the same to a stack at ports that are free",
    ("docs/client.md", r"pip install 'muster-scheduler\[client\]'"): "test_client_alone installs it from a wheel that it builds",
    ("README.md", r"muster audit build/openb"): "it needs the log of the command before it",
    ("README.md", r"muster soak .*"): "it takes minutes; tests/simulation plays the same worlds",
    (
        "docs/telemetry.md",
        r"muster agent .*|muster telemetry (?:bridge|worker) .*|muster log kafka.*",
    ): "test_telemetry runs worker, agent and bridge on a bus of its own",
    ("docs/telemetry.md", r"muster telemetry replay .*"): "tests/unit/telemetry/test_docs.py runs it",
    ("docs/scoreboard.md", r"muster scoreboard --board armada"): "tests/unit/boards/test_boards.py runs it",
    (
        "docs/scoreboard.md",
        r"muster scoreboard --data .*",
    ): "the lists are not part of the repository; tests/unit/boards plays a cut of each board",
    ("docs/benchmarks.md", r"muster bench engine .*"): "it takes minutes; tests/unit/bench runs its parts",
    ("docs/benchmarks.md", r"muster bench pipeline .*"): "it takes minutes; test_bench_pipeline and test_bench_bus run each part",
}
"""Why not."""


def commands(page: str) -> list[str]:
    """The commands of a page: the lines of its shell blocks; where a block shows output too, those behind `$`."""
    found: list[str] = []
    for _, body in BLOCK.findall((ROOT / page).read_text()):
        if body.startswith("#!"):
            continue  # a script: tests/unit/doors opens it
        lines = body.splitlines()
        shown = [line[2:] for line in lines if line.startswith("$ ")]
        found += [re.sub(r"\s+# .*", "", line) for line in shown or lines if line.strip()]
    return found


def kinds(page: str, command: str) -> list[str]:
    """All that is said of how the command is run."""
    said = [(key, f"by {test}") for key, test in ELSEWHERE.items()]
    said += [(key, "here") for key in HERE]
    said += list(NOT_RUN.items())
    return [how for (where, pattern), how in said if where == page and re.fullmatch(pattern, command)]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_run_or_it_is_said_why_not(page: str) -> None:
    for command in commands(page):
        assert len(kinds(page, command)) == 1, f"{page}: {command}: run it in a test, or say in {__name__} why it is not run"


def test_nothing_is_said_of_commands_that_are_not_there() -> None:
    used: Counter[tuple[str, str]] = Counter()
    for page, pattern in [*ELSEWHERE, *HERE, *NOT_RUN]:
        used[page, pattern] += sum(1 for command in commands(page) if re.fullmatch(pattern, command))
    assert [key for key, count in used.items() if not count] == []


@pytest.mark.parametrize("test", sorted(set(ELSEWHERE.values())))
def test_the_test_that_runs_them_is_there_and_reads_the_page(test: str) -> None:
    module, _, name = test.partition(".")
    text = (ROOT / "tests" / "integration" / f"{module}.py").read_text()
    assert f"def {name}(" in text
    for page, _ in [key for key, where in ELSEWHERE.items() if where == test]:
        assert f'"{Path(page).name}"' in text


@pytest.mark.parametrize("page", PAGES)
def test_a_command_that_stands_in_no_list_is_noticed(page: str) -> None:
    if page != "docs/cli.md":  # all of that page is run
        assert kinds(page, "muster frobnicate --all") == []


@pytest.mark.parametrize("command", [line for line in commands("docs/gateway.md") if line.startswith("muster up")])
def test_muster_up_runs_as_the_page_says(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)[2:]
    data = tmp_path / "home" / "muster" / "up"
    if "--data" in words:
        data = tmp_path / "data"
        words[words.index("--data") + 1] = str(data)
    if "--port" in words:
        words[words.index("--port") + 1] = "0"
    else:
        words += ["--port", "0"]
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "home")}
    process = subprocess.Popen([sys.executable, "-m", "muster.cli", "up", *words], env=environment, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + ENDS_S
        agents = 0 if "--no-agent" in words else int(words[words.index("--agents") + 1]) if "--agents" in words else 1
        while (told := running(data)) is None or not told.url or len(told.agents) < agents:
            assert process.poll() is None
            assert time.monotonic() < until, f"{command} is not ready"
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(ENDS_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize("command", [line for line in commands("README.md") if line.startswith("muster scenario ")])
def test_what_the_readme_plays_is_played(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command.partition("|")[0])
    assert run(words[1:]) == 0
    assert capsys.readouterr().out
