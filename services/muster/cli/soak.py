"""`muster soak --seeds N`: the simulated world, seed after seed. What a world is and what must hold: `muster.simulator.world`."""

import logging
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.output import FOUND, OK, Json, console, print_json, track
from muster.simulator.world.world import Outcome, play

app = typer.Typer(add_completion=False)


@app.command()
def soak(
    seeds: Annotated[int, typer.Option("--seeds", help="How many worlds.", min=1)] = 20,
    first: Annotated[int, typer.Option("--from", help="The first seed.", min=0)] = 0,
    json: Json = False,
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Write the log of each world that fails there.", metavar="DIR")
    ] = None,
) -> int:
    """Play the protocol in simulated worlds in which everything goes wrong, and demand that everything comes to its end.

    Schedulers are the real code. A seed is one history: the same seed does the same again.

    Exit status: 0 all held; 1 something did not, and how to play it again is printed.

    Example: muster soak --seeds 100
    """
    logging.getLogger("muster.scheduler").addHandler(logging.NullHandler())  # what schedulers say of faults is expected here
    counts: Counter[str] = Counter()
    failed: list[Outcome] = []
    for seed in track(range(first, first + seeds), "worlds", seeds):
        outcome = play(seed, keep)
        counts.update(outcome.counts)
        if outcome.problems:
            failed.append(outcome)
        if json:
            print_json(outcome)
        else:
            console.print(outcome.line, markup=False, highlight=False, soft_wrap=True)
            for problem in outcome.problems:
                console.print(f"  {problem}", markup=False, highlight=False, soft_wrap=True)
            if outcome.problems:
                kept = f"; its log: {keep / f'seed-{seed}'}" if keep is not None else ""
                console.print(f"  again: muster soak --seeds 1 --from {seed}{kept}", markup=False, soft_wrap=True)
    if not json:
        for what, count in sorted(counts.items()):
            console.print(f"{count:>10,}  {what}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"{seeds} worlds: " + (f"{len(failed)} failed" if failed else "all held"), highlight=False)
    return FOUND if failed else OK
