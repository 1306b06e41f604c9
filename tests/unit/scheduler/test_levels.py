"""Whatever is lost, doubled, late or read again after a restart: every input once, every job once, and all get there."""

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, given, settings

from muster.cluster import snapshot
from muster.cluster.invariants import check_invariants
from muster.events.base import Event
from muster.events.codec import decode_cycle
from muster.events.jobs import JobSubmitted
from muster.events.nodes import NodeRegistered, TaskExited, TaskMissing, TaskReady, TaskStarted
from muster.scheduler.core import Core
from muster.verify import verify
from tests.simulation.small_world import Agent, job_id, submission
from tests.unit.scheduler.driving import JOBS, NODES, Driver

ACTIONS = st.lists(
    st.tuples(st.sampled_from(("submit", "act", "act", "lose", "double", "cycle", "cycle", "restart")), st.integers(0, 40)),
    max_size=60,
)


class Cell:
    """Two nodes, topics that keep everything, and a scheduler that can be started again."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.agents = [Agent("n1", 2), Agent("n2", 2)]
        self.sent: list[tuple[str, bytes]] = []
        self.jobs: list[str] = []

    def put(self, source: str, data: bytes) -> None:
        self.sent.append((source, data))
        self.driver.put(source, data)

    def act(self, agent: Agent, lose: bool = False) -> None:
        agent.obey(self.driver.core.state)
        agent.announced = False  # says its level whether it is news or not
        said = agent.report()
        assert said is not None
        if not lose or said.spec is not None:
            self.put(NODES, msgspec.json.encode(said))

    def submit(self) -> None:
        job = job_id(len(self.jobs))
        self.jobs.append(job)
        self.put(JOBS, submission(job, gpus=1 + len(self.jobs) % 2, count=1 + len(self.jobs) % 3 // 2))

    def restart(self) -> None:
        """Another process: it knows the log, and reads on at its positions."""
        core = Core("main")
        for data in self.driver.records:
            core.follow(data)
        again = Driver.__new__(Driver)
        again.core, again.at_us, again.records = core, self.driver.at_us, self.driver.records
        data = core.start_term(again.at_us, "1" * 32, "host", "build", 0)
        core.read_back(data)
        again.records.append(data)
        again.offsets = dict(core.positions)
        counted: dict[str, int] = {}
        for source, data in self.sent:
            offset = counted.get(source, 0)
            counted[source] = offset + 1
            if offset >= core.positions.get(source, 0):
                again.offsets[source] = offset
                again.put(source, data)
        self.driver = again

    def cycle(self) -> None:
        while self.driver.turn() is not None:
            pass

    def inputs(self) -> list[Event]:
        return [event for data in self.driver.records for event in decode_cycle(data).inputs]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(ACTIONS)
def test_levels_and_repeats(actions: list[tuple[str, int]]) -> None:
    cell = Cell()
    for action, number in actions:
        if action == "submit":
            cell.submit()
        elif action in ("act", "lose"):
            cell.act(cell.agents[number % 2], lose=action == "lose")
        elif action == "double" and cell.sent:
            cell.put(*cell.sent[number % len(cell.sent)])
        elif action == "restart":
            cell.restart()
        else:
            cell.cycle()
    for _ in range(6 * len(cell.jobs) + 4):
        for agent in cell.agents:
            cell.act(agent)
        cell.cycle()
    core = cell.driver.core
    check_invariants(core.state)
    seen: dict[tuple[object, ...], None] = {}
    for event in cell.inputs():
        assert not isinstance(event, TaskMissing)
        if isinstance(event, (JobSubmitted, NodeRegistered)):
            key: tuple[object, ...] = (type(event), event.job if isinstance(event, JobSubmitted) else event.node)
        elif isinstance(event, (TaskReady, TaskStarted, TaskExited)):
            key = (type(event), event.job, event.instance, event.attempt, event.rank)
        else:
            continue
        assert key not in seen, "an input stands twice in the log"
        seen[key] = None
    assert all(core.state.jobs[job].instances[0].phase == "finished" for job in cell.jobs)
    assert all(core.state.jobs[job].instances[0].attempts == 1 for job in cell.jobs)
    again = Core("main")
    for data in cell.driver.records:
        again.follow(data)
    assert snapshot.digest(again.state) == snapshot.digest(core.state)
    assert verify(decode_cycle(data) for data in cell.driver.records) == []
