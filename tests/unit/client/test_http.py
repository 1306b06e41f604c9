"""The client against a gateway that misbehaves: it asks again with the same bytes, and an entry is told once or not at all."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from muster.client import ClientError, Muster, NotKnown, Refused, Unavailable, new_job
from muster.client.life import Change
from muster.events.codec import encode
from muster.events.decisions import AttemptEnded, InstanceBound

JOB = new_job("train", gpus=1)
TAKEN = b'{"job":"j","cycle":7}'


class Asked:
    """One request as it came."""

    def __init__(self, head: bytes, body: bytes) -> None:
        line, *headers = head.decode().split("\r\n")
        self.line = line.removesuffix(" HTTP/1.1")
        self.headers = {name.lower(): value for name, _, value in (header.partition(": ") for header in headers)}
        self.body = body


class Server:
    """Answers as it is told, one answer after the other; the last one for ever. None hangs up."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.asked: list[Asked] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
            size = int(Asked(head, b"").headers.get("content-length", "0"))
            self.asked.append(Asked(head, await reader.readexactly(size)))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if answer is not None:
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(*answers: bytes | None) -> AsyncGenerator[Server, None]:
    server = Server(*answers)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        yield server


def answer(status: int, body: bytes = TAKEN, *, kind: str = "application/json", more: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body


def problem(status: int, detail: str) -> bytes:
    return answer(status, json.dumps({"title": "no", "detail": detail}).encode(), kind="application/problem+json")


def stream(*parts: bytes, whole: bool = True) -> bytes:
    """A stream that ends after these parts, or breaks off."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + chunks + (b"0\r\n\r\n" if whole else b"")


def told(place: str, kind: str, body: Any) -> bytes:
    entry = {"cycle": int(place.partition(".")[0]), "at_us": 5, "side": "input", "kind": kind, "body": json.loads(encode(body))}
    return b"id: %b\ndata: %b\n\n" % (place.encode(), json.dumps(entry).encode())


SUBMITTED = told("3.0", "JobSubmitted", JOB)
BOUND = told("3.1", "InstanceBound", InstanceBound(job=JOB.job, instance=0, attempt=1, placements=()))
ENDED = told("9.0", "AttemptEnded", AttemptEnded(job=JOB.job, instance=0, attempt=1, then="finished"))


async def watched(*answers: bytes | None, patience_s: float = 5) -> tuple[list[Change], Server]:
    async with serving(*answers) as server, Muster(server.url, token="", patience_s=patience_s) as muster:
        return [change async for change in muster.watch(JOB.job)], server


@pytest.mark.parametrize(
    "trouble",
    [
        (None, None),
        (problem(503, "later"), problem(429, "slow down")),
        (answer(502, b"<html>"), answer(504, b"")),
        (answer(503, b"", more="retry-after: 0\r\n"), None),
        (answer(202)[:-3], None),
    ],
)
async def test_what_got_no_answer_is_sent_again_as_it_was(trouble: tuple[bytes | None, ...]) -> None:
    async with serving(*trouble, answer(202)) as server, Muster(server.url, token="secret") as muster:
        assert await muster.submit(JOB) == JOB.job
        assert len(server.asked) == 3
        assert {asked.body for asked in server.asked} == {encode(JOB)}
        assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer secret"}
        assert {asked.line for asked in server.asked} == {"POST /v1/jobs"}


async def test_patience_ends_and_the_gateways_sentence_is_told() -> None:
    async with serving(problem(503, "too many wait")) as server, Muster(server.url, token="", patience_s=0.3) as muster:
        with pytest.raises(Unavailable, match="too many wait"):
            await muster.submit(JOB)
        assert len(server.asked) > 1
    async with serving(answer(500, b"oops")) as server, Muster(server.url, token="") as muster:
        with pytest.raises(Unavailable, match="the gateway answered 500"):
            await muster.cancel(JOB.job)
        assert len(server.asked) == 1


@pytest.mark.parametrize(("status", "error"), [(422, Refused), (403, Refused), (409, Refused), (404, NotKnown)])
async def test_a_no_is_a_no(status: int, error: type[ClientError]) -> None:
    async with serving(problem(status, "queue: there is none")) as server, Muster(server.url, token="") as muster:
        with pytest.raises(error, match="queue: there is none"):
            await muster.cancel(JOB.job)
        assert len(server.asked) == 1


async def test_what_is_no_gateway_is_told_apart() -> None:
    async with serving(answer(200, b"<html>hello</html>")) as server, Muster(server.url, token="") as muster:
        with pytest.raises(Unavailable, match=r"what answers at http://127\.0\.0\.1:\d+ is no gateway of this version"):
            await muster.submit(JOB)


@pytest.mark.parametrize("cut", range(0, len(BOUND), 23))
async def test_a_stream_that_breaks_off_anywhere_goes_on_behind_the_last_whole_entry(cut: int) -> None:
    broken = stream(b": muster\n\n", SUBMITTED, BOUND[:cut], whole=False)
    changes, server = await watched(broken, stream(BOUND, ENDED))
    assert [change.state for change in changes] == ["pending", "starting", "finished"]
    assert [asked.headers.get("last-event-id") for asked in server.asked] == [None, "3.0"]


async def test_a_stream_that_ends_or_is_refused_for_a_while_is_asked_for_again() -> None:
    changes, server = await watched(
        stream(b": muster\n\n"),
        problem(503, "starting"),
        None,
        stream(SUBMITTED, BOUND),
        problem(429, "slow down"),
        stream(ENDED),
    )
    assert [change.cycle for change in changes] == [3, 3, 9]
    assert [asked.headers.get("last-event-id") for asked in server.asked] == [None, None, None, None, "3.1", "3.1"]


async def test_a_stream_that_was_quiet_for_longer_than_patience_lasts_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("muster.client.http.LIVED_S", 0.2)
    ending = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if ending.is_set():
            writer.write(stream(SUBMITTED, ENDED))
        else:
            ending.set()
            writer.write(stream(b": muster\n\n", whole=False))
            for _ in range(6):
                await asyncio.sleep(0.1)
                writer.write(b"9\r\n: alive\n\n\r\n")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening, Muster(url, token="", patience_s=0.4) as muster:
        assert (await muster.wait(JOB.job)).finished


async def test_a_watch_ends_with_a_sentence_where_nothing_can_come() -> None:
    with pytest.raises(NotKnown, match="there is no job"):
        await watched(problem(404, "there is no job"), problem(404, "no submission"))
    refused = answer(200, b'{"job":"j","cycle":4,"state":"refused","reason":"job: too old"}')
    with pytest.raises(Refused, match="job: too old"):
        await watched(problem(404, "there is no job"), refused)
    with pytest.raises(Unavailable, match="no gateway answers"):
        await watched(None, patience_s=0.3)
    with pytest.raises(Unavailable, match=r"ends each stream about the job .* at once"):
        await watched(stream(b": muster\n\n"), patience_s=0.3)
    with pytest.raises(ClientError, match="'JobLevitated', which is newer than this client: upgrade it"):
        await watched(stream(told("3.0", "JobLevitated", JOB)))
    with pytest.raises(Unavailable, match="no gateway of this version"):
        await watched(stream(b"id: 1.0\ndata: {]\n\n"))


async def test_all_are_waited_for_and_the_first_error_ends_it() -> None:
    async with serving(problem(404, "there is no job")) as server, Muster(server.url, token="") as muster:
        with pytest.raises(NotKnown):
            await muster.wait_all([f"job-{number}" for number in range(200)])
    async with serving(stream(SUBMITTED, BOUND, ENDED)) as server, Muster(server.url, token="") as muster:
        found = await muster.wait_all([JOB.job, JOB.job])
        assert list(found) == [JOB.job]
        assert found[JOB.job].finished


async def test_many_jobs_are_followed_at_the_same_time_and_requests_go_on_beside_them() -> None:
    count = 150
    asked = asyncio.Semaphore(0)
    submitted = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            writer.write(answer(202))
            submitted.set()
        else:
            asked.release()
            await submitted.wait()
            writer.write(stream(SUBMITTED, ENDED))
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2 * count)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening, Muster(url, token="") as muster:
        watching = [asyncio.create_task(muster.wait(JOB.job)) for _ in range(count)]
        for _ in range(count):
            await asked.acquire()
        await muster.submit(JOB)
        assert all([(await each).finished for each in watching])


async def test_an_address_that_is_none_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("ftp://x", "x", "http://[::1"):
        with pytest.raises(ClientError):
            Muster(address)
    monkeypatch.setenv("MUSTER_TOKEN_FILE", "/nowhere/token")
    monkeypatch.delenv("MUSTER_TOKEN", raising=False)
    with pytest.raises(ClientError, match="the token cannot be read from /nowhere/token: No such file"):
        Muster("http://127.0.0.1:9")
    monkeypatch.setenv("MUSTER_GATEWAY", "nonsense")
    with pytest.raises(ClientError, match="'nonsense' must begin with http://"):
        Muster()
