"""The bridge: pages become samples of the nodes that the cell knows, and what is wrong is said once."""

import json
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from muster.cli.main import run
from muster.cli.telemetry_nodes import Nodes
from muster.events.telemetry import GpusSampled, decode_sampled
from muster.telemetry import bridge as bridges
from muster.telemetry.bridge import Bridge, SourceAway

PAGE = Path(__file__).parent / "dcgm-exporter.prom"
A100 = "GPU-34319582-d595-d1c7-d1d2-179bcfa61660"
OTHER = "GPU-a8394b51-c086-568a-9f1a-c1e1c934c44c"


class Sink:
    """Takes samples, and knows some devices."""

    def __init__(self, **known: tuple[str, str, str]) -> None:
        self.known = known
        self.taken: list[GpusSampled] = []
        self.away = False

    async def put(self, sampled: GpusSampled) -> None:
        if self.away:
            raise SourceAway("no broker answers")
        self.taken.append(sampled)

    async def identify(self, host: str, devices: Sequence[str]) -> dict[str, tuple[str, str, str]]:
        return {device: self.known[device] for device in devices if device in self.known}


def serving(monkeypatch: pytest.MonkeyPatch, *answers: httpx.Response | Exception) -> None:
    """Every address answers with these, one after the other."""
    left = list(answers)

    def answer(_: httpx.Request) -> httpx.Response:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    client = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **_: client(transport=httpx.MockTransport(answer)))


async def test_a_page_becomes_one_message_of_each_node(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink(**{A100: ("gpu-node-07", "u-7", "b-1"), OTHER: ("gpu-node-08", "u-8", "b-1")})
    made = Bridge([str(PAGE)], sink.put, sink.identify)
    assert await made.once()
    assert [(each.node, each.uid, [sample.device for sample in each.samples]) for each in sink.taken] == [
        ("gpu-node-07", "u-7", [A100]),
        ("gpu-node-08", "u-8", [OTHER]),
    ]
    assert made.sent == 2
    assert caplog.records == []


async def test_a_device_that_the_cell_does_not_know_is_said_once_and_the_others_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Sink(**{A100: ("gpu-node-07", "u-7", "b-1")})
    made = Bridge([str(PAGE)], sink.put, sink.identify)
    for _ in range(3):
        assert await made.once()
    assert len(sink.taken) == 3
    said = f"{PAGE}: the cell knows no node 'gpu-node-07' with {OTHER}"
    assert [record.getMessage() for record in caplog.records] == [said]


async def test_a_source_that_is_away_or_tells_nonsense_is_said_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink(**{A100: ("n1", "u1", "")})
    answers: list[httpx.Response | Exception] = [
        httpx.ConnectError("refused"),
        httpx.Response(503),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, content=b"\xff"),
        httpx.Response(200, text=f'DCGM_FI_DEV_GPU_TEMP{{UUID="{A100}"}} 61'),
    ]
    serving(monkeypatch, *answers)
    made = Bridge(["http://x:9400/metrics"], sink.put, sink.identify, host="n1")
    said = []
    for _ in answers:
        caplog.clear()
        await made.once()
        said.append([record.getMessage().removeprefix("http://x:9400/metrics: ") for record in caplog.records])
    assert said == [
        ["does not answer: refused"],
        ["answers with status 503"],
        ["line 1 is no metric: it must read NAME{LABEL=\"…\"} VALUE, not '<html>'"],
        ["tells no UTF-8"],
        ["all is well again"],
    ]
    assert len(sink.taken) == 1


async def test_a_page_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    serving(monkeypatch, httpx.Response(200, content=b"#" * 4096))
    monkeypatch.setattr(bridges, "PAGE_MAX_BYTES", 1024)
    sink = Sink()
    assert not await Bridge(["http://x/metrics"], sink.put, sink.identify).once()
    assert "tells more than 1024 bytes" in caplog.text


async def test_a_bus_that_is_away_does_not_end_the_bridge(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink(**{A100: ("n1", "u1", ""), OTHER: ("n1", "u1", "")})
    sink.away = True
    made = Bridge([str(PAGE)], sink.put, sink.identify)
    assert not await made.once()
    assert "no broker answers" in caplog.text
    sink.away = False
    assert await made.once()
    assert [len(each.samples) for each in sink.taken] == [2]


async def test_the_gateway_says_whose_devices_they_are_and_is_believed_for_a_while() -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path == "/v1/nodes/gpu-7":
            return httpx.Response(200, json={"uid": "u7", "boot": "b1", "devices": [{"uuid": "GPU-1"}], "more": 1})
        return httpx.Response(404, json={}) if request.url.path != "/v1/nodes/sick" else httpx.Response(500)

    nodes = Nodes("http://gateway:8470", "")
    nodes._http = httpx.AsyncClient(base_url="http://gateway:8470/v1", transport=httpx.MockTransport(answer))
    for _ in range(2):
        assert await nodes.identify("GPU-7.example.org", ["GPU-1", "GPU-2"]) == {"GPU-1": ("gpu-7", "u7", "b1")}
    assert asked.count("/v1/nodes/gpu-7") == 1
    assert await nodes.identify("nobody", ["GPU-1"]) == {}
    assert await nodes.identify("", ["GPU-1"]) == {}
    with pytest.raises(SourceAway, match="answers with status 500"):
        await nodes.identify("sick", ["GPU-1"])
    await nodes.close()
    alone = Nodes("http://127.0.0.1:1", "", "n1", "u1")
    assert await alone.identify("whatever", ["GPU-9"]) == {"GPU-9": ("n1", "u1", "")}
    await alone.close()


def test_what_it_prints_can_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["telemetry", "bridge", "--print", "--once", "--node", "n1", "--uid", "u1", str(PAGE)]
    assert run(told) == 0
    printed = capsys.readouterr().out
    assert len(decode_sampled(printed.strip().encode()).samples) == 2
    (tmp_path / "samples.jsonl").write_text(printed)
    assert run(["telemetry", "replay", "--json", str(tmp_path / "samples.jsonl")]) == 0
    made = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["rule"], each["health"], each["device"]) for each in made] == [
        ("row-remap-failed", "failed", OTHER),
        ("xid-failed", "failed", OTHER),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bridge", "page.prom"], "--bus says where samples go to, or --print prints them"),
        (["bridge", "--print", "--uid", "u1", "page.prom"], "--uid says whose it is together with --node"),
        (["replay", "nowhere.jsonl"], "nowhere.jsonl cannot be read: No such file or directory"),
        (["rules", "--rules", "nowhere.toml"], "nowhere.toml: cannot be read: No such file or directory"),
        (["worker", "--bus", "localhost"], "the bus 'localhost' must read kafka://HOST:PORT"),
        (["worker", "--bus", "kafka://x", "--rules", "nowhere.toml"], "nowhere.toml: cannot be read"),
    ],
)
def test_a_command_that_makes_no_sense_is_told_so(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["telemetry", *words]) in (2, 3)
    assert said in capsys.readouterr().err


def test_a_line_that_is_no_sample_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.jsonl").write_text('{"node":"n1","uid":"u1","samples":[]}\n\n{"node":"N 1","uid":"u1","samples":[]}\n')
    assert run(["telemetry", "replay", str(tmp_path / "s.jsonl")]) == 3
    assert "line 3: node: 'N 1' must match" in capsys.readouterr().err
