"""What `apps/v1` says of pods that are kept: the spec of a Deployment or a StatefulSet as a service.

Percentages come to what Kubernetes makes of them: those of `maxUnavailable` rounded down, those of `maxSurge` up, and one pod
may be away where both come to none. They are reckoned once, when the manifest is read.
"""

import re

from muster.doors.origin import Notices
from muster.events.services import REPLICAS_MAX, Service
from muster.reading.values import Value

VERSION = "apps/v1"
USUAL_PERCENT = 25

KEYS = {
    "Deployment": ("replicas", "template", "selector", "strategy", "minReadySeconds", "revisionHistoryLimit"),
    "StatefulSet": ("replicas", "template", "selector", "updateStrategy", "minReadySeconds", "revisionHistoryLimit"),
}
NOT = {
    "progressDeadlineSeconds": "a roll stops when a replica of it fails, and waits for room as long as it takes",
    "paused": "the service may start at once",
    "serviceName": "members of a service have no names in DNS",
    "podManagementPolicy": "replicas start all at once, and roll as max_unavailable says",
    "volumeClaimTemplates": "Muster makes no volumes",
    "persistentVolumeClaimRetentionPolicy": "Muster makes no volumes",
    "ordinals": "replicas are numbered from 0",
}


def read_kept(kind: str, body: dict[str, Value], notices: Notices) -> Service:
    """The replicas and how they are rolled."""
    for key, value in body.items():
        if key in NOT:
            notices.add(value.line, value.key, f"is not honoured: {NOT[key]}")
        elif key not in KEYS[kind]:
            notices.add(value.line, value.key, "is not known to this door and not honoured")
    replicas = body["replicas"].whole(1, REPLICAS_MAX) if "replicas" in body else 1
    settle_us = body["minReadySeconds"].whole(0, 10**6) * 1_000_000 if "minReadySeconds" in body else 0
    deployed = kind == "Deployment"
    usual = (replicas * USUAL_PERCENT // 100, -(-replicas * USUAL_PERCENT // 100)) if deployed else (1, 0)
    unavailable, surge = _strategy(body.get("strategy" if deployed else "updateStrategy"), replicas, usual, notices)
    if not unavailable and not surge:
        unavailable = 1
    return Service(replicas=replicas, max_unavailable=unavailable, max_surge=surge, settle_us=settle_us)


def _strategy(value: Value | None, replicas: int, usual: tuple[int, int], notices: Notices) -> tuple[int, int]:
    if value is None:
        return usual
    fields = value.mapping("a strategy")
    kind = fields["type"].word(("RollingUpdate", "Recreate", "OnDelete")) if "type" in fields else "RollingUpdate"
    if kind == "Recreate":
        return replicas, 0
    if kind == "OnDelete":
        notices.add(fields["type"].line, fields["type"].key, "OnDelete is not honoured: a revision rolls by itself")
    rolling = fields["rollingUpdate"].mapping("rollingUpdate") if "rollingUpdate" in fields else {}
    for key, item in rolling.items():
        if key not in ("maxUnavailable", "maxSurge"):
            notices.add(item.line, item.key, "is not honoured: a revision replaces every replica")
    unavailable = _pods(rolling["maxUnavailable"], replicas, up=False) if "maxUnavailable" in rolling else usual[0]
    surge = _pods(rolling["maxSurge"], replicas, up=True) if "maxSurge" in rolling else usual[1]
    return unavailable, surge


def _pods(value: Value, replicas: int, up: bool) -> int:
    """A number of pods, or a percentage of the replicas."""
    match = re.fullmatch(r"([0-9]{1,4})%", value.data) if isinstance(value.data, str) else None
    if match is None:
        return value.whole(0, REPLICAS_MAX)
    parts = replicas * int(match[1])
    return min(-(-parts // 100) if up else parts // 100, REPLICAS_MAX)
