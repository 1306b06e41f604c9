"""The agent's side of the protocol, over HTTP. What the messages mean: `muster.agent.protocol`.

Each call is tried once; whoever calls decides whether and when to try again. Nothing here waits without a bound.
"""

import zlib
from collections.abc import Sequence
from typing import Final, TypeVar

import httpx
import msgspec

from muster.agent.protocol import POLL_S, AgentAssignment, Problem, ReportAnswer
from muster.events.codec import encode
from muster.events.levels import NodeReport

REPORT_S: Final = 20
CONNECT_S: Final = 5

Answer = TypeVar("Answer", AgentAssignment, ReportAnswer)


class GatewayAway(Exception):
    """No answer, or one that makes no sense, or that the gateway cannot answer now. `refused`: nobody listens."""

    def __init__(self, sentence: str, refused: bool = False) -> None:
        super().__init__(sentence)
        self.refused = refused


class GatewayRefused(Exception):
    """The gateway says no. `status` is HTTP's; the sentence is the gateway's."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Client:
    """Calls to a gateway about one node: always the same one, until it fails and another one is tried."""

    def __init__(self, gateways: Sequence[str], node: str, token: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        limits = httpx.Limits(max_connections=16, max_keepalive_connections=4)
        self._http = httpx.AsyncClient(headers=headers, limits=limits, trust_env=False)
        self._gateways = tuple(gateways)
        self._at = zlib.crc32(node.encode()) % len(gateways)  # agents begin at different ones
        self._path = f"/v1/nodes/{node}"

    @property
    def gateway(self) -> str:
        """The one that is asked now."""
        return self._gateways[self._at]

    def change(self) -> None:
        """Ask the next one from now on."""
        self._at = (self._at + 1) % len(self._gateways)

    async def report(self, report: NodeReport) -> ReportAnswer:
        """Post the node's level. Raises `GatewayAway`, `GatewayRefused`."""
        response = await self._call("POST", "/reports", REPORT_S, content=encode(report))
        return _decode(response, ReportAnswer)

    async def assignment(self, after: int, uid: str) -> AgentAssignment | None:
        """Wait for something newer than cycle `after`; None when there is nothing. Raises `GatewayAway`, `GatewayRefused`."""
        response = await self._call("GET", "/assignment", POLL_S + 10, params={"after": after, "uid": uid})
        return None if response.status_code == 204 else _decode(response, AgentAssignment)

    async def output(self, wanted: str, offset: int, data: bytes, end: bool) -> None:
        """Send bytes of an output that somebody reads; `end` says that no more will come. Raises as the others."""
        params: dict[str, str | int] = {"offset": offset, "end": "true" if end else "false"}
        await self._call("POST", f"/output/{wanted}", REPORT_S, params=params, content=data, kind="application/octet-stream")

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()

    async def _call(
        self,
        method: str,
        path: str,
        timeout_s: float,
        params: dict[str, str | int] | None = None,
        content: bytes | None = None,
        kind: str = "application/json",
    ) -> httpx.Response:
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
        headers = {"Content-Type": kind} if content is not None else {}
        asked = self._at
        url = self._gateways[asked] + self._path + path
        try:
            response = await self._http.request(method, url, params=params, content=content, headers=headers, timeout=timeout)
        except (httpx.HTTPError, OSError) as error:
            self._leave(asked)
            raise GatewayAway(f"the gateway does not answer: {str(error) or type(error).__name__}", _refused(error)) from error
        if response.is_success:
            return response
        sentence = _sentence(response)
        if response.status_code in (408, 425, 429) or response.status_code >= 500:
            self._leave(asked)
            raise GatewayAway(f"the gateway cannot answer now: {sentence}")
        raise GatewayRefused(response.status_code, sentence)

    def _leave(self, asked: int) -> None:
        """This one failed. Of several calls that fail with it the first changes over."""
        if asked == self._at:
            self.change()


def _refused(error: BaseException | None) -> bool:
    """Whether it comes of a connection that was refused; not of a name that nobody knows, or of silence."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        if isinstance(error, BaseExceptionGroup):  # of all addresses that were tried
            return all(_refused(each) for each in error.exceptions)
        error = error.__cause__ or error.__context__
    return error is not None


def _decode(response: httpx.Response, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.DecodeError as error:
        raise GatewayAway(f"the gateway's answer makes no sense: {error}") from error


def _sentence(response: httpx.Response) -> str:
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except msgspec.DecodeError:
        return f"{response.status_code} {response.reason_phrase}"
    return problem.detail or problem.title or f"{response.status_code} {response.reason_phrase}"
