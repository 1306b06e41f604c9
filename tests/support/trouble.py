"""A seeded load of real jobs for a real `muster up`, and seeded trouble: kills and stops of all its parts.

Each task writes down that it starts and that it ends, and holds a file's lock for as long as anything of it lives; so the
kernel is the witness of whether two attempts, or one attempt twice, ever ran at once. A seed decides what is submitted, what
is struck and when; what comes of it depends on the machine too, so that a seed is played again, not repeated.
"""

import contextlib
import heapq
import shutil
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol

import httpx
import msgspec

from muster.agent.processes import Process, send
from muster.events.codec import open_envelope
from muster.events.decisions import AttemptEnded, InstanceBound
from muster.events.jobs import JobSubmitted
from muster.events.record import Cycle
from muster.log.fsck import fsck
from muster.log.reader import read_admitted
from muster.replay.audit import audit
from muster.verify import verify
from tests.support.gateway import job
from tests.support.up import Up, lives, until, words

S = 1_000_000
POLICY = {
    "beat_us": S,
    "silent_after_us": 4 * S,
    "lease_us": 6 * S,
    "margin_us": 6 * S,
    "ready_timeout_us": 15 * S,
    "kill_margin_us": 3 * S,
    "backoff_us": S,
    "backoff_max_us": 4 * S,
    "flap_limit": 0,
}
"""Everything is over soon: a lease of six seconds, so that some stops outlive it. No supervisor is stopped for longer than
the margin: who cannot run cannot kill."""

TASK = """
dir=$1; kind=$2; seconds=$3
me=$MUSTER_JOB_ID.$MUSTER_INSTANCE
say() { echo "$1 $MUSTER_ATTEMPT $MUSTER_RANK $$" >> "$dir/runs/$me"; }
exec 9>> "$dir/locks/$me.$MUSTER_ATTEMPT.$MUSTER_RANK"
flock -n 9 || say twice
for other in "$dir/locks/$me".*; do
    case $other in "$dir/locks/$me.$MUSTER_ATTEMPT".*) continue ;; esac
    flock -s -n "$other" true || say overlap
done
say start
case $kind in
    stubborn) trap '' TERM; (setsid sleep "$seconds" &) ;;
    *) trap 'say told; exit 143' TERM ;;
esac
sleep "$seconds" &
wait $!
say end
[ "$kind" != failing ]
"""

KINDS = {"single": 30, "gang": 18, "wide": 6, "long": 14, "array": 8, "failing": 6, "stubborn": 8, "limited": 6}
"""How often each is submitted; `urgent`, which takes all devices there are, comes besides."""
MOMENTS = ("drain", "drain", *["urgent"] * 4, *["cancel"] * 6)
TERMINAL = frozenset(("finished", "failed", "cancelled", "rejected"))


class Strike(msgspec.Struct, frozen=True, order=True):
    """Something that is done to a part at a moment."""

    at_s: float
    part: str
    """scheduler, agent, supervisor, or up: the whole stack at once."""
    how: str
    """kill, stop or wake."""
    for_s: float = 0.0
    """How long it stays stopped."""


STRIKES = {
    ("scheduler", "kill"): 5,
    ("scheduler", "stop"): 3,
    ("agent", "kill"): 8,
    ("agent", "stop"): 6,
    ("supervisor", "kill"): 12,
    ("supervisor", "stop"): 12,
    ("up", "kill"): 1,
}
"""How often each is done in a minute."""
STOPPED_S = {"scheduler": (0.2, 8.0), "agent": (0.2, 5.0), "supervisor": (0.2, 4.0)}
PATIENCE_S = 90.0
LOST_S = 60.0
"""One stop of an agent lasts until its node is lost, and what ran there runs elsewhere; at most so long."""


def strikes(seed: int, length_s: float) -> list[Strike]:
    """What this seed does, in order."""
    random = Random(f"{seed}/strikes")
    found = []
    for (part, how), count in STRIKES.items():
        for _ in range(max(1, round(count * length_s / 60))):
            for_s = random.uniform(*STOPPED_S[part]) if how == "stop" else 0.0
            found.append(Strike(random.uniform(1.0, length_s - for_s), part, how, for_s))
    found.append(Strike(random.uniform(3.0, length_s / 2), "agent", "stop", LOST_S))
    return sorted(found)


class Asked(Protocol):
    """Whoever has a client of the gateway, or of several of which each may answer."""

    def client(self, timeout_s: float) -> httpx.Client: ...


class Load:
    """A stream of jobs and of what people do, from a seed. Everything is asked again until it is answered."""

    def __init__(
        self,
        up: Asked,
        place: Path,
        seed: int,
        nodes: list[str],
        length_s: float,
        *,
        moments: Sequence[str] = MOMENTS,
        pause_s: float = 1.0,
        later: Sequence[int] = (429,),
    ) -> None:
        """`moments` is what people do, once each, at some moment; `later` are the answers after which they ask again."""
        self.up = up
        self.place = place
        self.random = Random(f"{seed}/load")
        self.nodes = nodes
        self.accepted: dict[str, str] = {}
        """Kind by id of each job whose submission was acknowledged."""
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._waiting: list[tuple[str, str, Any]] = []
        self._drained: list[tuple[float, str]] = []
        self._began = time.monotonic()
        self._moments = sorted((self._began + self.random.uniform(0.05, 0.9) * length_s, what) for what in moments)
        self._pause_s = pause_s
        self._later = later
        for folder in ("runs", "locks"):
            (place / folder).mkdir(parents=True)
        (place / "task.sh").write_text(TASK)

    def run(self, stop: threading.Event) -> None:
        """Go on until told to stop; then only what was not answered is asked again."""
        with self.up.client(3.0) as client:
            while not stop.is_set():
                self._think()
                self._ask(client)
                stop.wait(self.random.uniform(0.1, 1.0) * self._pause_s)
            self._drained = [(0.0, node) for _, node in self._drained]
            while self._waiting or self._drained:
                self._undrain()
                self._ask(client)
                time.sleep(0.1)

    def _think(self) -> None:
        """What comes to somebody's mind: a job mostly, and at some moments something else."""
        random = self.random
        what = self._moments.pop(0)[1] if self._moments and self._moments[0][0] <= time.monotonic() else ""
        if what == "drain" and not self._drained:
            node = random.choice(self.nodes)
            self._waiting.append(("POST", f"/nodes/{node}/drain", None))
            self._drained.append((time.monotonic() + random.uniform(2, 6), node))
        elif what == "cancel" and self.accepted:
            self._waiting.append(("POST", f"/jobs/{random.choice(list(self.accepted)[-8:])}/cancel", None))
        else:
            kind = what or random.choices(tuple(KINDS), tuple(KINDS.values()))[0]
            self._waiting.append(("POST", "/jobs", self._job(kind if kind in KINDS else "urgent")))
        self._undrain()

    def _undrain(self) -> None:
        for item in [item for item in self._drained if item[0] <= time.monotonic()]:
            self._drained.remove(item)
            self._waiting.append(("POST", f"/nodes/{item[1]}/uncordon", None))

    def _job(self, kind: str) -> dict[str, Any]:
        random = self.random
        seconds = {"long": random.uniform(5, 12), "limited": 60.0, "urgent": 1.0}.get(kind, random.uniform(0.05, 2.5))
        count = {"gang": random.randint(2, 5), "wide": 12, "urgent": 2}.get(kind, 1)
        body = job(
            kind,
            command=("sh", str(self.place / "task.sh"), str(self.place), kind, f"{seconds:.2f}"),
            groups=[{"count": count, "min": count, "gpus": 8 if kind == "urgent" else 1, "cpu_milli": 100}],
            priority=10 if kind == "urgent" else random.choice((0, 0, 1)),
            array=random.randint(2, 4) if kind == "array" else None,
        )
        body["request"]["grace_us"] = S
        if kind == "limited":
            body["request"]["time_limit_us"] = 2 * S
        return body

    def _ask(self, client: httpx.Client) -> None:
        """Ask everything that was not answered yet, the oldest first; no answer leaves the rest for the next time."""
        while self._waiting:
            method, path, body = self._waiting[0]
            try:
                answer = client.request(method, path, json=body)
            except httpx.TransportError:
                self.counts["not answered"] += 1
                return
            if answer.status_code >= 500 or answer.status_code in self._later:
                self.counts["answered later"] += 1
                return
            if answer.status_code != 202:
                self.wrong.append(f"{method} {path}: {answer.status_code} {answer.text}")
            del self._waiting[0]
            self.counts[path.rpartition("/")[2]] += 1
            if body is not None:
                self.accepted[body["job"]] = body["name"]


class Trouble:
    """Strikes at their moments. Whoever is to be struck and is not there is waited for."""

    def __init__(self, up: Up, seed: int, length_s: float) -> None:
        self.up = up
        self.random = Random(f"{seed}/victims")
        self.length_s = length_s
        self.counts: Counter[str] = Counter()
        self._plan = strikes(seed, length_s)
        self._wakes: list[tuple[float, int, Process]] = []
        """Who is stopped, and until when."""
        self._absent: Process | None = None
        """The agent that is stopped until its node is lost."""

    def run(self) -> None:
        """Strike, until all is done and everybody who was stopped is awake again."""
        began = time.monotonic()
        for strike in self._plan:
            self._sleep(began + strike.at_s)
            if strike.part == "up":
                self._kill_up()
            else:
                self._strike(strike)
        self._sleep(began + self.length_s)
        while self._wakes:
            self._sleep(self._wakes[0][0])

    def _kill_up(self) -> None:
        """The whole stack, by its parent; started again at the same address."""
        while self._absent is not None:
            self._sleep(time.monotonic() + 0.5)
        self.up.wake()
        self.up.kill()
        self.up.start()
        self.counts["up kill"] += 1

    def _strike(self, strike: Strike) -> None:
        """Strike one of these parts, once there is one."""
        number = signal.SIGKILL if strike.how == "kill" else signal.SIGSTOP
        limit = time.monotonic() + 8
        while time.monotonic() < limit:
            there = {"scheduler": self.up.schedulers, "agent": self.up.agents, "supervisor": self.up.supervisors}[strike.part]()
            spared = {item.pid for _, _, item in self._wakes} if strike.how == "stop" else set()
            if self._absent is not None:
                spared.add(self._absent.pid)
            found = [item for item in there if item.pid not in spared]
            if found and send(victim := self.random.choice(found), number):
                self.counts[f"{strike.part} {strike.how}"] += 1
                if strike.how == "stop":
                    heapq.heappush(self._wakes, (time.monotonic() + strike.for_s, victim.pid, victim))
                    self._absent = victim if strike.for_s == LOST_S else self._absent
                return
            self._sleep(time.monotonic() + 0.05)

    def _sleep(self, until_s: float) -> None:
        """Sleep, and wake whoever's time it is."""
        wakes = self._wakes
        while True:
            if self._absent is not None and self._is_lost(self._absent):
                wakes[:] = [(0.0 if item is self._absent else at_s, pid, item) for at_s, pid, item in wakes]
                heapq.heapify(wakes)
            while wakes and wakes[0][0] <= time.monotonic():
                _, _, item = heapq.heappop(wakes)
                self._absent = None if item is self._absent else self._absent
                if lives(item):
                    send(item, signal.SIGCONT)
            left = until_s - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, max(0.0, wakes[0][0] - time.monotonic()) if wakes else left, 0.5))

    def _is_lost(self, agent: Process) -> bool:
        """Whether the log holds the agent's node to be lost."""
        said = words(agent.pid)
        try:
            name = said[said.index("--node") + 1]
            shown = httpx.get(f"{self.up.url}/nodes/{name}", timeout=0.5, trust_env=False).json()
            return str(shown["node"]["state"]).startswith("lost")
        except (httpx.TransportError, ValueError, KeyError):
            return False


def left_open(client: httpx.Client, accepted: dict[str, str]) -> dict[str, str]:
    """Accepted jobs that are in no terminal state, and the state that they are in."""
    states = {}
    after = ""
    while True:
        page = client.get("/jobs", params={"limit": 500, "after": after} if after else {"limit": 500}).json()
        states.update({row["job"]: row["state"] for row in page["jobs"]})
        if not page["more"]:
            return {id: states.get(id, "unknown") for id in accepted if states.get(id) not in TERMINAL}
        after = page["jobs"][-1]["job"]


def excluded(client: httpx.Client, accepted: dict[str, str]) -> list[str]:
    """Accepted jobs that wait because nodes failed them: such a node is never asked again, and here there are two."""
    found = []
    for id in left_open(client, accepted):
        for element in client.get(f"/jobs/{id}").json()["elements"]:
            if element["state"] == "pending":
                told = client.get(f"/jobs/{id}/explain", params={"instance": element["instance"]}).json()
                if any(reason["code"] == "avoided" for reason in told["reasons"]):
                    found.append(id)
                    break
    return found


def come_to_an_end(client: httpx.Client, load: Load) -> int:
    """Wait until all accepted jobs are over; how many of them no node was left for, so that somebody had to cancel them."""

    def settled() -> bool:
        still = left_open(client, load.accepted)
        return not still or sorted(still) == sorted(excluded(client, load.accepted))

    until(settled, PATIENCE_S)
    hopeless = excluded(client, load.accepted)
    for id in hopeless:
        assert client.post(f"/jobs/{id}/cancel").status_code == 202
    until(lambda: not left_open(client, load.accepted), PATIENCE_S)
    return len(hopeless)


def judge_log(folder: Path | str) -> tuple[list[str], list[Cycle]]:
    """What its three judges find wrong with the log, and its cycles."""
    found = fsck(folder)
    if found.halt is not None:
        return [f"fsck: {found.halt}"], []
    problems = []
    cycles = [open_envelope(envelope) for envelope, _ in read_admitted(folder)]
    if (difference := audit(folder).difference) is not None:
        problems.append("audit: " + "\n".join(difference.lines()))
    return [*problems, *[f"verify: {violation}" for violation in verify(cycles)]], cycles


def count(cycles: list[Cycle], place: Path) -> Counter[str]:
    """How often what happened."""
    counts: Counter[str] = Counter(cycles=len(cycles), terms=sum(cycle.started is not None for cycle in cycles))
    counts.update(type(event).__name__ for cycle in cycles for event in (*cycle.inputs, *cycle.decisions))
    for path in (place / "runs").iterdir():
        counts.update(f"task: {line.split()[0]}" for line in path.read_text().splitlines())
    return counts


def judge_runs(cycles: list[Cycle], place: Path, accepted: Iterable[str]) -> list[str]:
    """What is wrong, by what the tasks wrote down, what was acknowledged, and the log."""
    problems = []
    submitted: Counter[str] = Counter()
    members: dict[tuple[str, int, int], set[int]] = {}
    finished: dict[tuple[str, int], int] = {}
    for event in (event for cycle in cycles for event in (*cycle.inputs, *cycle.decisions)):
        if isinstance(event, JobSubmitted):
            submitted[event.job] += 1
        elif isinstance(event, InstanceBound):
            key = (event.job, event.instance, event.attempt)
            if key in members:
                problems.append(f"{key} was bound twice")
            members[key] = {placement.rank for placement in event.placements}
        elif isinstance(event, AttemptEnded) and event.then == "finished":
            finished[event.job, event.instance] = event.attempt
    problems += [f"{id} was acknowledged and is in the log {submitted[id]} times" for id in accepted if submitted[id] != 1]
    ends: dict[tuple[str, int, int], set[int]] = defaultdict(set)
    for path in sorted((place / "runs").iterdir()):
        id, _, index = path.name.rpartition(".")
        starts: Counter[tuple[int, int]] = Counter()
        for line in path.read_text().splitlines():
            what, attempt, rank, _ = line.split()
            if what in ("twice", "overlap"):
                problems.append(f"{id} instance {index} ran at once: {line}")
            elif what == "start":
                starts[int(attempt), int(rank)] += 1
                if int(rank) not in members.get((id, int(index), int(attempt)), set()):
                    problems.append(f"{id} instance {index} was not bound so: {line}")
            elif what == "end":
                ends[id, int(index), int(attempt)].add(int(rank))
        problems += [f"{id} instance {index} was started {n} times: {key}" for key, n in starts.items() if n > 1]
    for (job_id, number), last in finished.items():
        if ends[job_id, number, last] != members[job_id, number, last]:
            problems.append(f"{job_id} instance {number} has finished by attempt {last}, but not all its members")
    return problems


def planted(cycles: list[Cycle], place: Path, accepted: Iterable[str], empty: Path) -> list[str]:
    """The plants that the judge of the runs does not find: each is one fault, put into a copy of what the tasks wrote."""
    shutil.copytree(place / "runs", empty / "runs")
    last = next(
        event
        for cycle in reversed(cycles)
        for event in cycle.decisions
        if isinstance(event, AttemptEnded) and event.then == "finished"
    )
    path = empty / "runs" / f"{last.job}.{last.instance}"
    whole = path.read_text()
    plants = {
        "was started 2 times": whole + f"start {last.attempt} 0 1\n",
        "was not bound so": whole + f"start {last.attempt + 1} 0 1\n",
        "ran at once": whole + f"overlap {last.attempt} 0 1\n",
        "but not all its members": whole.replace("end", "told"),
    }
    missed = []
    for said, text in plants.items():
        path.write_text(text)
        if not any(said in problem for problem in judge_runs(cycles, empty, accepted)):
            missed.append(said)
    path.write_text(whole)
    if not any("acknowledged" in problem for problem in judge_runs(cycles, empty, [*accepted, "nobody"])):
        missed.append("acknowledged")
    return missed


def keep(folder: Path, kept: Path) -> None:
    """Copy what tells what happened to a place that outlives the test."""
    with contextlib.suppress(OSError):
        shutil.copytree(folder, kept, ignore=lambda _, names: [name for name in names if name == "poke"], dirs_exist_ok=True)
