"""Prove infra/compose.yaml: start the stack, hand jobs in from outside, kill what matters, see it recover, audit, end it all.

    compose-test            all of it
    compose-test --keep     the same, and the stack stays, until Enter is pressed
    compose-test clean      forget the cache of images

It takes the Docker engine that answers here. Where none does and this is root, it installs Debian's docker.io and
docker-compose and runs an engine of its own, with its files in ~/.cache/muster/compose (MUSTER_COMPOSE_CACHE). Where no
registry answers either, it builds what stands in for the images. Prometheus and Grafana are left out where they
cannot be had. Whatever happens, nothing is left running. How long each part took is printed.

Only the standard library is used.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import images
from engine import CACHE, Engine, NoEngine, Trouble, engine, run
from images import ROOT

MUSTER = ROOT / ".venv" / "bin" / "muster"
EXAMPLES = ROOT / "services/muster/simulator/demo/workload"
NODES_PATH = "/opt/muster/bin:/usr/bin:/bin"
KEYS = "/var/lib/muster-keys"
READY_S = 300
NOTHING_TRIED = 77
PATIENCE_S = 90
SERVICE_OF = {"MUSTER_PROMETHEUS_IMAGE": "prometheus", "MUSTER_GRAFANA_IMAGE": "grafana"}
TESTS = (
    "tests/integration/test_kafka_log.py::test_records_of_every_size_come_back_as_they_went_in",
    "tests/integration/test_history_schema.py::test_the_tables_are_made_as_the_rows_are_declared",
)
PORTS = ("GATEWAY", "GATEWAY_2", "KAFKA", "POSTGRES", "PROMETHEUS", "GRAFANA")


def main() -> int:
    """Exit status: 0 all held; 1 something did not, or could not be done; 77 no Docker engine can be had here."""
    parser = argparse.ArgumentParser(
        prog="compose-test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", choices=("clean",))
    parser.add_argument("--keep", action="store_true", help="leave the stack running until Enter is pressed")
    options = parser.parse_args()
    if options.command == "clean":
        shutil.rmtree(CACHE, ignore_errors=True)
        return 0
    signal.signal(signal.SIGTERM, _leave)
    parts = Parts()
    try:
        prove(parts, options.keep)
    except NoEngine as trouble:
        print(f"compose-test: nothing was tried: {trouble}", file=sys.stderr)
        return NOTHING_TRIED
    except (Trouble, AssertionError) as trouble:
        print(f"compose-test: {trouble}", file=sys.stderr)
        return 1
    finally:
        parts.print()
    print("all of it held")
    return 0


class Parts:
    """What was done, and how long each part took."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._took: list[tuple[str, float]] = []

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """This is one part."""
        began = time.monotonic()
        print(f"== {name}", flush=True)
        try:
            yield
        finally:
            self._took.append((name, time.monotonic() - began))

    def print(self) -> None:
        """A line for each part, and the sum."""
        for name, took in [*self._took, ("all", time.monotonic() - self._began)]:
            print(f"{took:7.1f} s  {name}")


def say(text: str) -> None:
    """One line of what is being done."""
    print(f"   {text}", flush=True)


def prove(parts: Parts, keep: bool) -> None:
    """All of it.

    Raises:
        Trouble: something could not be done.
        AssertionError: something did not hold.
    """
    with contextlib.ExitStack() as closing:
        with parts.part("an engine"):
            if not (MUSTER.exists() and MUSTER.with_name("pytest").exists()):
                run(["make", "-C", ROOT, ".venv/dev.stamp"], within_s=600, both=True)
            found = closing.enter_context(engine(say))
        with parts.part("images of others"):
            missing = images.bring(found, say)
        with parts.part("tests take their broker and their server from containers"):
            tests(found)
        with parts.part("the image of Muster"):
            images.build(found)
        stack = Stack(found, {SERVICE_OF[variable] for variable in missing})
        try:
            with parts.part("up, until all are well"):
                stack.up()
            play(parts, stack)
            if keep:
                print(f"export MUSTER_GATEWAY={stack.outside['MUSTER_GATEWAY']} MUSTER_TOKEN={stack.outside['MUSTER_TOKEN']}")
                print(f"export DOCKER_HOST={found.environment.get('DOCKER_HOST', '')} COMPOSE_PROJECT_NAME={stack.project}")
                input("Enter ends it ")
        except BaseException:
            stack.tell()
            raise
        finally:
            with parts.part("down"):
                stack.down()


def play(parts: Parts, stack: "Stack") -> None:
    """What is tried on the running stack."""
    with parts.part("the two examples, from outside"):
        examples(stack)
    with parts.part("the leader's container is killed"):
        takeover(stack)
    with parts.part("a node's container is killed"):
        lost_node(stack)
    with parts.part("the history's container is killed"):
        lost_worker(stack)
    with parts.part("the log is audited, and the history compared with it"):
        audit(stack)
    if "prometheus" in stack.services:
        with parts.part("Prometheus reads every program"):
            metrics(stack)
    with parts.part("no secret is shown"):
        secrets(stack)


class Stack:
    """The services of infra/compose.yaml in a project of their own, at ports that are free."""

    def __init__(self, engine: Engine, without: set[str]) -> None:
        self.engine = engine
        self.project = f"muster-compose-test-{os.getpid()}"
        ports = dict(zip((f"MUSTER_{name}_PORT" for name in PORTS), map(str, free_ports(len(PORTS))), strict=True))
        engine.environment |= {**ports, "COMPOSE_PROJECT_NAME": self.project, "MUSTER_IMAGE": images.OURS}
        self.log = f"kafka://localhost:{ports['MUSTER_KAFKA_PORT']}"
        self.gateways = [f"http://127.0.0.1:{ports[name]}" for name in ("MUSTER_GATEWAY_PORT", "MUSTER_GATEWAY_2_PORT")]
        self.outside = {**os.environ, "MUSTER_GATEWAY": self.gateways[0], "MUSTER_TOKEN": ""}
        everything = self.compose("config", "--services").split()
        self.services = [name for name in everything if name not in without]
        if without:
            say(f"without {' and '.join(sorted(without & set(everything)))}: no image of them can be had")

    def compose(self, *arguments: str, **options: Any) -> str:
        """What Compose prints."""
        return self.engine.compose("--file", images.COMPOSE, *arguments, **options)

    def up(self) -> None:
        """Start it, and wait until every service is well, or has done what it is there for."""
        waits = ["--wait"] if "--wait" in self.compose("up", "--help") else []  # docker-compose 1.29 has no such option
        self.compose("up", "--detach", "--no-build", *waits, *self.services, within_s=READY_S, both=True)
        self.recovers()
        made = ["muster", "token", "create", "--role", "operate", "--name", "compose-test", "--data", KEYS]
        self.outside["MUSTER_TOKEN"] = self.compose("exec", "-T", "gateway-1", *made).strip()

    def down(self) -> None:
        """End it, with all that it kept, and see that nothing is left."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "20", within_s=300, both=True)
        mine = f"label=com.docker.compose.project={self.project}"
        for what in (["ps", "--all"], ["volume", "ls"], ["network", "ls"]):
            left = self.engine.docker(*what, "--quiet", "--filter", mine).split()
            assert not left, f"`down` left {' '.join(left)} of `docker {' '.join(what)}`"

    def container(self, service: str) -> str:
        """The id of the service's container."""
        mine = f"label=com.docker.compose.project={self.project}"
        found = ["ps", "--all", "--quiet", "--filter", mine, "--filter", f"label=com.docker.compose.service={service}"]
        return self.engine.docker(*found).strip()

    def looked_at(self, service: str) -> dict[str, Any]:
        """What the engine knows of the service's container."""
        (found,) = json.loads(self.engine.docker("inspect", self.container(service)))
        return dict(found)

    def unwell(self) -> dict[str, str]:
        """The services that are not as they should be, and how they are."""
        mine = f"label=com.docker.compose.project={self.project}"
        ids = self.engine.docker("ps", "--all", "--quiet", "--filter", mine).split()
        states = {}
        for found in json.loads(self.engine.docker("inspect", *ids)) if ids else []:
            state = found["State"]
            once = found["HostConfig"]["RestartPolicy"]["Name"] in ("no", "")
            if once:
                told = "done" if state["Status"] == "exited" and state["ExitCode"] == 0 else state["Status"]
            else:
                told = state.get("Health", {}).get("Status", state["Status"]) if state["Running"] else state["Status"]
            states[found["Config"]["Labels"]["com.docker.compose.service"]] = told
        well = ("done", "healthy")
        return {name: states.get(name, "absent") for name in self.services if states.get(name, "absent") not in well}

    def recovers(self) -> None:
        """Wait until every service is well."""
        until(lambda: not self.unwell(), "every service is well", READY_S, self.unwell)

    def tell(self) -> None:
        """Say how the services are, and what those that are unwell said last, for people."""
        with contextlib.suppress(Trouble, subprocess.SubprocessError):
            print(self.compose("ps", "--all"), file=sys.stderr)
            for service in self.unwell() or self.services:
                if container := self.container(service):
                    words = self.engine.docker("logs", "--tail", "15", container, both=True)
                    print(f"--- {service}\n{words}", file=sys.stderr)

    def muster(self, *arguments: str | Path, gateway: int = 0, within_s: float = PATIENCE_S) -> str:
        """What `muster ARGUMENTS` prints, as a person outside calls it."""
        environment = {**self.outside, "MUSTER_GATEWAY": self.gateways[gateway]}
        return run([MUSTER, *arguments], environment=environment, within_s=within_s)

    def submit(self, *arguments: str | Path, wait: bool = True) -> str:
        """Hand a job in; its id. With `wait`, it must finish."""
        waits = ["--wait"] if wait else []
        told = self.muster("submit", "--json", "--directory", "/work", "--env", f"PATH={NODES_PATH}", *waits, *arguments)
        return str(json.loads(told)["jobs"][0]["job"])

    def set_policy(self, **changes: object) -> None:
        """Change these fields of the cell's policy."""
        policy = self.ask("GET", "/v1/state")["policy"]
        self.ask("PUT", "/v1/policy", policy | changes)
        until(lambda: self.ask("GET", "/v1/state")["policy"].items() >= changes.items(), "the policy is set")

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """What the first gateway answers."""
        headers = {"Authorization": f"Bearer {self.outside['MUSTER_TOKEN']}"}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.gateways[0] + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def job(self, job: str) -> dict[str, Any]:
        """What the gateway says of a job."""
        return dict(json.loads(self.muster("job", job, "--json"))["job"])

    def leaders(self) -> list[str]:
        """Who led, term by term."""
        told = self.muster("log", self.log, "--type", "TermStarted", "--json")
        return [json.loads(line)["body"]["host"] for line in told.splitlines()]


def tests(found: Engine) -> None:
    """Some of the integration tests, which ask an engine for what they need where there is one."""
    environment = {**found.environment, "MUSTER_REQUIRE": "kafka,postgres"}
    for told in ("MUSTER_TEST_KAFKA", "MUSTER_TEST_POSTGRES"):
        environment.pop(told, None)
    python = MUSTER.with_name("python")
    said = run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS], environment=environment, within_s=300, cwd=ROOT)
    began = found.docker("events", "--since", "10m", "--until", "0s", "--filter", "event=start", "--format", "{{.From}}").split()
    for image in ("kafka", "postgres"):
        assert any(image in name for name in began), f"no container of {image} was started by\n{said}"


def examples(stack: Stack) -> None:
    """A Slurm script and a Kubernetes manifest, as they are: they train, on the GPUs that they asked for."""
    stack.submit(EXAMPLES / "deep_learning.sbatch")
    text = stack.compose("exec", "-T", "node-1", "bash", "-c", "cat /work/slurm-*.out")
    ranks = re.findall(r"rank (\d) of 4 on \S+, devices (\S+), attempt 1: loss \S+ at first, (\S+) after", text)
    assert sorted(rank for rank, _, _ in ranks) == ["0", "1", "2", "3"], f"not four ranks trained:\n{text}"
    assert len({loss for _, _, loss in ranks}) == 1, f"the ranks do not agree on the loss:\n{text}"
    job = stack.submit(EXAMPLES / "gpu-training-pod.yaml")
    said = []
    for gateway in (0, 1):  # the output is read by the gateway with which its agent speaks
        with contextlib.suppress(Trouble):
            said.append(stack.muster("logs", job, gateway=gateway))
    assert any(re.search(r"rank 0 of 1 on \S+, devices \d,\d, attempt 1: loss", text) for text in said), f"no training: {said}"


def takeover(stack: Stack) -> None:
    """The leader's container is killed while a job runs: another leads, what runs goes on, what is handed in is taken."""
    before = stack.leaders()
    across = stack.submit("--name", "across", "--gpus", "1", "--", "sh", "-c", "until test -e go; do sleep 0.2; done", wait=False)
    until(lambda: stack.job(across)["state"] == "running", "the job runs")
    began = time.monotonic()
    stack.engine.docker("kill", stack.container(before[-1]))
    stack.submit("--name", "during", "--gpus", "1", "--", "true")
    after = stack.leaders()
    say(f"{before[-1]} was killed; {after[-1]} led, and a job had run, {time.monotonic() - began:.1f} s later")
    assert len(after) > len(before), "no term began"
    assert after[-1] != before[-1], "the one that was killed leads"
    stack.engine.docker("start", stack.container(before[-1]))
    assert stack.job(across)["state"] == "running", "what ran was ended"
    stack.compose("exec", "-T", "node-1", "touch", "/work/go")
    until(lambda: stack.job(across)["state"] == "finished", "what ran goes on to its end")
    assert stack.job(across)["attempts"] == 1, "what ran was started again"
    stack.recovers()


def lost_node(stack: Stack) -> None:
    """Everything in a node's container dies. Docker starts the agent again, and the job runs again, to its end."""
    stack.set_policy(backoff_us=1_000_000)  # else a job waits for a minute after a node failed it
    once = 'test "$MUSTER_ATTEMPT" -gt 1 || sleep 600'
    job = stack.submit("--name", "again", "--gpus", "8", "--", "sh", "-c", once, wait=False)
    until(lambda: stack.job(job)["state"] == "running", "the job runs")
    (node,) = stack.job(job)["nodes"]
    began = time.monotonic()
    kill(stack, node)
    until(lambda: stack.job(job)["state"] == "finished", "the job runs again, to its end")
    say(f"{node} was killed; its job had run again, to its end, {time.monotonic() - began:.1f} s later")
    assert stack.job(job)["attempts"] == 2
    stack.recovers()


def lost_worker(stack: Stack) -> None:
    """The worker that writes the history dies, and is started again by Docker; meanwhile jobs run."""
    kill(stack, "history")
    stack.submit("--name", "unwatched", "--", "true")
    stack.recovers()


def audit(stack: Stack) -> None:
    """Every cycle is decided again, every decision judged, the chain followed: from outside, by the broker's port."""
    say(stack.muster("audit", stack.log).strip())
    say(stack.muster("verify", stack.log).strip().splitlines()[-1])
    say(stack.muster("fsck", stack.log).strip().splitlines()[-1])
    cycle = int(stack.ask("GET", "/v1/state")["cycle"])

    def compared() -> dict[str, Any]:
        return dict(json.loads(stack.compose("exec", "-T", "history", "muster", "history", "check", "--json")))

    until(lambda: compared()["number"] >= cycle, "the history has come so far")
    found = compared()
    wrong = [table for table in found["tables"] if table["right_digest"] != table["found_digest"]]
    assert found["tables"], "nothing was compared"
    assert not wrong, f"the history is not as the log says: {wrong}"
    rows = stack.compose("exec", "-T", "history", "muster", "history", "--json")
    names = {line["name"] for line in json.loads(rows)["lines"]}
    assert {"deep-learning", "gpu-training-pod", "across", "during", "again", "unwatched"} <= names, names
    say(f"history: {found['schema']}, up to cycle {found['number']}: {len(found['tables'])} tables, every row as the log says")


def metrics(stack: Stack) -> None:
    """Every program's page is read, and the rules are those of infra/prometheus."""
    port = stack.engine.environment["MUSTER_PROMETHEUS_PORT"]

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)["data"]

    def down() -> list[str]:
        targets = ask("targets?state=active")["activeTargets"]
        return [each["labels"]["instance"] for each in targets if each["health"] != "up"] if targets else ["everything"]

    until(lambda: not down(), "Prometheus reads every program", PATIENCE_S, down)
    rules = [rule["name"] for group in ask("rules")["groups"] for rule in group["rules"] if rule["type"] == "alerting"]
    assert rules, "Prometheus has no alerts"
    say(f"{len(ask('targets?state=active')['activeTargets'])} targets are up; {len(rules)} alerts")


def secrets(stack: Stack) -> None:
    """Neither what the engine knows of the containers nor a list of their processes has a password or a token."""
    hidden = {
        "the database's password": stack.compose("exec", "-T", "postgres", "cat", "/run/muster-database/password").strip(),
        "the agents' token": stack.compose("exec", "-T", "node-1", "cat", "/var/lib/muster-agent/token").strip(),
    }
    assert all(len(secret) > 40 for secret in hidden.values())
    for service in stack.services:
        container = stack.container(service)
        shown = stack.engine.docker("inspect", container) + stack.engine.docker("logs", container, both=True)
        if stack.looked_at(service)["State"]["Running"]:
            shown += stack.engine.docker("top", container, "-eo", "pid,args")
        for name, secret in hidden.items():
            assert secret not in shown, f"{service} shows {name}"


def kill(stack: Stack, service: str) -> None:
    """Kill all processes of the service's container but the first, which then ends too; Docker's policy starts it again."""
    before = stack.looked_at(service)["RestartCount"]
    with contextlib.suppress(Trouble):  # the shell that kills may be killed
        stack.engine.docker("exec", stack.container(service), "sh", "-c", "kill -KILL -1")
    until(lambda: stack.looked_at(service)["RestartCount"] > before, f"the container of {service} is started again")


def until(holds: Callable[[], bool], what: str, within_s: float = PATIENCE_S, shown: Callable[[], object] | None = None) -> None:
    """Wait until it holds."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"not within {within_s:.0f} s: {what}" + (f": {shown()}" if shown is not None else "")
        time.sleep(0.3)


def free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    with contextlib.ExitStack() as closing:
        found = [closing.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in found]


def _leave(*_: object) -> NoReturn:
    raise Trouble("told to end")


if __name__ == "__main__":
    sys.exit(main())
