"""What a job file says of a service: `service: {replicas: 3, settle: 30}`."""

from typing import Any

from muster.doors.quantities import read_span
from muster.events.services import REPLICAS_MAX, Autoscale, Service
from muster.reading.values import Value

KEYS = ("replicas", "max_unavailable", "max_surge", "settle", "autoscale")
SCALE_KEYS = ("metric", "target", "min", "max", "up_after", "down_after", "tolerance")
TARGET_MAX = 2**53


def read_service(value: Value) -> Service:
    """How many replicas are kept, and how they are replaced and scaled."""
    fields = value.known("a service", KEYS)
    said: dict[str, Any] = {
        key: fields[key].whole(least, REPLICAS_MAX)
        for key, least in (("replicas", 1), ("max_unavailable", 0), ("max_surge", 0))
        if key in fields
    }
    if "settle" in fields:
        said["settle_us"] = read_span(fields["settle"])
    if "autoscale" in fields:
        said["autoscale"] = _autoscale(fields["autoscale"])
        said.setdefault("replicas", said["autoscale"].min)
    return Service(**said)


def _autoscale(value: Value) -> Autoscale:
    fields = value.known("autoscale", SCALE_KEYS)
    for key in ("metric", "target", "max"):
        if key not in fields:
            raise value.error(f"has no {key}")
    said: dict[str, Any] = {key: fields[key].whole(1, REPLICAS_MAX) for key in ("min", "max") if key in fields}
    for key in ("up_after", "down_after"):
        if key in fields:
            said[f"{key}_us"] = read_span(fields[key])
    if "tolerance" in fields:
        said["tolerance_milli"] = _milli(fields["tolerance"], 0, 1000)
    return Autoscale(metric=fields["metric"].string(), target_milli=_milli(fields["target"], 1, TARGET_MAX), **said)


def _milli(value: Value, least: int, most: int) -> int:
    whole, point, rest = value.scalar_text().partition(".")
    if not whole.isdecimal() or len(whole) > 15 or len(rest) > 3 or not (rest.isdecimal() if point else True):
        raise value.error(f"must be a number with at most three digits after the point, not {value.said()}")
    milli = int(whole) * 1000 + int(rest.ljust(3, "0"))
    if not least <= milli <= most:
        raise value.error(f"must be {least}/1000 to {most}/1000, not {value.said()}")
    return milli


def write_service(service: Service) -> dict[str, Any]:
    """As a job file has it; what holds anyway is left out."""
    usual = Service()
    document: dict[str, Any] = {"replicas": service.replicas}
    document |= {key: said for key in KEYS[1:3] if (said := getattr(service, key)) != getattr(usual, key)}
    if service.settle_us:
        document["settle"] = _span(service.settle_us)
    scale = service.autoscale
    if scale:
        document["autoscale"] = {
            "metric": scale.metric,
            "target": _decimal(scale.target_milli),
            "min": scale.min,
            "max": scale.max,
            "up_after": _span(scale.up_after_us),
            "down_after": _span(scale.down_after_us),
            "tolerance": _decimal(scale.tolerance_milli),
        }
    return document


def _span(micros: int) -> int | str:
    seconds, rest = divmod(micros, 1_000_000)
    return f"{seconds}.{rest:06d}".rstrip("0") if rest else seconds


def _decimal(milli: int) -> str:
    whole, rest = divmod(milli, 1000)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)
