"""`policy/v1 PodDisruptionBudget`: how many tasks of the jobs beside it may be disrupted at once.

A budget becomes the `budget` of each job of the file whose labels it selects. What it counts in percent is of the job's
own tasks, rounded up, as Kubernetes rounds.
"""

from typing import Final

import msgspec

from muster.doors.origin import Notices
from muster.events.base import TASKS_MAX
from muster.events.jobs import JobSubmitted
from muster.reading.values import Value

KIND: Final = "PodDisruptionBudget"
_KEYS: Final = ("selector", "minAvailable", "maxUnavailable")


class Budgets:
    """The budgets of one file."""

    def __init__(self) -> None:
        self._all: list[tuple[Value, dict[str, str], dict[str, Value]]] = []

    def read(self, kind: str, fields: dict[str, Value], notices: Notices) -> bool:
        """Take an object in; False if it is none.

        Raises:
            DoorError: it makes no sense; with the place.
        """
        if kind != KIND:
            return False
        if "spec" not in fields:
            raise fields["kind"].error("has no spec")
        spec = fields["spec"].mapping("the spec of a budget")
        if ("minAvailable" in spec) == ("maxUnavailable" in spec):
            raise fields["spec"].error("must say minAvailable or maxUnavailable, one of them")
        labels: dict[str, str] = {}
        for key, item in (spec["selector"].mapping("a selector") if "selector" in spec else {}).items():
            if key == "matchLabels":
                labels = {name: one.scalar_text() for name, one in item.mapping("labels").items()}
            else:
                raise item.error("is not supported for a budget: it selects by matchLabels")
        for key, item in spec.items():
            if key not in _KEYS:
                notices.add(item.line, item.key, "is not honoured: a budget counts tasks that are told to stop")
        self._all.append((fields["spec"], labels, spec))
        return True

    def close(self, jobs: list[JobSubmitted], notices: Notices) -> None:
        """Give the jobs that are selected their budgets."""
        for place, labels, spec in self._all:
            chosen = [at for at, job in enumerate(jobs) if labels.items() <= job.request.labels.items()]
            if not labels or not chosen:
                notices.add(place.line, place.key, "selects no job of this file by matchLabels: it is not honoured")
                continue
            if len(chosen) > 1:
                notices.add(place.line, place.key, f"selects {len(chosen)} jobs: each keeps it for itself")
            for at in chosen:
                request = jobs[at].request
                tasks = sum(group.count for group in request.groups) * (request.array or 1)
                if "maxUnavailable" in spec:
                    budget = _amount(spec["maxUnavailable"], tasks)
                else:
                    budget = max(0, tasks - _amount(spec["minAvailable"], tasks))
                jobs[at] = msgspec.structs.replace(jobs[at], request=msgspec.structs.replace(request, budget=budget))


def _amount(value: Value, tasks: int) -> int:
    if isinstance(value.data, int) and not isinstance(value.data, bool):
        return min(tasks, value.whole(0, TASKS_MAX))
    text = value.string()
    if not text.endswith("%") or not text[:-1].isdecimal() or len(text) > 4 or int(text[:-1]) > 100:
        raise value.error(f"must be a whole number or a percentage such as 50%, not {value.said()}")
    return -(-tasks * int(text[:-1]) // 100)
