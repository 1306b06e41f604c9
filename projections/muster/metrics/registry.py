"""The values of one program's metrics, and the page that shows them.

The format is prometheus-client's (text 0.0.4, or OpenMetrics where it is asked for), and so are the figures of the process.
Its own counters are not used: a fold counts millions of entries a minute in plain integers, and gives samples when it is
asked.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder

from muster.metrics.catalogue import METRICS, OTHER, VALUES_MAX, Metric

FRESH_S: Final = 0.2
"""A page of this age is given again: whoever asks more often learns nothing new and costs nothing."""


class UnknownMetric(Exception):
    """The catalogue has no such metric, or it has other labels or another kind."""


class Histogram:
    """How many values lie in each bucket, and their sum, in any unit: `scale` values make one of the metric's."""

    __slots__ = ("bounds", "counts", "scale", "total")

    def __init__(self, bounds: tuple[float, ...], scale: int = 1) -> None:
        self.bounds = tuple([bound * scale for bound in bounds])
        self.counts = [0] * (len(bounds) + 1)
        self.scale = scale
        self.total: float = 0

    def observe(self, value: float) -> None:
        """One value more."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> "Histogram":
        """As it is now."""
        found = Histogram((), self.scale)
        found.bounds, found.counts, found.total = self.bounds, self.counts[:], self.total
        return found

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """As the exposition has them: pairs of upper bound and how many are not above it, and the sum."""
        pairs: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*self.bounds, None), self.counts, strict=True):
            below += count
            pairs.append(("+Inf" if bound is None else str(bound / self.scale), below))
        return pairs, self.total / self.scale


Sample = tuple[str, tuple[str, ...], float | Histogram]
"""Name, values of its labels in the order of the catalogue, value."""


class Metrics:
    """The metrics of one program."""

    def __init__(self, program: str, cell: str = "main", version: str = "") -> None:
        self.cell = cell
        self._values: dict[str, dict[tuple[str, ...], float | Histogram]] = {}
        self._sources: list[Callable[[], Iterable[Sample]]] = []
        self._before: list[Callable[[], Awaitable[None]]] = []
        self._process = ProcessCollector(registry=CollectorRegistry())
        self._asking = asyncio.Lock()
        self._page: tuple[float, str, tuple[str, bytes]] = (-FRESH_S, "", ("", b""))
        self.set("muster_build_info", 1, program=program, version=version)

    def set(self, name: str, value: float, **labels: str) -> None:
        """A gauge is at this value now; a counter that is kept elsewhere has come this far."""
        values, key = self._place(name, labels)
        values[key] = value

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """A counter goes up."""
        values, key = self._place(name, labels)
        before = values.get(key, 0)
        if METRICS[name].kind != "counter" or isinstance(before, Histogram) or value < 0:
            raise UnknownMetric(f"{name} is no counter, or was to go down")
        values[key] = before + value

    def observe(self, name: str, value: float, **labels: str) -> None:
        """A histogram has one value more."""
        values, key = self._place(name, labels)
        found = values.get(key)
        if found is None:
            if METRICS[name].kind != "histogram":
                raise UnknownMetric(f"{name} is a {METRICS[name].kind}, not a histogram")
            found = values[key] = Histogram(METRICS[name].buckets)
        assert isinstance(found, Histogram)
        found.observe(value)

    def source(self, source: Callable[[], Iterable[Sample]]) -> None:
        """Ask this for samples whenever the page is asked for. It must not take long."""
        self._sources.append(source)

    def before(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Await this before the page is made."""
        self._before.append(refresh)

    async def page(self, accept: str = "") -> tuple[str, bytes]:
        """Content type and content of the page, in the format that the header `Accept` wants.

        One page is made at a time, in a thread, from values that are copied here.
        """
        async with self._asking:
            made_s, wanted, page = self._page
            if wanted != accept or time.monotonic() - made_s > FRESH_S:
                for refresh in self._before:
                    await refresh()
                samples = self.samples()
                page = await asyncio.to_thread(self.render, samples, accept)
                self._page = (time.monotonic(), accept, page)
            return page

    def samples(self) -> list[Sample]:
        """Every value as it is now."""
        found: list[Sample] = [
            (name, key, value.copy() if isinstance(value, Histogram) else value)
            for name, values in self._values.items()
            for key, value in values.items()
        ]
        for source in self._sources:
            found.extend(source())
        return found

    def render(self, samples: Iterable[Sample], accept: str = "") -> tuple[str, bytes]:
        """The page with these samples: content type and content."""
        encode, content_type = choose_encoder(accept)
        return content_type, encode(_Collected([*self._families(samples), *self._process.collect()]))

    def _families(self, samples: Iterable[Sample]) -> list[Any]:
        families: dict[str, Any] = {}
        for name, labels, value in samples:
            family = families.get(name)
            if family is None:
                family = families[name] = _family(METRICS[name])
            values = (self.cell, *labels)
            if isinstance(value, Histogram):
                pairs, total = value.buckets()
                family.add_metric(values, buckets=pairs, sum_value=total)
            else:
                family.add_metric(values, value)
        return [families[name] for name in sorted(families)]

    def _place(self, name: str, labels: dict[str, str]) -> tuple[dict[tuple[str, ...], float | Histogram], tuple[str, ...]]:
        metric = METRICS.get(name)
        if metric is None:
            raise UnknownMetric(f"{name} does not stand in muster.metrics.catalogue")
        if len(labels) != len(metric.labels):
            raise UnknownMetric(f"{name} has the labels {metric.labels}, not {tuple(labels)}")
        try:
            key = tuple([labels[label] for label in metric.labels])
        except KeyError as error:
            raise UnknownMetric(f"{name} has the labels {metric.labels}, not {tuple(labels)}") from error
        values = self._values.setdefault(name, {})
        if key not in values and len(values) >= VALUES_MAX and key:
            key = (OTHER,) * len(key)
        return values, key


class _Collected:
    """What prometheus-client's encoders ask for families."""

    def __init__(self, families: list[Any]) -> None:
        self._collected = families

    def collect(self) -> list[Any]:
        """See `prometheus_client.registry.Collector`."""
        return self._collected


def _family(metric: Metric) -> Any:
    labels = ("cell", *metric.labels)
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name, metric.help, labels=labels)
    if metric.kind == "gauge":
        return GaugeMetricFamily(metric.name, metric.help, labels=labels)
    return HistogramMetricFamily(metric.name, metric.help, labels=labels)
