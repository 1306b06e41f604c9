"""A request on the short way is gone when it is answered: they come by thousands, and the collector of garbage looks seldom."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from muster.gateway.direct import Answer
from muster.gateway.guard import Caller
from muster.gateway.wire import Short


class Seen(Short):
    """One that can be watched."""


class Wire:
    """What a request needs of its connection."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.sent: list[Answer] = []

    def send(self, found: Answer, keep_alive: bool) -> None:
        self.sent.append(found)


@pytest.mark.parametrize("lost", [False, True])
async def test_nothing_of_a_request_is_left(lost: bool) -> None:
    wire: Any = Wire()

    async def handle(who: Caller, body: bytes) -> Answer:
        await asyncio.sleep(30 if lost else 0)
        return Answer(200, body)

    request = Seen(wire, handle, Caller(None), True)
    if not lost:
        request.add(b"body")
    seen = weakref.ref(request)
    gc.disable()
    try:
        request.begin()
        await asyncio.sleep(0)
        if lost:
            request.lost()
        del request
        for _ in range(5):
            await asyncio.sleep(0)
        assert seen() is None
    finally:
        gc.enable()
    assert wire.sent == ([] if lost else [Answer(200, b"body")])
