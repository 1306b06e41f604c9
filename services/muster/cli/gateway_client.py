"""The gateway as commands speak to it: its routes as functions, its answers as the types that it shows.

Where it is stands in MUSTER_GATEWAY (else http://127.0.0.1:8470), the token in MUSTER_TOKEN or in the file that
MUSTER_TOKEN_FILE names (else the running job's own, else `token` in Muster's configuration folder). What is safe to repeat is
repeated while the gateway is away or has too much to do; a submission too, because it carries its id: it is never taken twice.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import msgspec
import platformdirs
import typer

from muster.agent import credentials
from muster.cli.output import USAGE, Failure
from muster.events.catalogue import DeviceModel
from muster.events.jobs import JobRequest, JobRun, JobSubmitted
from muster.events.operations import Policy
from muster.events.queues import QueueSet
from muster.gateway.reserved import ReservationList
from muster.gateway.shown import CellShown, ElementList, JobLine, JobList, JobRow, JobShown, NodeList, NodeShown, QueueList

if TYPE_CHECKING:
    from muster.engine.eta import Eta
    from muster.engine.explain import Explanation
    from muster.engine.whynot import WhyNot

UNREACHABLE = 4
"""The gateway does not answer."""
REFUSED = 5
"""The gateway does not allow it."""

USUAL = "http://127.0.0.1:8470"
LOCAL = ("127.0.0.1", "localhost", "::1")
"""No proxy leads to these."""
AGAIN_STATUS = (429, 502, 503, 504)
AGAIN_S = 0.1
AGAIN_MAX_S = 2.0
ANSWER_S = 60.0
"""A submission is answered when it is durable; the gateway itself gives up after 30 s."""
BATCH = 200
BATCH_BYTES = 4 * 1024 * 1024
PAGE = 10_000
IDS = 500

Where = Annotated[
    str,
    typer.Option(
        "--gateway", envvar="MUSTER_GATEWAY", metavar="URL", help="The gateway.", show_default=USUAL, rich_help_panel="Gateway"
    ),
]
Answer = TypeVar("Answer")


class Accepted(msgspec.Struct, frozen=True):
    """It is recorded, in this cycle or one before it."""

    cycle: int = 0


class Models(msgspec.Struct, frozen=True):
    """The device catalogue."""

    models: tuple[DeviceModel, ...]


class Submission(msgspec.Struct, frozen=True):
    """What became of one submission."""

    job: str
    cycle: int = 0
    """0 where it is on the bus and waits to be recorded."""
    state: str = "recorded"
    reason: str = ""


class Told(msgspec.Struct, frozen=True):
    """One entry of the log, as the gateway tells it."""

    cycle: int
    at_us: int
    side: str
    kind: str
    body: msgspec.Raw


class _Problem(msgspec.Struct, frozen=True):
    title: str = ""
    detail: str = ""


class Unavailable(Failure):
    """The gateway does not answer, or has too much to do."""


class Gateway:
    """One gateway. Every function raises `Failure`: it is not there (4), does not allow it (5), or knows no such thing (2)."""

    def __init__(self, url: str = "", token: str | None = None, patience_s: float = 10.0) -> None:
        """`patience_s`: so long what may be repeated is repeated."""
        self.url = (url or os.environ.get("MUSTER_GATEWAY") or USUAL).rstrip("/")
        self.patience_s = patience_s
        token = find_token(self.url) if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            local = urlsplit(self.url).hostname in LOCAL
            limit = httpx.Timeout(ANSWER_S, connect=5.0)
            self._http = httpx.Client(base_url=f"{self.url}/v1", headers=headers, timeout=limit, trust_env=not local)
        except (httpx.InvalidURL, ValueError) as error:
            raise Failure(f"{self.url!r} is no address of a gateway such as {USUAL}: {error}") from None

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    def cell(self) -> CellShown:
        """Where the cell stands."""
        return self._get("/state", CellShown)

    def jobs(self, at: int = 0, **filters: str) -> JobList:
        """Every job that fits `id`, `state`, `user`, `queue` and `name`, where these are not empty."""
        rows: list[JobRow] = []
        wanted = {name: value for name, value in filters.items() if value}
        while True:
            after = {"after": rows[-1].job} if rows else {}
            page = self._get("/jobs", JobList, {**wanted, **_at(at), **after, "limit": PAGE})
            rows.extend(page.jobs)
            if not page.more or not page.jobs:
                return JobList(cycle=page.cycle, at_us=page.at_us, jobs=tuple(rows), more=False)
            at = at or page.cycle

    def elements(self, over: bool = False, **filters: str) -> ElementList:
        """Every job that fits `id` (ids with commas), `user`, `queue` and `name`, with its instances; those over if asked."""
        lines: list[JobLine] = []
        wanted = {name: value for name, value in filters.items() if value} | {"over": str(over).lower()}
        at = 0
        while True:
            after = {"after": lines[-1].job.job} if lines else {}
            page = self._get("/elements", ElementList, {**wanted, **_at(at), **after})
            lines.extend(page.jobs)
            if not page.more or not page.jobs:
                return ElementList(cycle=page.cycle, at_us=page.at_us, jobs=tuple(lines), more=False)
            at = at or page.cycle

    def some(self, jobs: Sequence[str]) -> dict[str, JobRow]:
        """These jobs, by id; those that are not known are left out."""
        found: dict[str, JobRow] = {}
        for first in range(0, len(jobs), IDS):
            page = self._get("/jobs", JobList, {"id": ",".join(jobs[first : first + IDS]), "limit": IDS})
            found.update({row.job: row for row in page.jobs})
        return found

    def job(self, job: str, at: int = 0) -> JobShown:
        """One job, by its id."""
        return self._get(f"/jobs/{_part(job)}", JobShown, _at(at))

    def find(self, text: str, at: int = 0) -> str:
        """The id of the job meant: its id, the beginning of it, or its name (of several the one submitted last)."""
        if len(text) == 36:
            return text
        rows = self.jobs(at).jobs
        named = [row for row in rows if row.name == text or row.job == text]
        if named:
            return named[-1].job
        fitting = sorted(row.job for row in rows if row.job.startswith(text))
        if len(fitting) > 1:
            raise Failure(
                f"{len(fitting)} jobs have ids that begin with {text!r}, such as {fitting[0]} and {fitting[1]}: give more of it"
            )
        if not fitting:
            raise Failure(f"no job has {text!r} as its id, the beginning of it or its name: `muster jobs` lists them")
        return fitting[0]

    def explain(self, job: str, instance: int = 0, at: int = 0) -> "Explanation":
        """Why it waits, or where it is."""
        from muster.engine.explain import Explanation  # it loads NumPy, which no other command needs

        return self._get(f"/jobs/{_part(job)}/explain", Explanation, {"instance": instance, "advise": "true", **_at(at)})

    def why_not(self, job: str, node: str, instance: int = 0, at: int = 0) -> "WhyNot":
        """What keeps it off this node."""
        from muster.engine.whynot import WhyNot  # it loads NumPy, which no other command needs

        return self._get(f"/jobs/{_part(job)}/why-not/{_part(node)}", WhyNot, {"instance": instance, **_at(at)})

    def eta(self, job: str, instance: int = 0, at: int = 0) -> "Eta":
        """When it is to start."""
        from muster.engine.eta import Eta  # it loads NumPy, which no other command needs

        return self._get(f"/jobs/{_part(job)}/eta", Eta, {"instance": instance, **_at(at)})

    def nodes(self, at: int = 0) -> NodeList:
        """All nodes."""
        return self._get("/nodes", NodeList, _at(at))

    def queues(self, at: int = 0) -> QueueList:
        """All queues."""
        return self._get("/queues", QueueList, _at(at))

    def reservations(self, at: int = 0) -> ReservationList:
        """All reservations that are not over."""
        return self._get("/reservations", ReservationList, _at(at))

    def reserve(self, name: str, said: Mapping[str, Any]) -> Accepted:
        """Reserve: the fields are those of the gateway's document."""
        headers = {"Content-Type": "application/json"}
        return self._send("PUT", f"/reservations/{_part(name)}", Accepted, content=msgspec.json.encode(said), headers=headers)

    def unreserve(self, name: str) -> Accepted:
        """Remove a reservation."""
        return self._send("DELETE", f"/reservations/{_part(name)}", Accepted)

    def set_queue(self, event: QueueSet) -> Accepted:
        """Make or change a queue."""
        said = {name: value for name, value in msgspec.to_builtins(event).items() if name not in ("queue", "by")}
        headers = {"Content-Type": "application/json"}
        return self._send("PUT", f"/queues/{_part(event.queue)}", Accepted, content=msgspec.json.encode(said), headers=headers)

    def remove_queue(self, name: str) -> Accepted:
        """Close a queue."""
        return self._send("DELETE", f"/queues/{_part(name)}", Accepted)

    def set_policy(self, policy: Policy) -> Accepted:
        """Decide by it from the next cycle on."""
        headers = {"Content-Type": "application/json"}
        return self._send("PUT", "/policy", Accepted, content=msgspec.json.encode(policy), headers=headers)

    def catalogue(self) -> tuple[DeviceModel, ...]:
        """The models of GPU that the cell knows."""
        return self._get("/catalogue", Models).models

    def set_catalogue(self, models: tuple[DeviceModel, ...]) -> Accepted:
        """From here on it knows these."""
        headers = {"Content-Type": "application/json"}
        return self._send("PUT", "/catalogue", Accepted, content=msgspec.json.encode({"models": models}), headers=headers)

    def node(self, name: str, at: int = 0) -> NodeShown:
        """One node."""
        return self._get(f"/nodes/{_part(name)}", NodeShown, _at(at))

    def operate(self, node: str, verb: str) -> Accepted:
        """`cordon`, `uncordon`, `drain` or `fence` a node."""
        return self._post(f"/nodes/{_part(node)}/{verb}", b"", Accepted)

    def cancel(self, job: str, instance: int | None = None) -> Accepted:
        """End a job, or one instance of it."""
        return self._post(f"/jobs/{_part(job)}/cancel", msgspec.json.encode({"instance": instance}), Accepted)

    def reprioritise(self, job: str, priority: int) -> Accepted:
        """Give a job another priority."""
        return self._post(f"/jobs/{_part(job)}/priority", msgspec.json.encode({"priority": priority}), Accepted)

    def scale(self, job: str, replicas: int) -> Accepted:
        """Give a service so many replicas."""
        return self._post(f"/jobs/{_part(job)}/scale", msgspec.json.encode({"replicas": replicas}), Accepted)

    def revise(self, job: str, request: JobRequest, run: JobRun) -> Accepted:
        """Make a service another."""
        headers = {"Content-Type": "application/json"}
        body = msgspec.json.encode({"request": request, "run": run})
        return self._send("PUT", f"/jobs/{_part(job)}", Accepted, content=body, headers=headers)

    def rollback(self, job: str) -> Accepted:
        """Make a service what it was before."""
        return self._post(f"/jobs/{_part(job)}/rollback", b"", Accepted)

    def metric(self, job: str, value_milli: int, name: str = "") -> Accepted:
        """Say what the metric of a service is."""
        body = msgspec.json.encode({"value_milli": value_milli, "metric": name})
        return self._post(f"/jobs/{_part(job)}/metric", body, Accepted)

    def resize(self, job: str, count: int) -> Accepted:
        """Give a gang so many tasks."""
        return self._post(f"/jobs/{_part(job)}/resize", msgspec.json.encode({"count": count}), Accepted)

    def checkpoint(self, job: str, instance: int | None = None) -> Accepted:
        """Say that a job, or one instance of it, saved its work."""
        return self._post(f"/jobs/{_part(job)}/checkpoint", msgspec.json.encode({"instance": instance}), Accepted)

    def submit(self, jobs: Sequence[JobSubmitted]) -> Iterator[Submission]:
        """Submit jobs in their order; each is yielded when it is durable, or refused.

        Raises:
            Failure: the gateway takes none; what was yielded before is taken.
        """
        if len(jobs) == 1:
            yield self._post("/jobs", msgspec.json.encode(jobs[0]), Submission)
            return
        for bodies in _batches(jobs):
            yield from self._post("/submissions", b"[" + b",".join(bodies) + b"]", list[Submission])

    def submission(self, job: str) -> Submission:
        """What became of a submission."""
        return self._get(f"/submissions/{_part(job)}", Submission)

    def events(self, job: str = "", start: int = 0, until: int = 0) -> Iterator[Told]:
        """What is recorded about a job, or all entries of these cycles (0: none is the last), as it happens."""
        path = f"/jobs/{_part(job)}/events" if job else "/log"
        for line in self._lines(path, {} if job else {"from": start, "until": until}):
            if line.startswith("data:"):
                yield self._decode(line[5:].encode(), Told)

    def output(self, job: str, **what: str | int | bool) -> Iterator[bytes]:
        """The output of a task as it comes. `what`: rank, instance, attempt, stream, follow."""
        asked = {name: str(value).lower() if isinstance(value, bool) else value for name, value in what.items()}
        limit = httpx.Timeout(None if what.get("follow") else ANSWER_S, connect=5.0)
        try:
            with self._http.stream("GET", f"/jobs/{_part(job)}/output", params=asked, timeout=limit) as response:
                if response.status_code >= 400:
                    response.read()
                    self._fail(response)
                yield from response.iter_raw()
        except httpx.TransportError as error:
            raise self._away(error) from None

    def _get(self, path: str, kind: type[Answer], params: Mapping[str, str | int] | None = None) -> Answer:
        return self._send("GET", path, kind, params=params)

    def _post(self, path: str, body: bytes, kind: type[Answer]) -> Answer:
        headers = {"Content-Type": "application/json"} if body else {}
        return self._send("POST", path, kind, content=body, headers=headers)

    def _send(self, method: str, path: str, kind: type[Answer], **request: Any) -> Answer:
        """Ask until there is an answer: all of our requests may be repeated."""
        until = time.monotonic() + self.patience_s
        pause_s = AGAIN_S
        while True:
            wait_s = pause_s
            try:
                response = self._http.request(method, path, **request)
            except httpx.TransportError as error:
                if time.monotonic() + pause_s > until:
                    raise self._away(error) from None
            except httpx.InvalidURL as error:
                raise Failure(f"{self.url!r} is no address of a gateway such as {USUAL}: {error}") from None
            else:
                if response.status_code not in AGAIN_STATUS or time.monotonic() + pause_s > until:
                    if response.status_code >= 400:
                        self._fail(response)
                    return self._decode(response.content, kind)
                after = response.headers.get("retry-after", "")
                wait_s = min(float(after), max(0.0, until - time.monotonic())) if after.isdigit() else pause_s
            time.sleep(wait_s)
            pause_s = min(AGAIN_MAX_S, pause_s * 2)

    def _lines(self, path: str, params: Mapping[str, str | int]) -> Iterator[str]:
        try:
            with self._http.stream("GET", path, params=params, timeout=httpx.Timeout(None, connect=5.0)) as response:
                if response.status_code >= 400:
                    response.read()
                    self._fail(response)
                yield from response.iter_lines()
        except httpx.TransportError as error:
            raise self._away(error) from None

    def _decode(self, data: bytes, kind: type[Answer]) -> Answer:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unavailable(f"what answers at {self.url} is no gateway of this build: {error}", UNREACHABLE) from None

    def _away(self, error: Exception) -> Unavailable:
        why = str(error) or type(error).__name__
        return Unavailable(
            f"no gateway answers at {self.url} ({why}): `muster up` runs one, MUSTER_GATEWAY says where", UNREACHABLE
        )

    def _fail(self, response: httpx.Response) -> None:
        try:
            problem = msgspec.json.decode(response.content, type=_Problem)
        except (msgspec.DecodeError, UnicodeDecodeError):
            problem = _Problem()
        sentence = problem.detail or problem.title or f"the gateway answered {response.status_code} {response.reason_phrase}"
        if response.status_code in AGAIN_STATUS:
            raise Unavailable(sentence, UNREACHABLE)
        if response.status_code >= 500:
            raise Failure(sentence, UNREACHABLE)
        raise Failure(sentence, REFUSED if response.status_code in (401, 403) else USAGE)


def find_token(url: str) -> str:
    """The token of this user, or of the job in which this runs, for the gateway there; empty where there is none.

    Raises:
        Failure: the file that MUSTER_TOKEN_FILE names cannot be read.
    """
    told = told_token()
    if told is not None:
        return told
    job = credentials.read()
    if job is not None and job.gateway.rstrip("/") == url:
        return job.token
    try:
        return (platformdirs.user_config_path("muster") / "token").read_text().strip()
    except OSError:
        return ""


def told_token() -> str | None:
    """The token in MUSTER_TOKEN, or in the file that MUSTER_TOKEN_FILE names; None where neither is set.

    Raises:
        Failure: the file cannot be read.
    """
    if token := os.environ.get("MUSTER_TOKEN"):
        return token.strip()
    named = os.environ.get("MUSTER_TOKEN_FILE")
    if not named:
        return None
    try:
        return Path(named).read_text().strip()
    except OSError as error:
        raise Failure(f"the token cannot be read from {named}: {error.strerror}") from None


def exit_status(row: JobRow) -> int:
    """What a job that is over makes of a command that waited for it.

    0 if it finished; else its exit status, 128 + n where signal n ended it, and 1 where there is none: it was cancelled,
    rejected, or failed by no doing of its own.
    """
    if row.state == "finished":
        return 0
    if row.state != "failed":
        return 1
    return 128 - row.code if row.code < 0 else min(row.code, 255) or 1


def _batches(jobs: Sequence[JobSubmitted]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for job in jobs:
        body = msgspec.json.encode(job)
        if batch and (len(batch) == BATCH or size + len(body) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch


def _at(cycle: int) -> dict[str, int]:
    return {"at": cycle} if cycle else {}


def _part(text: str) -> str:
    """A name as one part of a path."""
    return quote(text, safe="") or "%20"
