"""Where a pod may run: selectors, affinity to nodes and to other pods, spread, tolerations, ports, topology.

Muster's levels are zone, block, rack, nvlink_domain and node; a topology key is told by its name. What has no counterpart is
named.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import UNSET, UnsetType

from muster.doors.origin import Notices
from muster.events.jobs import Constraints, JobTerm, Level, Preference, Requirement, Spread, Toleration, Within
from muster.reading.catalogue import find_model
from muster.reading.values import Value

HOST_LABEL: Final = "kubernetes.io/hostname"
"""Agents set it to the name of their node."""
PRODUCT: Final = "nvidia.com/gpu.product"
"""The label that says a node's model of GPU, in the spelling of NVIDIA's feature discovery."""
NAMESPACE: Final = "namespace"
"""The label of a job that says its namespace."""
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
TOPOLOGY: Final = {"kueue.x-k8s.io/podset-required-topology": True, "kueue.x-k8s.io/podset-preferred-topology": False}
"""Annotations that keep all pods of a job in one domain, and whether they have to be."""
_OPS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_POD_OPS: Final = ("In", "NotIn", "Exists", "DoesNotExist")
_LEVELS: Final[tuple[tuple[re.Pattern[str], Level], ...]] = (
    (re.compile(r"(.*/)?(hostname|gce-topology-host|topology-host|node)"), "node"),
    (re.compile(r"(topology\.kubernetes\.io/|failure-domain\.beta\.kubernetes\.io/|.*/topology-)?zone"), "zone"),
    (re.compile(r"(.*/)?(gce-topology-|topology-)?block"), "block"),
    (re.compile(r"(.*/)?((gce-topology-)?subblock|(topology-)?rack)"), "rack"),
    (re.compile(r"nvidia\.com/gpu\.clique|(.*/)?nvlink[-_]domain"), "nvlink_domain"),
)
_TERMS_MAX: Final = 16


class Places:
    """What a pod says of its places. `spreads` count the pods of one gang: they are settled once it is known to be one."""

    def __init__(self) -> None:
        self.selector: tuple[Requirement, ...] = ()
        self.any_of: tuple[tuple[Requirement, ...], ...] = ()
        self.prefers: tuple[Preference, ...] = ()
        self.tolerations: tuple[Toleration, ...] = ()
        self.ports: tuple[int, ...] = ()
        self.models: tuple[str, ...] = ()
        self.model_mib = 0
        self.near: tuple[JobTerm, ...] = ()
        self.away: tuple[JobTerm, ...] = ()
        self.spreads: list[tuple[Value, Spread]] = []

    def take_models(self) -> None:
        """A product that the catalogue knows is a model, however its node writes it; the others stay labels."""
        for one in self.selector:
            found = [find_model(value) for value in one.values] if one.key == PRODUCT and one.op == "In" else []
            known = [model for model in found if model is not None]
            if found and len(known) == len(found):
                self.models = tuple(dict.fromkeys(name for name, _ in known))
                self.model_mib = min(size for _, size in known)
                self.selector = tuple(other for other in self.selector if other is not one)

    def of_group(self) -> dict[str, Any]:
        """The fields of `GroupRequest`."""
        return {
            "selector": self.selector,
            "any_of": self.any_of or UNSET,
            "prefers": self.prefers or UNSET,
            "tolerations": self.tolerations,
            "ports": self.ports or UNSET,
            "gpu_models": self.models,
            "gpu_memory_mib": self.model_mib,
        }


def level_of(key: str) -> Level | None:
    """The level that a topology key means."""
    return next((level for pattern, level in _LEVELS if pattern.fullmatch(key)), None)


def read_places(fields: dict[str, Value], notices: Notices, labels: dict[str, str]) -> Places:
    """What the spec of a pod with these labels says.

    Raises:
        DoorError: it makes no sense; with the place.
    """
    places = Places()
    selector = []
    if "nodeSelector" in fields:
        for key, item in fields["nodeSelector"].mapping("labels").items():
            selector.append(Requirement(key=key, values=(item.scalar_text(),)))
    if "nodeName" in fields:
        selector.append(Requirement(key=HOST_LABEL, values=(fields["nodeName"].scalar_text(),)))
    places.selector = tuple(selector)
    affinity = fields["affinity"].mapping("affinity") if "affinity" in fields else {}
    for key, item in affinity.items():
        if key == "nodeAffinity":
            _node_affinity(item, places, notices)
        elif key in ("podAffinity", "podAntiAffinity"):
            found = tuple(_pod_terms(item, notices, labels))
            places.near, places.away = (found, places.away) if key == "podAffinity" else (places.near, found)
        else:
            notices.add(item.line, item.key, "is not known to this door and not honoured")
    for item in fields["topologySpreadConstraints"].items("constraints") if "topologySpreadConstraints" in fields else []:
        _spread(item, places, notices, labels)
    places.tolerations = _tolerations(fields)
    return places


def settled(places: Places, marks: dict[str, str], gang: bool, line: Value, notices: Notices) -> Constraints | UnsetType:
    """The constraints of the job. `marks` are its labels and annotations."""
    for value, _ in places.spreads if not gang else ():
        notices.add(value.line, value.key, "is not honoured: it counts the pods of one gang, and these start one by one")
    within = []
    for key, required in TOPOLOGY.items():
        if key in marks and gang:
            level = level_of(marks[key])
            if level is None:
                notices.add(
                    line.line, line.key, f"says {key} {marks[key][:80]!r}, which is none of Muster's levels, not honoured"
                )
            else:
                within.append(Within(level=level, required=required))
    found = Constraints(
        within=tuple(within),
        spread=tuple({spread.level: spread for _, spread in places.spreads}.values()) if gang else (),
        affinity=places.near[:8],
        anti_affinity=places.away[:8],
    )
    return UNSET if found == Constraints() else found


def read_ports(container: dict[str, Value], host_network: bool) -> tuple[int, ...]:
    """Ports of the node that the container takes: its hostPorts; on the node's own network all that it names."""
    found = []
    for item in container["ports"].items("ports") if "ports" in container else []:
        port = item.mapping("a port")
        key = "hostPort" if "hostPort" in port else "containerPort" if host_network else ""
        if key in port and port[key].data != 0:
            found.append(port[key].whole(1, 65_535))
    return tuple(dict.fromkeys(found))


def _node_affinity(value: Value, places: Places, notices: Notices) -> None:
    for key, item in value.mapping("node affinity").items():
        if key == REQUIRED:
            required = item.mapping("required terms")
            terms = required["nodeSelectorTerms"].items("terms") if "nodeSelectorTerms" in required else []
            if not terms:
                raise item.error("has no nodeSelectorTerms: it needs at least one")
            read = _merged([tuple(_term(term)) for term in terms])
            if len(read) == 1:
                places.selector += read[0]
            elif not all(read) or len(read) > _TERMS_MAX:
                notices.add(item.line, item.key, f"is not honoured: it must be 1 to {_TERMS_MAX} terms, none of them empty")
            else:
                places.any_of = tuple(read)
        elif key == PREFERRED:
            wishes = [wish for one in item.items("terms") if (wish := _preference(one)) is not None]
            places.prefers = tuple(wishes[:_TERMS_MAX])
            if len(wishes) > _TERMS_MAX:
                notices.add(item.line, item.key, f"has {len(wishes)} terms: the first {_TERMS_MAX} are honoured")
        else:
            notices.add(item.line, item.key, "is not known to this door and not honoured")


def _merged(terms: list[tuple[Requirement, ...]]) -> list[tuple[Requirement, ...]]:
    """Alternatives that only name values of one label are one term."""
    heads = [term[0] for term in terms if len(term) == 1 and term[0].op == "In"]
    if len(heads) != len(terms) or any(one.key != heads[0].key for one in heads):
        return terms
    return [(Requirement(key=heads[0].key, values=tuple(dict.fromkeys(value for one in heads for value in one.values))),)]


def _preference(item: Value) -> Preference | None:
    """A term that says nothing prefers nobody."""
    entry = item.mapping("a preference")
    if "preference" not in entry or "weight" not in entry:
        raise item.error("needs a weight and a preference")
    term = tuple(_term(entry["preference"]))
    return Preference(labels=term, weight=entry["weight"].whole(1, 100)) if term else None


def _term(term: Value) -> list[Requirement]:
    found = []
    for key, item in term.mapping("a term").items():
        if key not in ("matchExpressions", "matchFields"):
            raise item.error("is unknown: a term knows matchExpressions, matchFields")
        for expression in item.items("expressions"):
            label, op, values = _expression(expression, _OPS)
            if key == "matchFields":
                if label != "metadata.name":
                    raise expression.error("must be about metadata.name, the only field that can be matched")
                label = HOST_LABEL
            found.append(Requirement(key=label, op=op, values=values))
    return found


def _expression(expression: Value, ops: tuple[str, ...]) -> tuple[str, Any, tuple[str, ...]]:
    entry = expression.mapping("an expression")
    if "key" not in entry or "operator" not in entry:
        raise expression.error("needs a key and an operator")
    op = entry["operator"].word(ops)
    values = tuple(one.scalar_text() for one in entry["values"].items("values")) if "values" in entry else ()
    if bool(values) == (op in ("Exists", "DoesNotExist")):
        raise expression.error(f"with the operator {op} {'takes no values' if values else 'needs values'}")
    return entry["key"].scalar_text(), op, values


def _pod_terms(value: Value, notices: Notices, labels: dict[str, str]) -> Iterator[JobTerm]:
    for key, item in value.mapping("affinity between pods").items():
        if key not in (REQUIRED, PREFERRED):
            notices.add(item.line, item.key, "is not known to this door and not honoured")
            continue
        for one in item.items("terms"):
            term = one
            if key == PREFERRED:
                entry = one.mapping("a preference")
                if "podAffinityTerm" not in entry:
                    raise one.error("needs a podAffinityTerm")
                term = entry["podAffinityTerm"]
            found = _pod_term(term, notices, labels, key == REQUIRED)
            if found is not None:
                yield found


def _pod_term(term: Value, notices: Notices, labels: dict[str, str], required: bool) -> JobTerm | None:
    fields = term.mapping("a term")
    if "topologyKey" not in fields:
        raise term.error("needs a topologyKey")
    for key in ("matchLabelKeys", "mismatchLabelKeys"):
        if key in fields:
            notices.add(fields[key].line, fields[key].key, "is not honoured: say the labels in labelSelector")
    level = level_of(fields["topologyKey"].scalar_text())
    wanted = list(_label_selector(fields.get("labelSelector")))
    if level is None or not any(one.op in ("In", "Exists") for one in wanted) or len(wanted) > 15:
        why = "its topologyKey is none of Muster's levels" if level is None else "its labelSelector must name labels, 15 at most"
        notices.add(term.line, term.key, f"is not honoured: {why}")
        return None
    if "namespaces" in fields and fields["namespaces"].data:
        names = tuple(one.scalar_text() for one in fields["namespaces"].items("namespaces"))
        wanted.append(Requirement(key=NAMESPACE, values=names))
    elif "namespaceSelector" in fields:
        if fields["namespaceSelector"].data:
            value = fields["namespaceSelector"]
            notices.add(value.line, value.key, "is not honoured: all namespaces are meant; name them in namespaces")
    elif NAMESPACE in labels:
        wanted.append(Requirement(key=NAMESPACE, values=(labels[NAMESPACE],)))
    return JobTerm(labels=tuple(wanted), by=level, required=required)


def _label_selector(value: Value | None) -> Iterator[Requirement]:
    fields = value.mapping("a labelSelector") if value is not None else {}
    for key, item in fields.items():
        if key == "matchLabels":
            for name, label in item.mapping("labels").items():
                yield Requirement(key=name, values=(label.scalar_text(),))
        elif key == "matchExpressions":
            for expression in item.items("expressions"):
                label_key, op, values = _expression(expression, _POD_OPS)
                yield Requirement(key=label_key, op=op, values=values)
        else:
            raise item.error("is unknown: a labelSelector knows matchLabels, matchExpressions")


def _spread(item: Value, places: Places, notices: Notices, labels: dict[str, str]) -> None:
    fields = item.mapping("a constraint")
    for key in ("maxSkew", "topologyKey", "whenUnsatisfiable"):
        if key not in fields:
            raise item.error(f"needs a {key}")
    skew = fields["maxSkew"].whole(1, 100_000)
    soft = fields["whenUnsatisfiable"].word(("DoNotSchedule", "ScheduleAnyway")) == "ScheduleAnyway"
    level = level_of(fields["topologyKey"].scalar_text())
    for key in ("minDomains", "nodeAffinityPolicy", "nodeTaintsPolicy", "matchLabelKeys"):
        if key in fields:
            notices.add(fields[key].line, fields[key].key, "is not honoured: domains are those of the nodes that would do")
    own = all(_meets(labels, one) for one in _label_selector(fields.get("labelSelector")))
    if soft or level is None or not own:
        why = "Muster spreads as required, or not at all" if soft else "its pods are others than the job's own"
        why = "its topologyKey is none of Muster's levels" if level is None else why
        notices.add(item.line, item.key, f"is not honoured: {why}")
    elif len(places.spreads) < 5:
        places.spreads.append((item, Spread(level=level, skew=skew)))


def _meets(labels: dict[str, str], one: Requirement) -> bool:
    value = labels.get(one.key)
    return {"In": value in one.values, "NotIn": value not in one.values, "Exists": value is not None}.get(one.op, value is None)


def _tolerations(fields: dict[str, Value]) -> tuple[Toleration, ...]:
    found = []
    for item in fields["tolerations"].items("tolerations") if "tolerations" in fields else []:
        entry = item.mapping("a toleration")
        operator = entry["operator"].word(("Equal", "Exists")) if "operator" in entry else "Equal"
        key = entry["key"].scalar_text() if "key" in entry and entry["key"].data is not None else ""
        if not key and operator == "Equal":
            raise item.error("needs a key, or the operator Exists for every key")
        effect: Any = ""
        if "effect" in entry and entry["effect"].data not in ("", None):
            effect = entry["effect"].word(("NoSchedule", "PreferNoSchedule", "NoExecute"))
        value = entry["value"].scalar_text() if "value" in entry and entry["value"].data is not None else ""
        if operator == "Exists" and value:
            raise entry["value"].error("must not stand beside the operator Exists")
        seconds: Any = UNSET
        if "tolerationSeconds" in entry and entry["tolerationSeconds"].data is not None:
            seconds = max(0, entry["tolerationSeconds"].whole(-(2**31), 10**9))
        found.append(Toleration(key=key, value=value, any_value=operator == "Exists", effect=effect, seconds=seconds))
    return tuple(found)
