"""What a measurement of the pipeline says: each figure beside its floor, what limits it, and the judgement on each log."""

import os
import platform
import statistics
from collections.abc import Sequence

import msgspec

from muster.bench.engine import Check

SCHEMA = 1
FUNCTIONS = 25


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted in a program of the stack."""

    cpu_s: float
    memory_mib: float
    """The most it ever had."""
    cycles: int
    phases_us: dict[str, int]
    cycles_us: list[int]
    functions: dict[str, int]
    """Samples of where it was, by `module:function`."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `floor` is the worst allowed value, None where there is none; `holds` is None where it does not apply."""

    name: str
    value: float
    unit: str
    better: str = "higher"
    floor: float | None = None
    holds: bool | None = None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How busy the machine was: of all its processors; and of one by the stack's own process, and by the clients together."""

    seconds: float
    busy: float
    stack: float
    clients: float
    loadavg: tuple[float, float, float]
    programs: dict[str, float] = {}
    """Where the stack is several processes: of one processor by each of them."""
    beside: dict[str, dict[str, float]] = {}
    """And where each but the leader's used it: shares by package."""


class Part(msgspec.Struct, kw_only=True):
    """One measurement."""

    name: str
    what: str
    """How it was taken."""
    figures: list[Figure]
    limit: str
    """What limits it, from what was counted."""
    load: Load
    phases_ms: dict[str, float]
    """Of the mean cycle."""
    modules: dict[str, float]
    """Shares of the time in which the stack's process used its processor."""
    functions: dict[str, float]
    """The same, for the functions with most."""
    counts: dict[str, int]
    checks: list[Check] = []


class Results(msgspec.Struct, kw_only=True):
    """Everything that was measured."""

    bench: str = "pipeline"
    schema: int = SCHEMA
    log: str
    quick: bool
    python: str = platform.python_version()
    machine: str = f"{platform.machine()}, {os.cpu_count()} processors"
    parts: list[Part]
    holds: bool


def results(log: str, quick: bool, parts: Sequence[Part]) -> Results:
    """All parts, and whether everything holds."""
    holds = all(
        all(figure.holds is not False for figure in part.figures) and all(check.holds for check in part.checks) for part in parts
    )
    return Results(log=log, quick=quick, parts=list(parts), holds=holds)


def figure(
    name: str, value: float, unit: str, floor: float | None = None, *, better: str = "higher", full: bool = True
) -> Figure:
    """A figure; its floor applies to a `full` measurement alone."""
    holds = None if floor is None or not full else value >= floor if better == "higher" else value <= floor
    return Figure(name=name, value=value, unit=unit, better=better, floor=floor, holds=holds)


def percentile(samples: Sequence[float], percent: float) -> float:
    """The sample below which so many of a hundred are; 0 of none."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def median(samples: Sequence[float]) -> float:
    """The middle; 0 of none."""
    return statistics.median(samples) if samples else 0.0


def phases_ms(inside: Inside) -> dict[str, float]:
    """What the mean cycle took, by phase."""
    return {name: round(spent / max(1, inside.cycles) / 1000, 3) for name, spent in inside.phases_us.items()}


def shares(counts: dict[str, int]) -> dict[str, float]:
    """Each count as a share of all, the largest first."""
    whole = max(1, sum(counts.values()))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {name: round(count / whole, 4) for name, count in ordered}


def modules(functions: dict[str, int]) -> dict[str, int]:
    """Samples by package of Muster (`muster.gateway`), or by library."""
    found: dict[str, int] = {}
    for name, count in functions.items():
        parts = name.partition(":")[0].split(".")
        package = ".".join(parts[:2]) if parts[0] == "muster" else parts[0]
        found[package] = found.get(package, 0) + count
    return found


def limit(load: Load, inside: Inside) -> str:
    """One sentence on what limits a figure: the process's use of its processor and where, and the mean cycle."""
    where = _most(shares(modules(inside.functions)))
    used = f"scheduler and gateway use {load.stack:.0%} of one processor ({where})"
    if load.programs:
        found = {"scheduler": where, **{name: _most(packages) for name, packages in load.beside.items()}}
        used = "of one processor " + ", ".join(
            f"the {name} uses {share:.0%}" + (f" ({found[name]})" if name in found else "")
            for name, share in load.programs.items()
        )
    phases = ", ".join(f"{name} {spent:.2f}" for name, spent in phases_ms(inside).items())
    return (
        f"{used}, the clients {load.clients:.0%}; the machine is {load.busy:.0%} busy; {inside.cycles} cycles, ms each: {phases}"
    )


def _most(packages: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in list(packages.items())[:5])


def part(name: str, what: str, figures: list[Figure], load: Load, inside: Inside, counts: dict[str, int]) -> Part:
    """A measurement with what was counted inside."""
    return Part(
        name=name,
        what=what,
        figures=figures,
        limit=limit(load, inside),
        load=load,
        phases_ms=phases_ms(inside),
        modules=shares(modules(inside.functions)),
        functions=dict(list(shares(inside.functions).items())[:FUNCTIONS]),
        counts=counts,
    )
