"""The queries of the Grafana dashboard, and whether pages of metrics have what they ask for."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

DASHBOARD: Final = Path(__file__).parents[2] / "infra" / "grafana" / "dashboard.json"
WORKERS: Final = ("History", "Telemetry")
"""Rows of programs that only a bus has."""
MATCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "=": lambda have, want: have == want,
    "!=": lambda have, want: have != want,
    "=~": lambda have, want: re.fullmatch(want, have) is not None,
}

Page = dict[str, list[tuple[dict[str, str], float]]]
"""Labels and value of each sample, by name."""
Matcher = tuple[str, str, str]
"""Label, how it is compared, and with what."""


def parsed(text: str) -> Page:
    """A page in the text format."""
    page: Page = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            page.setdefault(sample.name, []).append((sample.labels, sample.value))
    return page


def value(page: Page, name: str, **labels: str) -> float:
    """The sum of what has these labels."""
    return sum(each for found, each in page.get(name, []) if labels.items() <= found.items())


def panels() -> list[tuple[str, dict[str, Any]]]:
    """Every panel with the title of its row."""
    found = []
    row = ""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
        else:
            found.append((row, panel))
    return found


def queries(rows: Callable[[str], bool], cell: str = "main", interval: str = "10s") -> list[tuple[str, str]]:
    """Title of the panel and a query of it, of the rows that are wanted."""
    return [
        (panel["title"], target["expr"].replace("$cell", cell).replace("$__rate_interval", interval))
        for row, panel in panels()
        if rows(row)
        for target in panel["targets"]
    ]


def selectors(query: str) -> list[tuple[str, list[Matcher]]]:
    """Names of series in a query, each with its matchers."""
    found = re.findall(r"((?:muster|process)_[a-z0-9_]+)(?:\{([^}]*)\})?", query)
    return [(name, re.findall(r'([a-z]+)(=~|!=|=)"([^"]*)"', matchers)) for name, matchers in found]


def unanswered(asked: Iterable[tuple[str, str]], pages: Iterable[Page]) -> list[str]:
    """What queries ask for and none of these pages has."""
    pages = list(pages)
    return [
        f"the panel {title!r} asks for {name}{matchers}"
        for title, query in asked
        for name, matchers in selectors(query)
        if not any(
            all(MATCHES[kind](labels.get(label, ""), want) for label, kind, want in matchers)
            for page in pages
            for labels, _ in page.get(name, [])
        )
    ]
