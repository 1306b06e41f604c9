"""What a client says of a gateway that does not answer: whether nobody listens there, so that asking again costs nothing."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from muster.agent.client import Client, GatewayAway


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


async def away(gateway: str) -> GatewayAway:
    """How asking it ends."""
    client = Client([gateway], "n1")
    try:
        with pytest.raises(GatewayAway) as raised:
            await client.assignment(0, "uid")
    finally:
        await client.close()
    return raised.value


async def test_where_nobody_listens_the_connection_is_refused(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    for host in ("127.0.0.1", "localhost"):
        assert (await away(f"http://{host}:{port}")).refused


async def test_a_name_that_nobody_knows_is_no_refusal() -> None:
    found = await away("http://no-such-host.invalid:8470")
    assert not found.refused
    assert "the gateway does not answer" in str(found)


async def test_a_gateway_that_hangs_up_listens(listener: socket.socket) -> None:
    async def hang_up() -> None:
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        connection.close()

    listener.setblocking(False)
    waiting = asyncio.create_task(hang_up())
    assert not (await away(f"http://127.0.0.1:{listener.getsockname()[1]}")).refused
    await waiting
