"""What a scene says of services: the fields of a job of kind `service`, and the verbs that scale it and feed its metric."""

from typing import Any

from muster.simulator.scenario.names import Mentions
from muster.simulator.scenario.quantities import read_share, whole
from muster.simulator.scenario.reading import Value

SERVICE_FIELDS = ("max_unavailable", "max_surge", "settle", "autoscale")
"""Fields that only a service has, beside `replicas`."""


def read_service(item: Value, fields: dict[str, Value]) -> dict[str, Any] | None:
    """The `service` of a request; None where the job is none."""
    kind = fields["kind"].string() if "kind" in fields else "batch"
    if kind != "service":
        for key in ("replicas", *SERVICE_FIELDS):
            if key in fields:
                raise fields[key].error(f"is for services: this job is of kind {kind!r}")
        return None
    if "array" in fields:
        raise fields["array"].error("is not for services: they have replicas")
    service: dict[str, Any] = {}
    for key in ("replicas", "max_unavailable", "max_surge"):
        if key in fields:
            service[key] = fields[key].whole()
    if "settle" in fields:
        service["settle_us"] = fields["settle"].micros()
    if "autoscale" in fields:
        service["autoscale"] = _autoscale(fields["autoscale"])
    return service


def _autoscale(value: Value) -> dict[str, Any]:
    fields = value.known("autoscale", ["metric", "target", "min", "max", "up_after", "down_after", "tolerance"])
    for key in ("target", "max"):
        if key not in fields:
            raise value.error(f"has autoscale without {key}")
    scale: dict[str, Any] = {"metric": fields["metric"].string() if "metric" in fields else "load"}
    for key in ("min", "max"):
        if key in fields:
            scale[key] = fields[key].whole()
    for key in ("up_after", "down_after"):
        if key in fields:
            scale[f"{key}_us"] = fields[key].micros()
    for key in ("target", "tolerance"):
        if key in fields:
            scale[f"{key}_milli"] = whole(fields[key], read_share(fields[key]))
    return scale


def read_scale(value: Value, mentions: Mentions) -> list[Any]:
    """How many replicas services are to have: the name of each and the number."""
    return _said(value, mentions, "a change of replicas", "replicas", Value.whole)


def read_metric(value: Value, mentions: Mentions) -> list[Any]:
    """What the metric of services is, in thousandths."""
    return _said(value, mentions, "a metric", "value", lambda item: whole(item, read_share(item)))


def _said(value: Value, mentions: Mentions, what: str, key: str, read: Any) -> list[Any]:
    result: list[Any] = []
    for item in value.several():
        fields = item.known(what, ["job", key])
        for name in ("job", key):
            if name not in fields:
                raise item.error(f"has {what} without {name}")
        said = read(fields[key])
        result.extend((name, said) for name in mentions.job_names(fields["job"], picks=False).plain)
    return result
