"""A page says what its program counted, under declared names only, and to whoever may read it."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from muster.metrics import BadPlace, Endpoint, Histogram, Metrics, UnknownMetric, place_of, serve
from muster.metrics.catalogue import CYCLE_S, METRICS, OTHER, PROGRAMS, VALUES_MAX
from muster.metrics.endpoint import CONNECTIONS_MAX, HEAD_MAX_BYTES, TOKEN_VARIABLE

UNITS = {"seconds", "bytes", "ratio", "cores", "total", "info"}


@pytest.fixture
def metrics() -> Metrics:
    found = Metrics("history", "east", "9.9")
    found.set("muster_follower_lag_records", 3, follower="history")
    found.add("muster_records_void_total", 2, reason="no record")
    found.add("muster_records_void_total", 1, reason="no record")
    for value in (0.0001, 0.003, 0.003, 99.0):
        found.observe("muster_scheduler_cycle_seconds", value, phase="take")
    return found


@asynccontextmanager
async def served(metrics: Metrics, token: str = "") -> AsyncIterator[tuple[Endpoint, httpx.AsyncClient]]:
    endpoint = Endpoint(metrics, token)
    await endpoint.open("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{endpoint.port}", trust_env=False) as client:
        yield endpoint, client
    await endpoint.close()


async def here(endpoint: Endpoint, count: int) -> None:
    """Wait until so many are."""
    async with asyncio.timeout(30):
        while endpoint._here != count:  # noqa: ASYNC110  # nothing says that one came or went
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
async def test_the_page_holds_every_value_with_the_cell_in_either_format(metrics: Metrics, accept: str) -> None:
    kind, content = await metrics.page(accept)
    assert kind.startswith("application/openmetrics-text" if accept else "text/plain")
    families = list((openmetrics if accept else plain)(content.decode()))
    samples = {(sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples}
    cell = ("cell", "east")
    assert samples["muster_build_info", cell, ("program", "history"), ("version", "9.9")] == 1
    assert samples["muster_follower_lag_records", cell, ("follower", "history")] == 3
    assert samples["muster_records_void_total", cell, ("reason", "no record")] == 3
    take = ("phase", "take")
    assert samples["muster_scheduler_cycle_seconds_bucket", cell, ("le", "0.0001"), take] == 1
    assert samples["muster_scheduler_cycle_seconds_bucket", cell, ("le", "0.005"), take] == 3
    assert samples["muster_scheduler_cycle_seconds_bucket", cell, ("le", "10.0"), take] == 3
    assert samples["muster_scheduler_cycle_seconds_bucket", cell, ("le", "+Inf"), take] == 4
    assert samples["muster_scheduler_cycle_seconds_count", cell, take] == 4
    assert samples["muster_scheduler_cycle_seconds_sum", cell, take] == pytest.approx(99.0061)
    assert "process_cpu_seconds_total" in {name for name, *_ in samples}


async def test_sources_are_asked_and_refreshes_awaited_for_each_page_and_one_page_at_a_time_is_made(metrics: Metrics) -> None:
    order: list[str] = []

    async def refresh() -> None:
        order.append("refresh")
        await asyncio.sleep(0.01)

    def source() -> list[tuple[str, tuple[str, ...], float]]:
        order.append("source")
        return [("muster_terms_total", (), 7)]

    metrics.before(refresh)
    metrics.source(source)
    pages = await asyncio.gather(*[metrics.page() for _ in range(20)])
    assert order == ["refresh", "source"], "those who ask at once get the same page"
    assert all(b'muster_terms_total{cell="east"} 7.0' in content for _, content in pages)


def test_what_is_not_declared_is_not_taken(metrics: Metrics) -> None:
    with pytest.raises(UnknownMetric, match="does not stand in"):
        metrics.set("muster_invented", 1)
    with pytest.raises(UnknownMetric, match="has the labels"):
        metrics.set("muster_head_cycle", 1, phase="x")
    with pytest.raises(UnknownMetric, match="has the labels"):
        metrics.add("muster_records_void_total", 1, cause="x")
    with pytest.raises(UnknownMetric, match="no counter"):
        metrics.add("muster_head_cycle", 1)
    with pytest.raises(UnknownMetric, match="go down"):
        metrics.add("muster_terms_total", -1)
    with pytest.raises(UnknownMetric, match="not a histogram"):
        metrics.observe("muster_terms_total", 1)


def test_a_label_with_too_many_values_is_other_beyond_them(metrics: Metrics) -> None:
    for number in range(3 * VALUES_MAX):
        metrics.add("muster_preemptions_total", 1, queue=f"q{number}")
    found = {labels[0]: value for name, labels, value in metrics.samples() if name == "muster_preemptions_total"}
    assert len(found) == VALUES_MAX + 1
    assert found[OTHER] == 2 * VALUES_MAX


def test_a_value_on_a_bound_belongs_to_its_bucket_and_a_copy_stands_still() -> None:
    histogram = Histogram(CYCLE_S, 1_000_000)
    histogram.observe(100)
    copy = histogram.copy()
    histogram.observe(101)
    assert [count for _, count in copy.buckets()[0]][:2] == [1, 1]
    assert [count for _, count in histogram.buckets()[0]][:2] == [1, 2]
    assert histogram.buckets()[1] == pytest.approx(0.000201)


def test_names_and_units_are_as_prometheus_wants_them() -> None:
    for metric in METRICS.values():
        assert metric.name.startswith("muster_")
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        if metric.unit in ("seconds", "bytes", "ratio", "cores"):
            assert metric.name.removesuffix("_total").endswith(f"_{metric.unit}"), metric.name
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(metric.buckets)
        assert "cell" not in metric.labels
    assert len(METRICS) == sum(len(metrics) for metrics in PROGRAMS.values()), "a name is declared twice"


async def test_the_endpoint_serves_its_page_and_nothing_else(metrics: Metrics) -> None:
    async with served(metrics) as (_, client):
        answer = await client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "muster_build_info" in answer.text
        assert (await client.get("/metrics?name=x")).status_code == 200
        assert (await client.get("/")).status_code == 404
        assert (await client.post("/metrics", content=b"x")).status_code == 405
        assert (await client.get("/metrics", headers={"X": "y" * 2 * HEAD_MAX_BYTES})).status_code == 431


async def test_without_a_token_loopback_answers_to_its_own_names_only(metrics: Metrics) -> None:
    async with served(metrics) as (endpoint, client):
        assert (await client.get("/metrics", headers={"Host": f"localhost:{endpoint.port}"})).status_code == 200
        assert (await client.get("/metrics", headers={"Host": "evil.example"})).status_code == 403


async def test_with_a_token_nobody_else_reads_it(metrics: Metrics) -> None:
    async with served(metrics, "s3cret") as (_, client):
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers={"Authorization": "Bearer wrong"})).status_code == 401
        assert (await client.get("/metrics", headers={"Authorization": "Bearer s3cret", "Host": "muster"})).status_code == 200


async def test_who_says_nothing_or_comes_in_crowds_holds_nobody_up(metrics: Metrics) -> None:
    async with served(metrics) as (endpoint, client):
        silent = [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(CONNECTIONS_MAX)]
        await here(endpoint, CONNECTIONS_MAX)
        assert (await client.get("/metrics")).status_code == 503
        for _, writer in silent:
            writer.close()
            await writer.wait_closed()
        await here(endpoint, 0)
        assert (await client.get("/metrics")).status_code == 200


async def test_serve_takes_its_token_from_the_environment(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "t0ken")
    endpoint = await serve(metrics, "127.0.0.1:0")
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{endpoint.port}", trust_env=False) as client:
        assert (await client.get("/metrics")).status_code == 401
    await endpoint.close()
    with pytest.raises(BadPlace):
        await serve(metrics, "nowhere")


@pytest.mark.parametrize(
    ("text", "place"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), (":9464", ("127.0.0.1", 9464)), ("[::1]:0", ("::1", 0)), ("node:1", ("node", 1))],
)
def test_a_place_is_host_and_port(text: str, place: tuple[str, int]) -> None:
    assert place_of(text) == place


@pytest.mark.parametrize("text", ["9464", "", "host", "host:", "host:x", "host:65536", "::1:80", "host:-1", "host:²"])
def test_what_is_no_place_is_told_what_would_be_one(text: str) -> None:
    with pytest.raises(BadPlace, match="HOST:PORT would be right"):
        place_of(text)


def test_promtool_takes_the_page(metrics: Metrics) -> None:
    _, content = metrics.render(metrics.samples())
    try:
        checked = subprocess.run(["promtool", "check", "metrics"], input=content, capture_output=True)
    except FileNotFoundError:
        pytest.skip("promtool is not installed")
    assert (checked.returncode, checked.stderr) == (0, b"")
