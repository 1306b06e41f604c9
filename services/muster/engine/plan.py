"""A hypothesis: what would be free if some attempts were gone, some places taken, some nominations lifted.

Each step changes the ledger and notes its inverse; `undo` takes all steps back, the last first. A plan is always undone:
what is decided is folded in by `evolve` and by nothing else.
"""

from collections.abc import Callable, Iterable

from muster.cluster.jobs import Attempt, Task
from muster.cluster.nodes import Node
from muster.cluster.shapes import Shape
from muster.cluster.state import Nomination, State
from muster.engine.bestfit import Spot


class Plan:
    """Steps on the ledger that can be taken back. Use it in a `with` block, which undoes them."""

    __slots__ = ("_steps", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self._steps: list[Callable[[], None]] = []

    def __enter__(self) -> "Plan":
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def mark(self) -> int:
        """How many steps were taken: `undo(mark)` comes back to here."""
        return len(self._steps)

    def undo(self, mark: int = 0) -> None:
        """Take back all steps after the mark, the last first."""
        steps = self._steps
        while len(steps) > mark:
            steps.pop()()

    def later(self, inverse: Callable[[], None]) -> None:
        """The caller took a step of its own: this takes it back."""
        self._steps.append(inverse)

    def without(self, attempt: Attempt, node: Node | None = None) -> None:
        """As if the attempt held nothing, or nothing on this node."""
        for task in attempt.tasks.values():
            if task in task.node.tasks and (node is None or task.node is node):
                self._release(task)

    def again(self, attempt: Attempt) -> None:
        """As if the attempt held after all what `without` took off."""
        ledger = self.state.ledger
        for task in attempt.tasks.values():
            if task.holding and task not in task.node.tasks:
                ledger.hold(task)
                self._steps.append(lambda task=task: ledger.release(task))  # type: ignore[misc]

    def with_spots(self, attempt: Attempt, shape: Shape, spots: Iterable[Spot]) -> None:
        """As if a task of this shape stood on each of these spots."""
        ledger = self.state.ledger
        for row, devices in spots:
            task = Task(attempt, 0, 0, shape, ledger.node(row), devices, 0)
            ledger.hold(task)
            self._steps.append(lambda task=task: ledger.release(task))  # type: ignore[misc]

    def lift(self, nomination: Nomination) -> None:
        """As if the nomination kept nothing."""
        key = nomination.instance.key
        ledger = self.state.ledger
        for node in nomination.nodes:
            if node.liveness != "removed":
                claim = node.claims.pop(key)
                ledger.recount(node)

                def back(node=node, claim=claim) -> None:  # type: ignore[no-untyped-def]
                    node.claims[key] = claim
                    ledger.recount(node)

                self._steps.append(back)

    def _release(self, task: Task) -> None:
        ledger = self.state.ledger
        ledger.release(task)
        self._steps.append(lambda: ledger.hold(task))
