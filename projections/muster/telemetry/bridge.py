"""The bridge: pages of DCGM's exporter, read every few seconds, become samples on `muster.telemetry`.

A page names GPUs and a machine; a sample names a node and its uid, which only the cell knows: `Identify` asks it. A source that
is away, or tells nonsense, is said once and tried again; the others go on. A page of which some devices are unknown is told
without them.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import httpx

from muster.events.telemetry import SAMPLES_MAX, GpuSample, GpusSampled
from muster.log.errors import OperatingError
from muster.telemetry.dcgm import PAGE_MAX_BYTES, samples

FETCH_S: Final = 10.0
SOURCES_MAX: Final = 4096

logger = logging.getLogger(__name__)

Put = Callable[[GpusSampled], Awaitable[None]]
Identify = Callable[[str, Sequence[str]], Awaitable[dict[str, tuple[str, str, str]]]]
"""From the name of a machine and the uuids of its GPUs to the node, its uid and its boot, of each GPU that is known."""


class SourceAway(OperatingError):
    """A source does not answer, or not with a page."""


class Bridge:
    """Some sources, and where their samples go."""

    def __init__(
        self, sources: Sequence[str], put: Put, identify: Identify, *, host: str = "", host_label: str = "Hostname"
    ) -> None:
        """
        Args:
            sources: addresses, http://HOST:9400/metrics, or files.
            put: hands samples on.
            identify: finds out whose GPUs they are.
            host: what the machine is called, where pages do not say.
            host_label: the label by which they do.
        """
        self._sources = sources
        self._put = put
        self._identify = identify
        self._host = host
        self._host_label = host_label
        self._said: dict[str, str] = {}
        self.sent = 0
        """Samples that were handed on."""

    async def run(self, every_s: float, stop: asyncio.Event) -> None:
        """Read all sources every so often, until told to stop."""
        async with self._client() as client:
            while not stop.is_set():
                began = time.monotonic()
                await asyncio.gather(*(self._read(client, source) for source in self._sources))
                left_s = every_s - (time.monotonic() - began)
                try:
                    async with asyncio.timeout(max(0.05, left_s)):
                        await stop.wait()
                except TimeoutError:
                    continue

    async def once(self) -> bool:
        """Read all sources once. Whether all of them could be read."""
        async with self._client() as client:
            return all(await asyncio.gather(*(self._read(client, source) for source in self._sources)))

    async def _read(self, client: httpx.AsyncClient, source: str) -> bool:
        try:
            page = await _page(client, source)
            await self._tell(source, page, time.time_ns() // 1000)
        except OperatingError as error:
            self._say(source, f"{source}: {error}")
            return False
        self._say(source, "")
        return True

    async def _tell(self, source: str, page: str, at_us: int) -> None:
        """Hand on what a page tells."""
        hosts: dict[str, list[GpuSample]] = {}
        for measured in samples(page, at_us, self._host_label):
            hosts.setdefault(self._host or measured.host, []).append(measured.sample)
        for host, found in hosts.items():
            known = await self._identify(host, [sample.device for sample in found])
            unknown = [sample.device for sample in found if sample.device not in known]
            what = f"{source}: the cell knows no node {host[:63]!r} with {', '.join(unknown[:4])}" if unknown else ""
            self._say(f"{source} {host}", what)
            nodes: dict[tuple[str, str, str], list[GpuSample]] = {}
            for sample in found:
                if sample.device in known:
                    nodes.setdefault(known[sample.device], []).append(sample)
            for (node, uid, boot), theirs in nodes.items():
                for first in range(0, len(theirs), SAMPLES_MAX):
                    some = tuple(theirs[first : first + SAMPLES_MAX])
                    await self._put(GpusSampled(node=node, uid=uid, boot=boot, samples=some))
                    self.sent += len(some)

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=FETCH_S, trust_env=False, follow_redirects=True)

    def _say(self, about: str, sentence: str) -> None:
        """Say it once, until something else is to be said about the same."""
        if self._said.get(about, "") != sentence:
            self._said[about] = sentence
            logger.warning("%s", sentence or f"{about}: all is well again")


async def _page(client: httpx.AsyncClient, source: str) -> str:
    """The text of a source.

    Raises:
        SourceAway: it does not answer, or with something else, or with too much.
    """
    if not source.startswith(("http://", "https://")):
        try:
            data = await asyncio.to_thread(Path(source).read_bytes)
        except OSError as error:
            raise SourceAway(f"cannot be read: {error.strerror or error}") from None
    else:
        data = b""
        try:
            async with client.stream("GET", source) as response:
                if response.status_code != 200:
                    raise SourceAway(f"answers with status {response.status_code}")
                async for part in response.aiter_bytes():
                    data += part
                    if len(data) > PAGE_MAX_BYTES:
                        break
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SourceAway(f"does not answer: {error or type(error).__name__}") from None
    if len(data) > PAGE_MAX_BYTES:
        raise SourceAway(f"tells more than {PAGE_MAX_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SourceAway("tells no UTF-8") from None
