"""`muster simulate openb`: plays Alibaba's openb trace on a simulated cluster and writes the log of it."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from muster.cli.output import FOUND, UNREADABLE, Failure, Json, console, errors, print_json, print_table
from muster.log.sqlite import SqliteFile
from muster.simulator.openb import loader, protocol, run

app = typer.Typer(add_completion=False, help="Play a trace on a simulated cluster and write the log of it.")

SHOWN_PERCENT = (50, 90, 95, 98, 100, 110, 120, 130)


@app.callback()
def simulate() -> None:
    """Play a trace on a simulated cluster and write the log of it."""


@app.command()
def openb(
    nodes: Annotated[Path, typer.Option("--nodes", help="Node list (CSV, may be gzipped).", metavar="FILE")],
    pods: Annotated[Path, typer.Option("--pods", help="Pod list (CSV, may be gzipped).", metavar="FILE")],
    log: Annotated[Path, typer.Option("--log", help="Folder for the log; it must not hold one yet.", metavar="DIR")],
    policy: Annotated[
        Literal["default", "bestfit", "fgd"], typer.Option("--policy", help="Muster's own policy, or a published one.")
    ] = "default",
    protocol_name: Annotated[
        Literal["trace", "fgd"],
        typer.Option("--protocol", help="As it happened, or the published experiment: arrivals to 130 %, no departures."),
    ] = "trace",
    seed: Annotated[int, typer.Option("--seed", help="With --protocol fgd: which run.", min=0)] = 42,
    arrivals: Annotated[
        Path | None,
        typer.Option("--arrivals", help="With --protocol fgd: published orders; else one is drawn.", metavar="FILE"),
    ] = None,
    node_ties: Annotated[
        Path | None,
        typer.Option("--node-ties", help="With --protocol fgd: published ranks of nodes; else they are drawn.", metavar="FILE"),
    ] = None,
    published: Annotated[
        Path | None,
        typer.Option("--published", help="With --protocol fgd: published curves to compare; exit 1 if off.", metavar="FILE"),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option("--curve", help="With --protocol fgd: write allocated % by arrived % here (CSV).", metavar="FILE"),
    ] = None,
    hurry: Annotated[
        int,
        typer.Option("--hurry", help="Pods come so many times as fast as they did, and run as long.", min=1, metavar="N"),
    ] = 1,
    list_limit: Annotated[int | None, typer.Option("--list-limit", help="Only so many arrivals, the first.", min=1)] = None,
    json: Json = False,
) -> None:
    """Play Alibaba's openb GPU trace (2023): its nodes, its pods as jobs, agents that run them as long as they ran.

    Examples: muster simulate openb --nodes openb_node_list_gpu_node.csv --pods openb_pod_list_default.csv --log /tmp/openb

    muster simulate openb ... --protocol fgd --policy fgd --seed 42 --arrivals FILE --node-ties FILE --published FILE
    """
    for option, value in (("arrivals", arrivals), ("node-ties", node_ties), ("published", published), ("curve", curve)):
        if value is not None and protocol_name != "fgd":
            raise Failure(f"--{option} belongs to --protocol fgd")
    if hurry > 1 and protocol_name == "fgd":
        raise Failure("--hurry belongs to --protocol trace: the other one has no times")
    if published is not None and (policy == "default" or list_limit is not None):
        raise Failure("--published compares a whole run of the policy bestfit or fgd")
    cluster = loader.read_nodes(nodes)
    jobs = loader.read_pods(pods)
    chosen = protocol.policy(policy, jobs)
    if protocol_name == "trace":
        loader.check_times(pods, jobs)
        jobs = loader.hurried(jobs, hurry)[:list_limit]
        with _new_log(log) as file, _Bar(len(jobs)) as bar:
            summary = run.replay(cluster, jobs, chosen, file, bar.at)
            path = file.path
        _report(summary, path, {}, json)
        return
    total_milli = sum(node.gpus for node in cluster) * loader.WHOLE_MILLI
    order = loader.read_arrivals(arrivals, seed, len(jobs)) if arrivals else protocol.drawn_arrivals(jobs, total_milli, seed)
    ranks = loader.read_ranks(node_ties, seed, cluster) if node_ties else protocol.drawn_ranks(cluster, seed)
    wanted = protocol.read_published(published, policy, seed, pods) if published else {}
    order = order[:list_limit]
    with _new_log(log) as file, _Bar(len(order)) as bar:
        summary, found = run.follow_protocol(cluster, jobs, order, ranks, chosen, file, bar.at)
        path = file.path
    values = found.values()
    if curve is not None:
        _write_curve(curve, values)
    _report(summary, path, values, json)
    if wanted:
        _compare(values, wanted, policy, seed)


class _Bar:
    """A bar on standard error while it is a terminal."""

    def __init__(self, total: int) -> None:
        columns = (SpinnerColumn(), TextColumn("pods"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
        self._task = self._bar.add_task("pods", total=total)

    def __enter__(self) -> "_Bar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def at(self, arrived: int) -> None:
        self._bar.update(self._task, completed=arrived)


def _new_log(folder: Path) -> SqliteFile:
    try:
        file = SqliteFile.open(folder, writer=True)
    except OSError as error:
        raise Failure(f"{folder}: cannot be made a folder for a log: {error.strerror}", UNREADABLE) from None
    if file.end():
        file.close()
        raise Failure(f"{file.path} holds a log already; name another folder")
    return file


def _report(summary: run.Summary, path: Path, curve: Mapping[int, float], json: bool) -> None:
    size = sum(part.stat().st_size for part in path.parent.glob(path.name + "*"))
    total_milli = summary.gpus * loader.WHOLE_MILLI
    rate = round(summary.decisions / summary.elapsed_s) if summary.elapsed_s else 0
    if json:
        print_json(
            {
                "nodes": summary.nodes,
                "gpus": summary.gpus,
                "pods": summary.pods,
                "bound": summary.bound,
                "pending": summary.pending,
                "dropped": summary.dropped,
                "rejected": summary.rejected,
                "ended": summary.ended,
                "allocated_gpu_milli": summary.allocated_milli,
                "peak_gpu_milli": summary.peak_milli,
                "cycles": summary.cycles,
                "inputs": summary.inputs,
                "decisions": summary.decisions,
                "decisions_per_s": rate,
                "elapsed_s": round(summary.elapsed_s, 3),
                "log": str(path),
                "log_bytes": size,
                "curve": {str(at): round(value, 4) for at, value in curve.items()},
            }
        )
        return
    rows = [
        ("nodes", f"{summary.nodes:,} with {summary.gpus:,} GPUs"),
        ("pods", f"{summary.pods:,}"),
        ("bound", f"{summary.bound:,}"),
    ]
    if curve:
        rows.append(("dropped", f"{summary.dropped:,} that fitted nowhere when they arrived"))
    else:
        running = summary.pods - summary.ended - summary.pending - summary.rejected
        rows += [("ended", f"{summary.ended:,}"), ("running", f"{running:,}"), ("pending", f"{summary.pending:,}")]
    if summary.rejected:
        rows.append(("rejected", f"{summary.rejected:,}"))
    rows.append(("GPUs allocated", _share(summary.allocated_milli, total_milli)))
    if not curve:
        rows.append(("at its peak", _share(summary.peak_milli, total_milli)))
    rows.append(("decisions", f"{summary.decisions:,} in {summary.cycles:,} cycles, {rate:,}/s with the log written"))
    rows.append(("log", f"{path} ({size / 1_000_000:.1f} MB)"))
    print_table(("", ""), rows)
    if curve:
        shown = [at for at in SHOWN_PERCENT if at in curve]
        print_table(("arrived %", *(str(at) for at in shown)), [("allocated %", *(f"{curve[at]:.2f}" for at in shown))])


def _share(milli: int, total_milli: int) -> str:
    return f"{milli / 1000:,.2f} of {total_milli // 1000:,} ({100 * milli / max(1, total_milli):.2f} %)"


def _write_curve(path: Path, values: Mapping[int, float]) -> None:
    try:
        with open(path, "w", newline="") as text:
            writer = csv.writer(text)
            writer.writerow(("arrived_percent", "allocated_percent"))
            writer.writerows((at, f"{value:.4f}") for at, value in values.items())
    except OSError as error:
        raise Failure(f"{path}: cannot be written: {error.strerror}", UNREADABLE) from None


def _compare(values: Mapping[int, float], wanted: Mapping[int, float], policy: str, seed: int) -> None:
    worst, at = protocol.worst_difference(values, wanted)
    found = f"the published curve of {policy}, seed {seed}: {worst:.4f} points off at most (at {at} % arrived)"
    if worst > protocol.TOLERANCE_POINTS:
        raise Failure(f"{found}, more than {protocol.TOLERANCE_POINTS}", FOUND)
    console.print(f"Hits {found}.", highlight=False)
