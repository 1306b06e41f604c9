"""What the demo proves. Each check looks at what is there afterwards: the log's file, and what others remember.

The others are the producers (which submissions were acknowledged), the jobs' own processes (which wrote down that they ran, and
printed what they computed) and the kernel (what was killed, and what still ran). A check that finds something names the fault;
where a plant was put in, this is the name that must come out.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from muster.events.codec import open_envelope
from muster.events.record import Cycle
from muster.log.errors import LogError
from muster.log.fsck import fsck
from muster.log.reader import read_admitted
from muster.replay.audit import audit
from muster.simulator.demo.diaries import Ran, Trained
from muster.simulator.demo.history import History
from muster.simulator.demo.scene import GANG, NODES, WORK
from muster.verify import verify


class Evidence(msgspec.Struct):
    """What is there once the demo has been played."""

    folder: Path
    accepted: dict[str, str]
    """Name by id of each submission that was acknowledged to its producer."""
    ran: list[Ran]
    trained: dict[str, list[Trained]]
    """What the ranks printed at their end, by the name of the job."""
    killed: int
    """Exit status of the scheduler that was killed."""
    recovered: int
    """Cycles in its log when it was killed."""
    agent_killed: int
    """Exit status of the agent that was killed."""
    kept: list[tuple[Ran, bool]]
    """What ran on its node then, and whether it still ran when the new agent was there."""
    statuses: list[int]
    """Exit statuses of the agents and the scheduler that were told to stop."""
    left: list[str]
    """What still ran when they had."""


class Check(msgspec.Struct, frozen=True):
    """What was looked at: what it proved, or the fault by its name and what is wrong."""

    fault: str
    text: str
    problems: tuple[str, ...] = ()


def check(evidence: Evidence) -> list[Check]:
    """Look at everything. Where the log itself is no longer whole, nothing it says is looked at."""
    whole = _log_is_whole(evidence)
    if whole.problems:
        return [whole]
    cycles = [open_envelope(envelope) for envelope, _ in read_admitted(evidence.folder)]
    history = History().read(cycles)
    looks: tuple[Callable[[Evidence, History], Check], ...] = (
        _all_reduced,
        _scheduler_was_killed,
        _agent_was_killed,
        _no_job_is_lost,
        _nothing_ran_twice,
        _somebody_was_preempted,
        _failure_was_survived,
        _all_ended_as_expected,
        _nothing_is_left,
    )
    return [whole, *(look(evidence, history) for look in looks), _audited(evidence), _verified(cycles)]


def _log_is_whole(evidence: Evidence) -> Check:
    try:
        found = fsck(evidence.folder)
    except LogError as error:
        return Check("altered-log", "fsck", (str(error),))
    if found.halt is not None:
        return Check("altered-log", "fsck", (f"the log halts after cycle {found.halt.number}: {found.halt.reason}",))
    return Check("altered-log", f"fsck: {found.admitted} cycles, numbers and digests whole, {len(found.terms)} terms")


def _audited(evidence: Evidence) -> Check:
    audited = audit(evidence.folder)
    return Check("not-deterministic", f"audit: {audited}", tuple(audited.difference.lines()) if audited.difference else ())


def _verified(cycles: list[Cycle]) -> Check:
    violations = verify(cycles)
    decisions = sum(len(cycle.decisions) for cycle in cycles)
    return Check(
        "not-legal", f"verify: each of {decisions} decisions was legal, says a second judge", tuple(map(str, violations))
    )


def _all_reduced(evidence: Evidence, history: History) -> Check:
    """Every rank came to its end once, with devices of its own, and all ranks of a job have the same loss to the last digit."""
    problems = []
    known = [work for work in WORK if work.name in history.names.values()]
    for work in known:
        ranks = evidence.trained[work.name]
        if [(trained.rank, trained.world) for trained in ranks] != [(rank, work.ranks) for rank in range(work.ranks)]:
            problems.append(f"of {work.ranks} ranks of {work.name} these came to their end: {[one.rank for one in ranks]}")
        losses = {trained.last for trained in ranks}
        if len(losses) > 1:
            problems.append(f"the ranks of {work.name} do not agree on the loss: {sorted(losses)}")
        problems += [
            f"rank {one.rank} of {work.name} learned nothing: loss {one.first} and then {one.last}"
            for one in ranks
            if one.last > one.first / 10
        ]
    gang = evidence.trained[GANG.name]
    devices = {(one.node, device) for one in gang for device in one.devices}
    if len(devices) != GANG.ranks or {one.node for one in gang} != set(NODES):
        problems.append(f"the gang's {GANG.ranks} ranks had {len(devices)} devices on {sorted({one.node for one in gang})}")
    loss = f"{gang[0].last:.6f}" if gang else "none"
    text = f"{len(known)} jobs trained; {GANG.ranks} ranks on {len(NODES)} nodes, a GPU each, all-reduced to one loss: {loss}"
    return Check("wrong-result", text, tuple(problems))


def _scheduler_was_killed(evidence: Evidence, history: History) -> Check:
    problems = []
    if evidence.killed != -9:
        problems.append(f"the first scheduler ended with {evidence.killed}, not by SIGKILL")
    if history.terms != 2:
        problems.append(f"there were {history.terms} terms, not 2")
    if evidence.recovered == 0:
        problems.append("the second scheduler found nothing in the log")
    text = f"the scheduler was killed with SIGKILL and started again: it went on from {evidence.recovered} cycles of its log"
    return Check("no-restart", text, tuple(problems))


def _agent_was_killed(evidence: Evidence, history: History) -> Check:
    problems = []
    if evidence.agent_killed != -9:
        problems.append(f"the agent ended with {evidence.agent_killed}, not by SIGKILL")
    if not evidence.kept:
        problems.append("nothing ran on the agent's node when it was killed")
    problems += [f"rank {ran.rank} (process {ran.pid}) ended with its agent" for ran, lived in evidence.kept if not lived]
    problems += [f"node {node} was lost" for node in history.lost_nodes]
    text = f"an agent was killed with SIGKILL and started again: it found its {len(evidence.kept)} tasks, the same processes"
    return Check("agent-lost-tasks", text, tuple(problems))


def _no_job_is_lost(evidence: Evidence, history: History) -> Check:
    problems = [
        f"{name} was accepted and is not in the log" for job, name in evidence.accepted.items() if not history.submitted[job]
    ]
    problems += [f"{history.names[job]} stands in the log {count} times" for job, count in history.submitted.items() if count > 1]
    for job, name in evidence.accepted.items():
        for index in range(history.instances.get(job, 0)):
            if (job, index) not in history.outcomes:
                problems.append(f"{history.title((job, index))} never ended" if name else "")
    return Check(
        "lost-job",
        f"no accepted job was lost: {len(evidence.accepted)} accepted, each in the log once and at its end",
        tuple(problems),
    )


def _nothing_ran_twice(evidence: Evidence, history: History) -> Check:
    """By the log and by what the agents ran: one attempt of an instance at a time, one process a task."""
    problems = list(history.overlapping)
    for key, attempts in history.attempts.items():
        problems += [
            f"the log starts {history.title(key)} attempt {attempt.number} {attempt.starts} times"
            for attempt in attempts
            if attempt.starts > 1
        ]
    starts: Counter[tuple[str, int, int, int]] = Counter()
    by_instance: dict[tuple[str, int], list[Ran]] = {}
    allowed = {
        (*key, attempt.number)
        for key, attempts in history.attempts.items()
        for attempt in attempts
        if attempt.starts or key[0] in history.alone
    }
    for ran in evidence.ran:
        key = (ran.job, ran.instance)
        starts[ran.job, ran.instance, ran.attempt, ran.rank] += 1
        by_instance.setdefault(key, []).append(ran)
        if ran.refused:
            problems.append(
                f"a process for {history.title(key)} attempt {ran.attempt} rank {ran.rank} found another in its place"
            )
        if (ran.job, ran.instance, ran.attempt) not in allowed:
            problems.append(f"{ran.node} ran {history.title(key)} attempt {ran.attempt}, which the log did not let run")
    for (job, instance, attempt, rank), count in starts.items():
        if count > 1:
            problems.append(f"there ran {history.title((job, instance))} attempt {attempt} rank {rank} {count} times")
    for key, runs in by_instance.items():
        problems += _overlaps(history.title(key), runs)
    attempts_ran = len({(ran.job, ran.instance, ran.attempt) for ran in evidence.ran})
    text = (
        f"nothing ran twice: {len(evidence.ran)} processes wrote down that they ran, one for each rank of {attempts_ran} attempts"
    )
    return Check("double-start", text, tuple(problems))


def _overlaps(title: str, runs: list[Ran]) -> list[str]:
    """Attempts of one instance of which a process still ran when a later one's began.

    Where a process had no time to write down its end, the next one in its place looks whether it is gone.
    """
    problems = []
    last: dict[int, int] = {}
    first: dict[int, int] = {}
    for ran in runs:
        first[ran.attempt] = min(first.get(ran.attempt, ran.started_ns), ran.started_ns)
        last[ran.attempt] = max(last.get(ran.attempt, 0), ran.started_ns if ran.ended_ns is None else ran.ended_ns)
    for earlier in sorted(last):
        for later in sorted(first):
            if later > earlier and first[later] < last[earlier]:
                problems.append(f"{title}: attempt {later} ran while attempt {earlier} did")
    return problems


def _somebody_was_preempted(evidence: Evidence, history: History) -> Check:
    victims = {
        key: attempt for key, attempts in history.attempts.items() for attempt in attempts if attempt.preempted_by == "urgent"
    }
    problems = [] if victims else ["urgent preempted nobody"]
    urgent = history.of("urgent")
    if len(urgent) != 1 or not urgent[0].starts:
        problems.append("urgent did not run at its first attempt")
    for key, attempt in victims.items():
        if not any(later.number > attempt.number and later.starts for later in history.attempts[key]):
            problems.append(f"{history.title(key)} was preempted and never came back")
    names = ", ".join(history.title(key) for key in victims)
    return Check("no-preempt", f"urgent preempted {names}, of lower priority, and it came back", tuple(problems))


def _failure_was_survived(evidence: Evidence, history: History) -> Check:
    """A GPU failed: what ran there went on elsewhere, and nothing new was put there."""
    problems = []
    if len(history.failed_devices) != 1:
        problems.append(f"{len(history.failed_devices)} GPUs failed, not 1")
    attempts = history.of(GANG.name)
    if "device-failed" not in [attempt.reason for attempt in attempts if attempt.then == "pending"]:
        problems.append("no attempt of the gang ended with device-failed")
    for (node, uuid), at_us in history.failed_devices.items():
        place = (node, history.devices[node].index(uuid))
        used = [
            history.title(key)
            for key, attempts in history.attempts.items()
            for a in attempts
            if a.bound_us > at_us and place in a.places
        ]
        problems += [f"{title} was put on the failed GPU" for title in used]
    text = f"a GPU broke: the gang went on without it, whole, in attempt {len(attempts)}"
    return Check("not-survived", text, tuple(problems))


def _all_ended_as_expected(evidence: Evidence, history: History) -> Check:
    expected = {work.name: work.ends for work in WORK}
    problems = []
    for (job, index), outcome in history.outcomes.items():
        if outcome != expected[history.names[job]]:
            problems.append(f"{history.title((job, index))} ended as {outcome}, not {expected[history.names[job]]}")
    counts = Counter(history.outcomes.values())
    text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    return Check("wrong-end", f"every job ended as it should: {text}", tuple(problems))


def _nothing_is_left(evidence: Evidence, history: History) -> Check:
    problems = [f"the agents and the scheduler, told to stop, ended with {evidence.statuses}"] if any(evidence.statuses) else []
    return Check(
        "left-over", "all ended when told to, and no process of all that was started is left", (*problems, *evidence.left)
    )
