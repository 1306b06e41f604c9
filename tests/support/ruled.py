"""Chaos in which jobs ask more of their places than each task needs, and nodes stand in racks and blocks."""

from typing import Any

import msgspec
from msgspec import UNSET

from muster.events.base import Event
from muster.events.jobs import Constraints, JobSubmitted, JobTerm, Licences, Requirement, Spread, Toleration, Within
from muster.events.nodes import NodeRegistered
from muster.events.operations import LicencesSet
from tests.support.chaos import Chaos

LEVELS: tuple[Any, ...] = ("zone", "block", "rack", "nvlink_domain", "node")
APPS = ("web", "cache")


class RuledChaos(Chaos):
    """What `Chaos` makes, with constraints of every kind, several at once."""

    def nodes(self) -> list[Event]:
        """Every node registers, and the cell has some licences."""
        return [LicencesSet(licences={"solver": 3, "viewer": 1}), *super().nodes()]

    def submission(self) -> JobSubmitted:
        """A job with labels, constraints, ports, NUMA."""
        event, chance = super().submission(), self.random
        groups = tuple(
            [
                msgspec.structs.replace(
                    group,
                    ports=(chance.choice((80, 81)),) if chance.random() < 0.15 else UNSET,
                    numa=chance.choice(("required", "preferred")) if chance.random() < 0.25 else UNSET,
                    tolerations=(*group.tolerations, *self.patience()),
                )
                for group in event.request.groups
            ]
        )
        labels = {"app": chance.choice(APPS)} if chance.random() < 0.5 else {}
        asked = self.constraints() if chance.random() < 0.7 else UNSET
        request = msgspec.structs.replace(event.request, groups=groups, labels=labels, constraints=asked)
        return msgspec.structs.replace(event, request=request)

    def patience(self) -> tuple[Toleration, ...]:
        """Now and then a taint is put up with for a while."""
        chance = self.random
        return (Toleration(key="dirt", any_value=True, seconds=chance.choice((0, 20, 90))),) if chance.random() < 0.2 else ()

    def constraints(self) -> Constraints:
        """One to three of them, mostly."""
        chance = self.random
        levels = chance.sample(LEVELS, 2)
        return Constraints(
            within=tuple([Within(level=one, required=chance.random() < 0.6) for one in levels if chance.random() < 0.35]),
            spread=tuple([Spread(level=one, **self.bound()) for one in levels if chance.random() < 0.15]),
            affinity=(self.term(),) if chance.random() < 0.15 else (),
            anti_affinity=(self.term(),) if chance.random() < 0.2 else (),
            exclusive=chance.random() < 0.15,
            licences=(Licences(name=chance.choice(("solver", "viewer")), count=chance.choice((1, 1, 2))),)
            if chance.random() < 0.2
            else (),
        )

    def bound(self) -> dict[str, int]:
        """Of a spread."""
        return {"most": self.random.choice((1, 2))} if self.random.random() < 0.7 else {"skew": self.random.choice((1, 2))}

    def term(self) -> JobTerm:
        """About some of the jobs."""
        chance = self.random
        op: Any = chance.choice(("In", "In", "In", "NotIn", "Exists", "DoesNotExist"))
        label = Requirement(key="app", op=op, values=(chance.choice(APPS),) if op in ("In", "NotIn") else ())
        labels = (label,) if op in ("In", "Exists") else (label, Requirement(key="app", op="Exists"))
        return JobTerm(labels=labels, by=chance.choice(LEVELS), required=chance.random() < 0.8)

    def trouble(self) -> list[Event]:
        """And the licences change."""
        if self.random.random() < 0.06:
            return [LicencesSet(licences={"solver": self.random.choice((0, 2, 4)), "viewer": 1})]
        return super().trouble()

    def register(self, name: str) -> NodeRegistered:
        """A node of some domains, with one or two NUMA nodes."""
        event, chance = super().register(name), self.random
        number = int(name[1:])
        sure = chance.random() < 0.9
        numa = chance.choice((1, 2, 2))
        devices = tuple(
            [msgspec.structs.replace(device, numa=index * numa // 4) for index, device in enumerate(event.spec.devices)]
        )
        spec = msgspec.structs.replace(
            event.spec,
            zone="z1" if sure else "",
            block=f"b{number // 3}" if sure else "",
            rack=f"r{number // 2}" if sure else chance.choice(("", "r0", "r1")),
            nvlink_domain=f"v{number // 2}" if chance.random() < 0.9 else "",
            numa=numa if numa > 1 else UNSET,
            devices=devices,
        )
        return msgspec.structs.replace(event, spec=spec)
