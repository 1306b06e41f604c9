"""Rules of services left out, one a mutant (see `mutants`)."""

from muster.cluster import services
from muster.cluster.jobs import Instance
from muster.cluster.services import Service
from muster.cluster.state import State
from muster.engine import lifecycle
from muster.engine import services as rolling
from muster.simulator.scenario.leaving_out import Mutant, instead


def service_mutants() -> dict[str, Mutant]:
    """By name."""
    return {
        "roll-blindly": instead(rolling, "how_far", lambda state, service, instance: rolling.UP),
        "roll-on": instead(services, "FAILED", ()),
        "no-settling": instead(services, "is_up", _runs),
        "no-surge": instead(Service, "most", property(lambda self: self.replicas)),
        "replicas-at-once": instead(lifecycle, "again", lambda state, instance, ran_us: (True, 0)),
        "no-windows": instead(services, "wanted", _newest_value),
    }


def _runs(state: State, service: Service, instance: Instance) -> bool:
    return instance.attempt is not None and instance.attempt.phase == "run"


def _newest_value(service: Service) -> int:
    return service.highs[-1][0] if service.asked.autoscale else service.replicas
