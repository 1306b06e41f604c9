"""Every metric of every program: its name, kind, labels, unit and meaning.

Names follow Prometheus: seconds and bytes, `_total` for what only grows, `_ratio` for parts of one. Labels have few values: a
queue, a model or a reason beyond `VALUES_MAX` of its kind is counted under `other`.
"""

from typing import Final, Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]

VALUES_MAX: Final = 64
"""So many values a label has; what comes later is `other`."""
OTHER: Final = "other"

CYCLE_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
LATENCY_S: Final = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0,
)  # fmt: skip


class Metric(msgspec.Struct, frozen=True):
    """One metric. `labels` are those beside `cell`, which everything has."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    unit: str
    help: str
    buckets: tuple[float, ...] = ()
    """Of a histogram: the upper bounds, in its unit."""


def counter(name: str, unit: str, help: str, *labels: str) -> Metric:
    """What only grows."""
    return Metric(name, "counter", labels, unit, help)


def gauge(name: str, unit: str, help: str, *labels: str) -> Metric:
    """What goes up and down."""
    return Metric(name, "gauge", labels, unit, help)


EVERY: Final = (
    gauge("muster_build_info", "1", "Which program and build this is; always 1", "program", "version"),
    gauge("muster_recovery_seconds", "seconds", "How long the program read the log at its start, until it stood at the tail"),
    gauge("muster_recovery_cycles", "cycles", "How many cycles it folded meanwhile; those before came from a snapshot"),
    gauge("muster_head_cycle", "cycles", "The number of the last admitted cycle that the program has folded"),
    gauge("muster_head_age_seconds", "seconds", "How long ago by log time that cycle was"),
    gauge("muster_follower_lag_records", "records", "How many records of the log a follower has not read yet", "follower"),
    gauge(
        "muster_follower_lag_seconds",
        "seconds",
        "For how long a follower has not been known to stand at the end of the log; 0 at the end",
        "follower",
    ),
    counter("muster_records_void_total", "records", "Records of the log that were void, since the program started", "reason"),
)
"""Of every program that follows the log; an agent has the first alone."""

SCHEDULER: Final = (
    gauge("muster_scheduler_leads", "1", "1 while this scheduler leads, else 0"),
    Metric(
        "muster_scheduler_cycle_seconds",
        "histogram",
        ("phase",),
        "seconds",
        "What a leader's cycles took, by phase: take (messages are handed on), decide (inputs are made, the engine steps, the "
        "record is encoded), append (until the log gives the record back), admit (it is judged and folded into the views), serve "
        "(who waits is answered), and whole (take to admit)",
        CYCLE_S,
    ),
    gauge("muster_scheduler_waiting_messages", "messages", "Messages that were read and that no cycle has taken yet"),
)

CELL: Final = (
    gauge("muster_measured_from_cycle", "cycles", "The counters of the cell count what came after this cycle; 0: all there was"),
    counter("muster_log_cycles_total", "cycles", "Admitted cycles"),
    counter("muster_log_bytes_total", "bytes", "Bytes of the admitted records"),
    counter("muster_log_entries_total", "entries", "Admitted entries, by side: input or decision", "side"),
    counter("muster_terms_total", "terms", "Terms that were started"),
    counter("muster_leaderless_seconds_total", "seconds", "Log time in which nobody led, as the starts of terms say"),
    counter("muster_inputs_refused_total", "messages", "Messages that were refused, by the topic that they came from", "topic"),
    counter("muster_placements_total", "tasks", "Tasks that were given a place"),
    Metric(
        "muster_scheduling_latency_seconds",
        "histogram",
        ("queue", "size"),
        "seconds",
        "Log time from the cycle that took a submission to the one that bound the instance for the first time, by queue and size "
        "(GPUs of the instance: none, share, 1, 2-8, 9-64, 65-512, 513+)",
        LATENCY_S,
    ),
    counter("muster_preemptions_total", "attempts", "Attempts that were told to stop for somebody else, by their queue", "queue"),
    counter("muster_requeues_total", "attempts", "Attempts that ended and whose instance waits again, by reason", "reason"),
    counter("muster_attempts_ended_total", "attempts", "Attempts that ended for good, by outcome", "outcome"),
    gauge("muster_instances", "instances", "Instances that the cell knows, by queue and phase", "queue", "phase"),
    gauge("muster_deadlines", "jobs", "Jobs with a deadline that the cell knows: met, missed, or ahead", "outcome"),
    gauge(
        "muster_pending_instances",
        "instances",
        "Instances that wait, by queue and leading reason; also nominated (their victims leave), planned (a start is planned), "
        "backing-off (after a failed start), and unsaid (nothing is recorded yet)",
        "queue",
        "reason",
    ),
    gauge(
        "muster_nodes",
        "nodes",
        "Nodes by state: the first that is true of lost, silent, fenced, quarantined, drained, cordoned, open",
        "state",
    ),
    gauge("muster_cpu_capacity_cores", "cores", "Processors of the nodes that are not lost"),
    gauge("muster_cpu_allocated_cores", "cores", "Processors that tasks hold"),
    gauge("muster_memory_capacity_bytes", "bytes", "Memory of the nodes that are not lost"),
    gauge("muster_memory_allocated_bytes", "bytes", "Memory that tasks hold"),
    gauge(
        "muster_devices",
        "devices",
        "Devices by model and state: healthy, degraded, failed, foreign (used by others), or lost with their node",
        "model",
        "state",
    ),
    gauge("muster_devices_allocated", "devices", "Devices that tasks hold, parts of a device as parts", "model"),
    gauge("muster_device_utilization_ratio", "ratio", "Devices that tasks hold, of the healthy ones on nodes not lost", "model"),
    gauge(
        "muster_fragmentation_ratio",
        "ratio",
        "Idle devices that the target workload cannot use (Weng et al., ATC 2023), of all healthy devices and of the idle ones",
        "of",
    ),
    gauge("muster_fragmented_devices", "devices", "The same, in devices"),
    gauge(
        "muster_queue_share_ratio",
        "ratio",
        "What a queue's tasks hold of the nodes that are not lost, by resource: cpu, memory, gpu",
        "queue",
        "resource",
    ),
    gauge("muster_queue_guarantee_ratio", "ratio", "What a queue is promised, of the whole; 0: nothing", "queue"),
    gauge("muster_queue_weight", "1", "How much a queue counts beside its siblings", "queue"),
    gauge("muster_snapshot_lag_cycles", "cycles", "How many cycles the log is beyond the newest snapshot here"),
    gauge("muster_log_disk_free_bytes", "bytes", "Room on the disk of the log, where the log is a file here"),
    gauge("muster_log_disk_used_bytes", "bytes", "Size of the files of the log, where the log is a file here"),
    gauge("muster_gateway_polls", "requests", "Agents that wait for their next assignment"),
)
"""Of a gateway: the cell, as its fold of the log knows it. Two gateways at one cycle say the same, but for the last four."""

AGENT: Final = (
    gauge("muster_agent_tasks", "tasks", "Tasks that the agent knows, by phase", "phase"),
    gauge("muster_agent_devices", "devices", "Devices of the node, by model and health", "model", "health"),
    counter("muster_agent_reports_total", "reports", "Reports that were sent, by what came of them", "result"),
    gauge("muster_agent_lease_seconds", "seconds", "How long tasks may go on without news; below 0 the lease has ended"),
    gauge("muster_agent_obeyed_cycle", "cycles", "The newest cycle whose assignment was obeyed"),
)

HISTORY: Final[tuple[Metric, ...]] = (
    counter("muster_history_entries_total", "entries", "Entries of the log whose rows were written, since the worker started"),
    counter("muster_history_rows_total", "rows", "Rows that were written, those too that took the place of others", "table"),
    Metric(
        "muster_history_batch_seconds",
        "histogram",
        (),
        "seconds",
        "What a transaction took: the rows of some cycles, and the position",
        CYCLE_S,
    ),
    gauge("muster_history_cycle", "cycles", "The last cycle whose rows are written"),
)
"""Of a worker of `muster history`, beside those of every program."""
TELEMETRY: Final[tuple[Metric, ...]] = (
    counter("muster_telemetry_samples_total", "samples", "Samples of devices that came, by what became of them", "result"),
    counter("muster_telemetry_refused_total", "messages", "Messages that were no samples, and were passed over"),
    counter("muster_telemetry_proposals_total", "proposals", "Proposals that were sent, by rule and health", "rule", "health"),
    counter("muster_telemetry_repeated_total", "proposals", "Proposals that were made again and stood on the topic already"),
    gauge("muster_telemetry_devices", "devices", "Devices of which samples are known"),
)
"""Of a worker of `muster telemetry`, beside those of every program."""

PROGRAMS: Final = {
    "every program": EVERY,
    "scheduler": SCHEDULER,
    "gateway": CELL,
    "agent": AGENT,
    "history": HISTORY,
    "telemetry": TELEMETRY,
}
METRICS: Final = {metric.name: metric for metrics in PROGRAMS.values() for metric in metrics}
