"""Which rules of the engine a scene would miss: it is played with one left out at a time.

A mutant is made here by putting something else in the place of one of the engine's functions while the scene is played,
and taking it away again; the engine itself has no such switches. Only the scene's expectations judge: invariants and the
second judge would find most of these without it. A mutant that does not apply to a scene goes unnoticed, and that is no
fault; a scene that notices none proves nothing.
"""

import msgspec

from muster.cluster.check import BrokenInvariant
from muster.simulator.scenario.format import Scenario
from muster.simulator.scenario.mutants import MUTANTS
from muster.simulator.scenario.play import Performance
from muster.simulator.scenario.world import SceneFailure, Unsettled

CYCLES_MAX = 200
"""With so many cycles at one time a mutant does not settle."""

BROKEN = (Unsettled, BrokenInvariant, ArithmeticError, LookupError, TypeError, AttributeError, AssertionError, RuntimeError)
"""How a mutant ends that stands in contradiction to itself."""


class Mutation(msgspec.Struct, kw_only=True):
    """What a scene noticed. A mutant that broke the core or never settled is `broken`: no expectation was asked."""

    file: str
    name: str
    passed: bool
    noticed: list[str] = []
    unnoticed: list[str] = []
    broken: list[str] = []
    error: str = ""

    @property
    def line(self) -> str:
        """The result in one line."""
        if self.error:
            return f"FAIL {self.name}: {self.error}"
        parts = [f"noticed {', '.join(self.noticed) or 'none'}", f"unnoticed {', '.join(self.unnoticed) or 'none'}"]
        if self.broken:
            parts.append(f"broken {', '.join(self.broken)}")
        return f"{'pass' if self.passed else 'FAIL'} {self.name}: {'; '.join(parts)}"


def mutate(scenario: Scenario) -> Mutation:
    """Play the scene with each rule left out. It passes if it passes as it is and notices at least one mutant."""
    result = Mutation(file=scenario.file, name=scenario.name, passed=False)
    as_it_is = _failure(scenario, 10 * CYCLES_MAX)
    if as_it_is:
        result.error = f"it does not pass as it is: {as_it_is}"
        return result
    for name in MUTANTS:
        try:
            (result.noticed if notices(scenario, name) else result.unnoticed).append(name)
        except BROKEN:
            result.broken.append(name)
    result.passed = bool(result.noticed)
    return result


def notices(scenario: Scenario, name: str) -> bool:
    """Whether an expectation of the scene notices this mutant.

    Raises:
        One of `BROKEN`: the mutant stands in contradiction to itself in this scene.
    """
    with MUTANTS[name]():
        return bool(_failure(scenario, CYCLES_MAX))


def _failure(scenario: Scenario, cycles_max: int) -> str:
    """What an expectation says, or an empty string."""
    performance = Performance(scenario, invariants=False)
    performance.world.cycles_max = cycles_max
    try:
        performance.run()
    except Unsettled:
        raise
    except SceneFailure as failure:
        return f"{performance.where}, expected {failure.expected}, actual {failure.actual}"
    return ""
