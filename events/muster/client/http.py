"""By a gateway: what a client says becomes a request, and a job is followed by server-sent events.

A request is repeated while the gateway is away or has too much to do, as long as the client is patient: each carries an id
of its own making, or says the same however often it is said.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, NoReturn
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from muster.client.channel import Reported
from muster.client.errors import ClientError, NotKnown, Refused, Unavailable
from muster.client.life import Entry, Life, Outcome
from muster.events.catalogue import CatalogueSet
from muster.events.cloudevents import Input
from muster.events.codec import UnknownKind, decode_entry, encode
from muster.events.jobs import JobCancelRequested, JobCheckpointed, JobReprioritised, JobResizeRequested, JobRevised, JobSubmitted
from muster.events.levels import NodeReport
from muster.events.nodes import NodeRemoved
from muster.events.operations import LicencesSet, NodeCordoned, NodeDrained, NodeFenced, NodeUncordoned, PolicySet
from muster.events.registry import KINDS, VERSIONS
from muster.events.reservations import ReservationRemoved, ReservationSet
from muster.events.services import JobMetricReported, JobScaleRequested

LOCAL: Final = ("127.0.0.1", "localhost", "::1")
"""No proxy leads to these."""
AGAIN: Final = (408, 425, 429, 502, 503, 504)
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
ANSWER_S: Final = 60.0
"""A gateway answers a submission when it is durable, and itself gives up after 30 s."""
CONNECT_S: Final = 5.0
QUIET_S: Final = 45.0
"""A stream says every 15 s that it lives."""
LIVED_S: Final = 1.0
"""A stream that lived so long was one: when it breaks, patience begins anew."""
REQUESTS_MAX: Final = 100
"""So many requests at a time; more wait for these."""
STREAMS_MAX: Final = 1000
"""So many jobs are followed at a time; more wait for these."""
WAITED_MAX: Final = 500
"""So many jobs are waited for at a time by one call."""
RESERVED: Final = ("nodes", "count", "gpus", "queue", "user", "job", "windows", "every", "zone", "tzdata")
VERBS: Final[dict[type[Input], str]] = {
    NodeCordoned: "cordon",
    NodeUncordoned: "uncordon",
    NodeDrained: "drain",
    NodeFenced: "fence",
    NodeRemoved: "remove",
}


class _Accepted(msgspec.Struct, frozen=True):
    cycle: int = 0


class _Became(msgspec.Struct, frozen=True):
    state: str = "recorded"
    reason: str = ""


class _Told(msgspec.Struct, frozen=True):
    cycle: int
    at_us: int
    kind: str
    body: msgspec.Raw


class _Problem(msgspec.Struct, frozen=True):
    title: str = ""
    detail: str = ""


class HttpChannel:
    """See `muster.client.channel.Channel`."""

    def __init__(self, url: str, token: str, patience_s: float) -> None:
        self._url = url.rstrip("/")
        self._patience_s = patience_s
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            local = urlsplit(self._url).hostname in LOCAL
            self._http = httpx.AsyncClient(
                base_url=f"{self._url}/v1",
                headers=headers,
                timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S, pool=None),
                limits=httpx.Limits(max_connections=REQUESTS_MAX),
                trust_env=not local,
            )
            self._streams = httpx.AsyncClient(
                base_url=f"{self._url}/v1",
                headers=headers,
                timeout=httpx.Timeout(QUIET_S, connect=CONNECT_S, pool=None),
                limits=httpx.Limits(max_connections=STREAMS_MAX),
                trust_env=not local,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise ClientError(f"{self._url[:200]!r} is no address of a gateway such as http://127.0.0.1:8470: {error}") from None

    async def open(self) -> None:
        """See `Channel`. Each request connects by itself."""

    async def put(self, topic: str, event: Input) -> int:
        """See `Channel`."""
        if isinstance(event, JobSubmitted):
            answer = await self._post("/jobs", encode(event))
        elif isinstance(event, JobCancelRequested):
            answer = await self._post(f"/jobs/{_part(event.job)}/cancel", msgspec.json.encode({"instance": event.instance}))
        elif isinstance(event, JobReprioritised):
            answer = await self._post(f"/jobs/{_part(event.job)}/priority", msgspec.json.encode({"priority": event.priority}))
        elif isinstance(event, JobScaleRequested):
            answer = await self._post(f"/jobs/{_part(event.job)}/scale", msgspec.json.encode({"replicas": event.replicas}))
        elif isinstance(event, JobMetricReported):
            said = {"value_milli": event.value_milli, "metric": event.metric}
            answer = await self._post(f"/jobs/{_part(event.job)}/metric", msgspec.json.encode(said))
        elif isinstance(event, JobRevised):
            wanted = {"request": event.request, "run": event.run, "follows": event.follows}
            answer = await self._send("PUT", f"/jobs/{_part(event.job)}", content=msgspec.json.encode(wanted))
        elif isinstance(event, JobResizeRequested):
            answer = await self._post(f"/jobs/{_part(event.job)}/resize", msgspec.json.encode({"count": event.count}))
        elif isinstance(event, JobCheckpointed):
            answer = await self._post(f"/jobs/{_part(event.job)}/checkpoint", msgspec.json.encode({"instance": event.instance}))
        elif isinstance(event, PolicySet):
            answer = await self._send("PUT", "/policy", content=encode(event.policy))
        elif isinstance(event, LicencesSet):
            answer = await self._send("PUT", "/licences", content=msgspec.json.encode({"licences": event.licences}))
        elif isinstance(event, CatalogueSet):
            answer = await self._send("PUT", "/catalogue", content=msgspec.json.encode({"models": event.models}))
        elif isinstance(event, ReservationSet):
            said = {name: value for name, value in msgspec.to_builtins(event).items() if name in RESERVED}
            answer = await self._send("PUT", f"/reservations/{_part(event.reservation)}", content=msgspec.json.encode(said))
        elif isinstance(event, ReservationRemoved):
            answer = await self._send("DELETE", f"/reservations/{_part(event.reservation)}")
        elif (verb := VERBS.get(type(event))) is not None:
            answer = await self._post(f"/nodes/{_part(event.node)}/{verb}", b"")  # type: ignore[union-attr]
        else:
            raise ClientError(
                f"a gateway takes no {type(event).__name__}: it goes by {topic}, to an address such as kafka://HOST"
            )
        accepted: _Accepted = self._decode(answer, _Accepted)
        return accepted.cycle

    async def report(self, report: NodeReport) -> Reported:
        """See `Channel`."""
        answer = await self._post(f"/nodes/{_part(report.node)}/reports", encode(report))
        answered: Reported = self._decode(answer, Reported)
        return answered

    async def follow(self, job: str) -> AsyncGenerator[Entry, None]:
        """See `Channel`. A stream that breaks off is asked to go on behind the last entry that came."""
        path = f"/jobs/{_part(job)}/events"
        place = ""
        until = _now() + self._patience_s
        pause_s = PAUSE_S
        while True:
            headers = {"Last-Event-ID": place} if place else {}
            wait_s = pause_s
            begun = _now()
            try:
                async with self._streams.stream("GET", path, headers=headers) as response:
                    if response.status_code >= 400:
                        await response.aread()
                        wait_s = await self._why(job, response, until, pause_s)
                    else:
                        async for id, data in _sent(response):
                            if data:
                                yield self._entry(data)
                                place = id
                            if data or _now() - begun > LIVED_S:
                                until = _now() + self._patience_s
                                pause_s = wait_s = PAUSE_S
                        if _now() + wait_s > until:
                            raise Unavailable(f"the gateway at {self._url} ends each stream about the job {job[:64]!r} at once")
            except httpx.TransportError as error:
                if _now() + wait_s > until:
                    raise self._away(error) from None
            await asyncio.sleep(wait_s)
            pause_s = min(PAUSE_MAX_S, pause_s * 2)

    async def outcomes(self, jobs: Sequence[str]) -> dict[str, Outcome]:
        """See `Channel`. Each job has a stream; of many, some at a time."""
        room = asyncio.Semaphore(WAITED_MAX)
        found: dict[str, Outcome] = {}

        async def end(job: str) -> None:
            async with room:
                life = Life(job)
                async with aclosing(self.follow(job)) as entries:
                    async for entry in entries:
                        life.take(entry)
                        if life.over:
                            break
                found[job] = life.outcome()

        tasks = [asyncio.ensure_future(end(job)) for job in dict.fromkeys(jobs)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return {job: found[job] for job in dict.fromkeys(jobs)}

    async def close(self) -> None:
        """See `Channel`."""
        await self._http.aclose()
        await self._streams.aclose()

    async def _why(self, job: str, response: httpx.Response, until: float, pause_s: float) -> float:
        """How long to wait before a stream is asked for again.

        Raises:
            ClientError: that makes no sense, or nobody is so patient.
        """
        if response.status_code == 404:
            became = await self._http.get(f"/submissions/{_part(job)}")
            if became.status_code == 200 and (found := self._decode(became, _Became)).state == "refused":
                raise Refused(found.reason)
        if response.status_code not in AGAIN or _now() + pause_s > until:
            self._fail(response)
        return _asked(response, pause_s, until)

    async def _post(self, path: str, body: bytes) -> httpx.Response:
        return await self._send("POST", path, content=body, headers={"Content-Type": "application/json"} if body else {})

    async def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Ask until there is an answer."""
        until = _now() + self._patience_s
        pause_s = PAUSE_S
        while True:
            wait_s = pause_s
            try:
                response = await self._http.request(method, path, **request)
            except httpx.TransportError as error:
                if _now() + pause_s > until:
                    raise self._away(error) from None
            except (httpx.InvalidURL, UnicodeError) as error:
                raise ClientError(f"{self._url[:200]!r} is no address of a gateway: {error}") from None
            else:
                if response.is_success:
                    return response
                if response.status_code not in AGAIN or _now() + pause_s > until:
                    self._fail(response)
                wait_s = _asked(response, pause_s, until)
            await asyncio.sleep(wait_s)
            pause_s = min(PAUSE_MAX_S, pause_s * 2)

    def _entry(self, data: bytes) -> Entry:
        try:
            told = msgspec.json.decode(data, type=_Told)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unavailable(f"what answers at {self._url} is no gateway of this version: {error}") from None
        if told.kind not in KINDS:
            raise ClientError(
                f"the gateway at {self._url} tells of {told.kind[:64]!r}, which is newer than this client: upgrade it"
            )
        try:
            event = decode_entry(b'["%b",%d,%b]' % (told.kind.encode(), VERSIONS[told.kind], bytes(told.body)))
        except UnknownKind as error:
            raise ClientError(str(error)) from None
        return Entry(cycle=told.cycle, at_us=told.at_us, event=event)

    def _decode(self, response: httpx.Response, kind: type[Any]) -> Any:
        try:
            return msgspec.json.decode(response.content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unavailable(f"what answers at {self._url} is no gateway of this version: {error}") from None

    def _away(self, error: Exception) -> Unavailable:
        return Unavailable(f"no gateway answers at {self._url}: {str(error) or type(error).__name__}")

    def _fail(self, response: httpx.Response) -> NoReturn:
        try:
            problem = msgspec.json.decode(response.content, type=_Problem)
        except (msgspec.DecodeError, UnicodeDecodeError):
            problem = _Problem()
        sentence = problem.detail or problem.title or f"the gateway answered {response.status_code} {response.reason_phrase}"
        if response.status_code in AGAIN or response.status_code >= 500:
            raise Unavailable(sentence)
        raise (NotKnown if response.status_code == 404 else Refused)(sentence)


async def _sent(response: httpx.Response) -> AsyncGenerator[tuple[str, bytes], None]:
    """Id and data of each whole event of a stream; without data where it says no more than that it lives."""
    id, data = "", b""
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            id = line[4:]
        elif line.startswith("data: "):
            data = line[6:].encode()
        elif not line and data:
            yield id, data
            data = b""
        elif line.startswith(":"):
            yield "", b""


def _asked(response: httpx.Response, pause_s: float, until: float) -> float:
    """How long the gateway asks to be left alone, within our patience."""
    after = response.headers.get("retry-after", "")
    return min(float(after), max(0.0, until - _now())) if after.isdigit() else pause_s


def _now() -> float:
    return asyncio.get_running_loop().time()


def _part(text: str) -> str:
    """A name as one part of a path."""
    return quote(text, safe="") or "%20"
