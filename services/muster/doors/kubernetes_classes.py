"""Objects that stand beside pods in a file and say something about them: priority classes and pod groups.

`scheduling.k8s.io/v1 PriorityClass` and Kueue's `WorkloadPriorityClass` give names to priorities; a `PodGroup` (of the
scheduler plugins, or Volcano's) says how many of its pods have to be there to start. A name that no object of the file
explains is known to the cluster alone, and named.
"""

from typing import Final

from muster.doors.origin import Notices
from muster.events.base import TASKS_MAX
from muster.reading.values import Value

PRIORITY_CLASSES: Final = ("PriorityClass", "WorkloadPriorityClass")
POD_GROUP: Final = "PodGroup"
PRIORITY_MOST: Final = 1_000_000_000
_GROUP_KEYS: Final = ("minMember", "queue", "priorityClassName")
_SYSTEM: Final = ("system-cluster-critical", "system-node-critical")


class Classes:
    """What the objects of one file say."""

    def __init__(self) -> None:
        self._priorities: dict[str, int] = {}
        self.minima: dict[str, int] = {}
        """By pod group, how many of its pods it needs."""
        self.queues: dict[str, str] = {}
        """By pod group, its queue, where it says one."""

    def read(self, kind: str, fields: dict[str, Value], notices: Notices) -> bool:
        """Take an object in; False if it is none of these."""
        if kind not in (*PRIORITY_CLASSES, POD_GROUP):
            return False
        metadata = fields["metadata"].mapping("metadata") if "metadata" in fields else {}
        if "name" not in metadata:
            raise fields["kind"].error("has no metadata.name")
        name = metadata["name"].scalar_text()
        if kind != POD_GROUP:
            if "value" not in fields:
                raise fields["kind"].error("has no value: a priority class needs one")
            value = fields["value"].whole(-(2**31), 2**31 - 1)
            self._priorities[name] = max(-PRIORITY_MOST, min(PRIORITY_MOST, value))
            for key in ("globalDefault", "preemptionPolicy"):
                if key in fields and fields[key].data not in (False, None, "PreemptLowerPriority"):
                    notices.add(fields[key].line, fields[key].key, "is not honoured: a class is a name for a priority")
            return True
        spec = fields["spec"].mapping("the spec of a pod group") if "spec" in fields else {}
        if "minMember" in spec:
            self.minima[name] = spec["minMember"].whole(1, TASKS_MAX)
        if "queue" in spec:
            self.queues[name] = spec["queue"].scalar_text()
        for key, item in spec.items():
            if key not in _GROUP_KEYS:
                notices.add(item.line, item.key, "is not honoured: a gang waits until there is room for all of it")
        return True

    def priority(self, value: Value, notices: Notices) -> int | None:
        """The priority of the class that a pod names; None, and named, where the file does not say it."""
        name = value.scalar_text()
        if name in _SYSTEM:
            return PRIORITY_MOST
        if name not in self._priorities:
            notices.add(
                value.line,
                value.key,
                f"{value.said()} is not honoured: its PriorityClass is not in the file; say priority, a number",
            )
        return self._priorities.get(name)
