"""Virtual time, and processes that live in it: each with an event loop and clocks of its own, to be stopped and killed.

The real scheduler is asynchronous code, so each process has a real asyncio loop. None of these ever waits: the timeline
runs one pass of a loop whenever something is ready there or a timer of it is due. A process that is stopped is not run, and
finds when it goes on what has come due meanwhile, as after SIGSTOP and SIGCONT. A process that is killed is not run again.

Nothing here knows what the processes do.
"""

import asyncio
import contextvars
import heapq
import selectors
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, NoReturn, TypeVarTuple

WALL_US: Final = 1_780_000_000_000_000
"""The wall clock of an honest host when a world begins."""
MILLION: Final = 1_000_000

Arguments = TypeVarTuple("Arguments")


class Exited(BaseException):
    """The process left by itself."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Timeline:
    """What happens when, in microseconds since the world began. Equal instants keep the order in which they were set."""

    def __init__(self) -> None:
        self.now_us = 0
        self.steps = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, at_us: int, action: Callable[[], None]) -> None:
        """Do this then, or now if that is past."""
        self._count += 1
        heapq.heappush(self._due, (max(at_us, self.now_us), self._count, action))

    def after(self, span_us: int, action: Callable[[], None]) -> None:
        """Do this so much later."""
        self.at(self.now_us + span_us, action)

    def run(self, until_us: int) -> None:
        """Do all that is due until then."""
        due = self._due
        while due and due[0][0] <= until_us:
            self.now_us, _, action = heapq.heappop(due)
            self.steps += 1
            action()
        self.now_us = max(self.now_us, until_us)


class HostClock:
    """The clocks of one machine: the monotonic one runs fast or slow, the wall clock is stepped besides."""

    def __init__(self, timeline: Timeline, drift_ppm: int, began_us: int) -> None:
        self.timeline = timeline
        self.rate = MILLION + drift_ppm
        self.began_us = began_us
        self.step_us = 0
        """What the wall clock was moved by."""

    def monotonic_us(self) -> int:
        """See `muster.scheduler.terms.Clock`."""
        return self.began_us + self.timeline.now_us * self.rate // MILLION

    def wall_us(self) -> int:
        """See `muster.scheduler.terms.Clock`."""
        return WALL_US + self.step_us + self.timeline.now_us * self.rate // MILLION

    def world_us(self, monotonic_us: int) -> int:
        """The instant of the timeline at which this clock shows at least that."""
        return (monotonic_us - self.began_us) * MILLION // self.rate + 2


class _NothingToSelect(selectors.SelectSelector):
    """No process has a socket: what arrives comes by the timeline."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that tells its process when it wants to be run."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        super().__init__(_NothingToSelect())
        self.set_exception_handler(lambda loop, context: None)  # tasks that die with their process

    def time(self) -> float:
        return self._process.clock.monotonic_us() / MILLION

    def call_soon(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        self._process.wake()
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self._process.wake_for(handle)
        return handle

    def once(self) -> None:
        """One pass over what is ready and due."""
        super().call_soon(self.stop)
        self.run_forever()


class Process:
    """One process of the world, incarnation after incarnation: its supervisor starts it again whenever it has ended."""

    def __init__(
        self,
        timeline: Timeline,
        random: Random,
        counts: Counter[str],
        name: str,
        clock: HostClock,
    ) -> None:
        self.timeline = timeline
        self.random = random
        self.counts = counts
        self.name = name
        self.kind = name.rstrip("0123456789")
        self.clock = clock
        self.loop: _Loop | None = None
        self.stopped = False
        self.held_down = False
        """Its supervisor does not start it."""
        self.kill_in = 0
        """It dies at its so manieth await from now; 0 for never."""
        self.stop_in = 0
        """It is stopped at its so manieth await from now, for `stop_span_us`; 0 for never."""
        self.stop_span_us = 0
        self.awaits = 0
        self.incarnations = 0
        self.on_end: Callable[[str], None] = lambda how: None
        """Called when an incarnation is over: `killed`, or what it left with."""
        self.ended: list[str] = []
        """How each incarnation ended."""
        self.broken: list[str] = []
        """What it left with that it must not leave with: exceptions, as text."""
        self.main: Callable[[Process], Coroutine[Any, Any, None]]
        """The program; it is given the process."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._wanted = False
        self._dying = False

    @property
    def alive(self) -> bool:
        """Whether there is such a process now, stopped or not."""
        return self.loop is not None

    def start(self) -> None:
        """A new incarnation, if there is none."""
        if self.loop is None and not self.held_down:
            self.incarnations += 1
            self.stopped = self._dying = self._wanted = False
            self.loop = _Loop(self)
            self.spawn(self.main(self)).add_done_callback(self._over)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of this incarnation. It dies with it."""
        assert self.loop is not None
        if len(self._tasks) > 64:
            self._tasks = [task for task in self._tasks if not task.done()]
        task = self.loop.create_task(work)
        self._tasks.append(task)
        return task

    def kill(self, how: str = "killed") -> None:
        """The process is gone, wherever it stood."""
        loop, self.loop = self.loop, None
        if loop is None:
            return
        self.kill_in = self.stop_in = 0
        for task in self._tasks:
            work = task.get_coro()
            if not task.done() and work is not None:
                work.close()
        self._tasks = []
        loop.close()
        self.ended.append(how)
        self.on_end(how)

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def resume(self) -> None:
        """SIGCONT: what has come due meanwhile comes at once."""
        self.stopped = False
        self._wanted = False
        self.wake()

    def deliver(self, loop: object, action: Callable[[], None]) -> None:
        """Let this happen inside the incarnation that has this loop, unless it is gone."""
        if self.loop is not None and self.loop is loop:
            self.loop.call_soon(action)

    async def point(self, what: str) -> None:
        """An await at which the process may die. Whoever dies here never comes back from it."""
        self.awaits += 1
        self.counts[f"awaits of a {self.kind}"] += 1
        if self.kill_in:
            self.kill_in -= 1
            if not self.kill_in:
                self.counts[f"{self.kind} killed at {what}"] += 1
                self._dying = True
                assert self.loop is not None
                await self.loop.create_future()
        if self.stop_in:
            self.stop_in -= 1
            if not self.stop_in:
                self.counts[f"{self.kind} stopped at {what}"] += 1
                self.stop()
                self.timeline.after(self.stop_span_us, self.resume)
                await asyncio.sleep(0)

    async def pause(self, span_us: int) -> None:
        """Let so much time pass."""
        await asyncio.sleep(span_us / MILLION)

    def wake(self) -> None:
        """Run the loop soon."""
        if not self._wanted:
            self._wanted = True
            self.timeline.at(self.timeline.now_us, self._step)

    def wake_for(self, timer: asyncio.TimerHandle) -> None:
        """Run the loop when its own clock shows that this timer is due, if it still counts then."""

        def due() -> None:
            if not timer.cancelled():
                self._step()

        self.timeline.at(self.clock.world_us(int(timer.when() * MILLION) + 1), due)

    def _step(self) -> None:
        if self.loop is None or self.stopped:
            return
        self._wanted = False
        self.loop.once()
        if self._dying:
            self.kill()

    def _over(self, task: asyncio.Task[Any]) -> None:
        if self.loop is None or task.get_loop() is not self.loop or task.cancelled():
            return
        error = task.exception()
        if error is None or isinstance(error, Exited):
            how = "ended" if error is None else f"left with {error.code}"
        else:
            how = "broken"
            self.broken.append("".join(traceback.format_exception(error)))
        self.timeline.at(self.timeline.now_us, lambda: self.kill(how))


def leave(process: Process) -> Callable[[int], NoReturn]:
    """What a program has for `os._exit`: it remembers what made it leave."""

    def exit(code: int) -> NoReturn:
        process.counts[f"{process.kind} left with {code}"] += 1
        raise Exited(code)

    return exit
