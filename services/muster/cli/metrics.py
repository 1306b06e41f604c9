"""`--metrics HOST:PORT`, which every program that runs on has: where Prometheus may ask it."""

from typing import Annotated

import typer

from muster.cli.output import USAGE, Failure

Metrics = Annotated[str, typer.Option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus there.")]


def checked_metrics(place: str) -> str:
    """The place as it was told.

    Raises:
        Failure: it makes no sense.
    """
    if place:
        from muster.metrics import BadPlace, place_of

        try:
            place_of(place)
        except BadPlace as error:
            raise Failure(str(error), USAGE) from None
    return place
