"""What an agent tells Prometheus, where `--metrics` says so: its tasks, its devices, its reports and its lease."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from muster.agent.slots import now_us
from muster.metrics import Metrics, Sample
from muster.scheduler.build import build

if TYPE_CHECKING:
    from muster.agent.agent import Agent

PHASES = ("preparing", "ready", "running", "exited")


def metrics_of(agent: "Agent") -> Metrics:
    """The metrics of this agent."""
    metrics = Metrics("agent", version=build())
    models = {device.uuid: device.model or "unknown" for device in agent.inventory.spec.devices}

    def samples() -> Iterator[Sample]:
        metrics.cell = agent.tasks.cell or metrics.cell  # the first assignment says which it is
        phases = Counter([local.phase for local in agent.tasks.known.values()])
        for phase in dict.fromkeys((*PHASES, *phases)):
            yield "muster_agent_tasks", (phase,), phases[phase]
        health = Counter([(models.get(device.uuid, "unknown"), device.health) for device in agent.health.last])
        for key, count in health.items():
            yield "muster_agent_devices", key, count
        for result, count in agent.reports.items():
            yield "muster_agent_reports_total", (result,), count
        if agent.home.lease_until_us:
            yield "muster_agent_lease_seconds", (), (agent.home.lease_until_us - now_us()) / 1e6
        yield "muster_agent_obeyed_cycle", (), agent.home.applied

    metrics.source(samples)
    return metrics
