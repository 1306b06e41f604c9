"""Every entry of a scene's log, for a person or a program."""

from collections.abc import Iterator

import msgspec

from muster.events.codec import encode
from muster.simulator.scenario.book import entries
from muster.simulator.scenario.world import World


def trace_lines(world: World, json: bool) -> Iterator[str]:
    """One line an entry: cycle, log time since the start, side, kind, fields; ids of jobs are followed by their names."""
    first_us = world.cycles[0].at_us if world.cycles else 0
    names = {job: scene.name for job, scene in world.scenes.items()}
    for cycle in world.cycles:
        since = cycle.at_us - first_us
        if cycle.started is not None:
            rows = [("term", "TermStarted", cycle.started)]
        else:
            rows = [(side, type(event).__name__, event) for side, event in entries(cycle)]  # type: ignore[misc]
        for side, kind, event in rows:
            if json:
                fields = msgspec.to_builtins(event)
                yield encode({"cycle": cycle.number, "at_us": since, "side": side, "kind": kind, "entry": fields}).decode()
                continue
            text = encode(event).decode()
            for job, name in names.items():
                text = text.replace(job, name)
            yield f"cycle {cycle.number} at {since // 1_000_000}.{since % 1_000_000:06d} {side} {kind} {text}"
