"""The protocol of the published experiment on the openb trace, and its curves.

Source: Weng et al., USENIX ATC 2023 ("FGD"), and the authors' simulator. Pods arrive one at a time until they ask for
130 % of the cluster's GPUs; nobody departs; a pod that fits on no node when it arrives is dropped. Ties between nodes go
to the node of the lowest rank. What is measured is the allocated share of all GPUs against the share that has arrived.

The published orders come in files, as they were drawn by another language's generator. Without them the orders are drawn
here from the seed: the same kind of run, but not the published one.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from muster.events.operations import Policy, TargetClass, Weight
from muster.simulator.openb.loader import WHOLE_MILLI, Node, Pod, TraceError, read_table

INFLATION_PERCENT = 130
TASKS_MAX = 1001
"""Pods a node may hold in the published runs."""
COVERED_PERCENT = 95
"""The target workload is the most frequent classes that cover so many of the pods."""
TOLERANCE_POINTS = 0.01
"""What the published curves are rounded to."""
POLICIES = ("default", "bestfit", "fgd")
PUBLISHED_NAMES = {"bestfit": "05-BestFit", "fgd": "06-FGD"}


def policy(name: str, pods: Sequence[Pod]) -> Policy:
    """The policy that `--policy NAME` means: Muster's own, or one of the two published ones.

    A published policy never preempts, and has the pods' own mix as its target workload.
    """
    if name == "bestfit":
        return Policy(name="bestfit", scores=(Weight(name="published-best-fit"),), preemption=False)
    if name == "fgd":
        return Policy(name="fgd", scores=(Weight(name="fgd"),), preemption=False, targets=target_workload(pods))
    return Policy()


def target_workload(pods: Iterable[Pod]) -> tuple[TargetClass, ...]:
    """The distinct requests of the list (memory apart), the most frequent first, until they cover 95 % of the pods.

    Of two that are equally frequent the larger comes first, compared by CPU, number of GPUs, thousandths of each, models.
    """
    counts: dict[tuple[int, int, int, tuple[str, ...]], int] = {}
    total = 0
    for pod in pods:
        each_milli = pod.gpu_milli or (WHOLE_MILLI if pod.gpus else 0)
        key = (pod.cpu_milli, pod.gpus or (1 if pod.gpu_milli else 0), each_milli, pod.models)
        counts[key] = counts.get(key, 0) + 1
        total += 1
    targets = []
    covered = 0
    for key, count in sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True):
        cpu_milli, gpus, each_milli, models = key
        share = 0 < each_milli < WHOLE_MILLI
        targets.append(
            TargetClass(
                cpu_milli=cpu_milli,
                gpus=0 if share else gpus,
                gpu_milli=each_milli if share else 0,
                gpu_models=models,
                weight=count,
            )
        )
        covered += count
        if covered * 100 >= COVERED_PERCENT * total:
            break
    return tuple(targets)


def drawn_arrivals(pods: Sequence[Pod], total_milli: int, seed: int) -> list[int]:
    """An order of arrivals from a seed: the list shuffled, then copies of random pods while they fit under 130 %.

    Where the list alone asks for more, random pods leave it until it does not.
    """
    chance = random.Random(seed)
    arrivals = list(range(len(pods)))
    chance.shuffle(arrivals)
    most_milli = total_milli * INFLATION_PERCENT // 100
    asked_milli = sum(pod.asked_milli for pod in pods)
    while asked_milli > most_milli:
        asked_milli -= pods[arrivals.pop(chance.randrange(len(arrivals)))].asked_milli
    while any(pod.asked_milli for pod in pods):
        pod = chance.randrange(len(pods))
        if asked_milli + pods[pod].asked_milli > most_milli:
            break
        asked_milli += pods[pod].asked_milli
        arrivals.append(pod)
    return arrivals


def drawn_ranks(nodes: Sequence[Node], seed: int) -> dict[str, int]:
    """A rank for each node from a seed."""
    order = [node.name for node in nodes]
    random.Random(seed).shuffle(order)
    return {name: rank for rank, name in enumerate(order)}


class Curve:
    """Allocated share of all GPUs against the arrived share, in whole percents of the latter.

    As published: a bin is what was measured while so many percent had arrived (rounded half to even); its value is the
    mean of the allocated percents, each rounded to two digits. Pods that were dropped count as arrived.
    """

    def __init__(self, total_milli: int) -> None:
        self.total_milli = total_milli
        self.arrived_milli = 0
        self.allocated_milli = 0
        self._bins: dict[int, list[float]] = {}

    def add(self, asked_milli: int, placed: bool) -> None:
        """A pod arrived, and was placed or dropped."""
        self.arrived_milli += asked_milli
        if placed:
            self.allocated_milli += asked_milli
        at = round(100 * self.arrived_milli / self.total_milli)
        self._bins.setdefault(at, []).append(round(100 * self.allocated_milli / self.total_milli, 2))

    def values(self) -> dict[int, float]:
        """Mean allocated percent by arrived percent."""
        return {at: sum(values) / len(values) for at, values in sorted(self._bins.items())}


def read_published(path: Path, policy: str, seed: int, pods: Path) -> dict[int, float]:
    """The published curve of a policy and a seed on this pod list.

    Raises:
        TraceError: the file cannot be read, or has no such run.
    """
    workload = pods.name.split(".")[0]
    columns = ("workload", "sc_policy", "seed")
    for row in read_table(path, columns):
        if (row.text("workload"), row.text("sc_policy"), row.text("seed")) == (workload, PUBLISHED_NAMES.get(policy), str(seed)):
            return {int(column): row.number(column) for column in row.columns() if column.isdigit() and row.has(column)}
    raise TraceError(f"{path}: column sc_policy: has no run of the policy {policy} on {workload} with seed {seed}")


def worst_difference(ours: Mapping[int, float], published: Mapping[int, float]) -> tuple[float, int]:
    """The largest difference at any published bin, in points, and that bin; a bin that we do not have is all of it."""
    return max((abs(ours.get(at, 0.0) - value), at) for at, value in published.items())
