"""`python -m muster.metrics` prints the tables of docs/metrics.md."""

import sys
from collections.abc import Iterator

from muster.metrics.catalogue import PROGRAMS, Metric


def row(metric: Metric) -> str:
    """A metric as a row of the table."""
    labels = ", ".join([f"`{label}`" for label in metric.labels]) or "-"
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.unit} | {metric.help} |"


def tables() -> Iterator[str]:
    """The lines of all tables, each under its heading."""
    for program, metrics in PROGRAMS.items():
        if metrics:
            yield f"### {program.capitalize()}"
            yield ""
            yield "| metric | type | labels | unit | meaning |"
            yield "| --- | --- | --- | --- | --- |"
            for metric in metrics:
                yield row(metric)
            yield ""


if __name__ == "__main__":
    sys.stdout.write("\n".join(tables()))
