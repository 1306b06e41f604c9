"""`GET /metrics`: what Prometheus reads of a gateway, and of the scheduler in the same process."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from litestar import Request, Response, get

from muster.gateway.context import Gateway, of
from muster.gateway.guard import caller
from muster.gateway.problems import Refused
from muster.measures.book import Book
from muster.measures.cell import CellMeasures
from muster.measures.loop import follower
from muster.metrics import Metrics, Sample
from muster.scheduler.build import build
from muster.scheduler.core import Core
from muster.scheduler.snapshots import Snapshots

Any3 = Request[Any, Any, Any]


def metrics_of(gateway: Gateway, core: Core, book: Book, snapshots: Snapshots, log: Path | None = None) -> Metrics:
    """The metrics of a gateway, which counts from now on. `log` is the log's file, where it is one."""
    live = gateway.live
    book.settle(core)
    live.counted = book.follow
    metrics = Metrics("gateway", core.cell, build())
    cell = CellMeasures(book, live.read, live.books.queues.phases)

    async def look() -> None:
        await cell.refresh()
        head = core.head.number
        metrics.set("muster_snapshot_lag_cycles", max(0, head - await asyncio.to_thread(snapshots.latest)))
        if log is not None:
            free, used = await asyncio.to_thread(_disk, log)
            metrics.set("muster_log_disk_free_bytes", free)
            metrics.set("muster_log_disk_used_bytes", used)

    def standing() -> Iterator[Sample]:
        at_us = live.at_us
        if at_us:
            yield "muster_head_age_seconds", (), max(0, live.now_us() - at_us) / 1e6
        yield "muster_follower_lag_seconds", ("gateway",), live.behind_us() / 1e6
        yield "muster_gateway_polls", (), len(gateway.polls)

    metrics.before(look)
    metrics.source(cell.samples)
    metrics.source(lambda: follower(core))
    metrics.source(standing)
    return metrics


@get("/metrics", summary="Read the metrics", include_in_schema=False)
async def metrics(request: Any3) -> Response[bytes]:
    """The page, as text or as OpenMetrics."""
    caller(request).require("read", "operate")
    found = of(request).metrics
    if found is None:
        raise Refused(404, "this gateway has no metrics")
    kind, content = await found.page(request.headers.get("accept", ""))
    return Response(content, headers={"Content-Type": kind, "Cache-Control": "no-store"})


def _disk(log: Path) -> tuple[int, int]:
    """Free bytes of the disk, and the bytes of the log and what SQLite keeps beside it."""
    found = os.statvfs(log.parent)
    used = sum(path.stat().st_size for path in log.parent.glob(f"{log.name}*") if path.is_file())
    return found.f_bavail * found.f_frsize, used
