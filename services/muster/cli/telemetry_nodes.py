"""Whose GPUs a page of DCGM's exporter tells of: the gateway is asked, and what it said is believed for a minute."""

import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import httpx
import msgspec

from muster.telemetry.bridge import SourceAway

BELIEVED_S: Final = 60.0
ASK_S: Final = 10.0


class _Device(msgspec.Struct):
    uuid: str


class _Node(msgspec.Struct):
    uid: str
    boot: str
    devices: list[_Device]


class Nodes:
    """The nodes that a gateway knows; or one, where its name and uid were said."""

    def __init__(self, gateway: str, token: str, node: str = "", uid: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(base_url=f"{gateway.rstrip('/')}/v1", headers=headers, timeout=ASK_S, trust_env=False)
        self._gateway = gateway
        self._node = node
        self._uid = uid
        self._known: dict[str, tuple[float, _Node | None]] = {}

    async def identify(self, host: str, devices: Sequence[str]) -> dict[str, tuple[str, str, str]]:
        """Of each device that is known, its node, and that one's uid and boot.

        Raises:
            SourceAway: the gateway cannot be asked.
        """
        if self._uid:
            return dict.fromkeys(devices, (self._node, self._uid, ""))
        name = (self._node or host).lower()
        node = await self._find(name) or (await self._find(name.partition(".")[0]) if "." in name else None)
        if node is None:
            return {}
        theirs = {device.uuid for device in node.devices}
        name = name if self._known.get(name, (0.0, None))[1] is node else name.partition(".")[0]
        return {device: (name, node.uid, node.boot) for device in devices if device in theirs}

    async def close(self) -> None:
        """Let go of the connection."""
        await self._http.aclose()

    async def _find(self, name: str) -> _Node | None:
        if not name:
            return None
        asked_s, node = self._known.get(name, (0.0, None))
        if node is not None and time.monotonic() - asked_s < BELIEVED_S:
            return node
        try:
            response = await self._http.get(f"/nodes/{quote(name, safe='')}")
            if response.status_code == 404:
                found = None
            elif response.status_code == 200:
                found = msgspec.json.decode(response.content, type=_Node)
            else:
                raise SourceAway(f"the gateway {self._gateway} answers with status {response.status_code} when asked for a node")
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError) as error:
            why = str(error) or type(error).__name__
            raise SourceAway(f"the gateway {self._gateway} does not say whose GPUs they are: {why}") from None
        self._known[name] = time.monotonic(), found
        return found
