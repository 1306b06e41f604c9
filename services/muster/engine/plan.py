"""A hypothesis: what would be free if some attempts were gone, some places taken, some nominations lifted.

Each step changes the ledger and notes its inverse; `undo` takes all steps back, the last first. A plan is always undone:
what is decided is folded in by `evolve` and by nothing else.
"""

from collections.abc import Callable, Iterable, Sequence

from muster.cluster.jobs import Attempt, Task
from muster.cluster.nodes import Node
from muster.cluster.shapes import Shape
from muster.cluster.state import Nomination, State
from muster.engine.bestfit import Spot
from muster.engine.candidates import Candidates


class Plan:
    """Steps on the ledger that can be taken back. Use it in a `with` block, which undoes them."""

    __slots__ = ("_away", "_steps", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self._steps: list[Callable[[], None]] = []
        self._away: dict[Attempt, None] = {}
        """Attempts that queues are not charged for in this plan."""

    def __enter__(self) -> "Plan":
        self.state.ledger.planning += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()
        self.state.ledger.planning -= 1

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
        """As if the attempt held nothing, or nothing on this node. Its queue is not charged for it either way."""
        if attempt.charge is not None and attempt not in self._away:
            self._charge(attempt, -1)
        for task in attempt.tasks.values():
            if task in task.node.tasks and (node is None or task.node is node):
                self._release(task)

    def again(self, attempt: Attempt) -> None:
        """As if the attempt held after all what `without` took off."""
        ledger = self.state.ledger
        if attempt in self._away:
            self._charge(attempt, 1)
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
        tree, charge = self.state.tree, nomination.charge
        if tree is not None and charge is not None:
            job = nomination.instance.job
            queue = tree.of(job.queue)
            tree.shift(queue, job.user, charge, -1)
            self._steps.append(lambda: tree.shift(queue, job.user, charge, 1))
        for node in nomination.nodes:
            if node.liveness != "removed":
                claim = node.claims.pop(key)
                ledger.recount(node)

                def back(node=node, claim=claim) -> None:  # type: ignore[no-untyped-def]
                    node.claims[key] = claim
                    ledger.recount(node)

                self._steps.append(back)

    def _charge(self, attempt: Attempt, sign: int) -> None:
        tree, charge = self.state.tree, attempt.charge
        assert tree is not None
        assert charge is not None
        job = attempt.instance.job
        queue = tree.of(job.queue)

        def move(sign: int) -> None:
            tree.shift(queue, job.user, charge, sign)
            if sign < 0:
                self._away[attempt] = None
            else:
                del self._away[attempt]

        move(sign)
        self._steps.append(lambda: move(-sign))

    def bar(self, node: Node, barred: list[int], wanted: Sequence[Candidates]) -> None:
        """As if the node had so much less. What is not found there for that is not held to be found there in vain."""
        ledger = self.state.ledger

        def back() -> None:
            node.barred = None
            node.recount()
            ledger.dirty.append(node.row)
            for candidates in wanted:
                candidates.vain &= ~(1 << node.row)

        node.barred = barred
        node.recount()
        ledger.dirty.append(node.row)
        for candidates in wanted:
            candidates.vain &= ~(1 << node.row)
        self._steps.append(back)

    def _release(self, task: Task) -> None:
        ledger = self.state.ledger
        ledger.release(task)
        self._steps.append(lambda: ledger.hold(task))
