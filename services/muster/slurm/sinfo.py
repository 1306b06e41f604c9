"""`sinfo`: nodes by state, with Slurm's columns and formats. Nodes belong to no partition: every queue may use them all."""

import os
import re
from collections.abc import Callable

import msgspec

from muster.doors.hostlist import BadHostlist, compress, expand
from muster.gateway.shown import NodeRow
from muster.slurm.cell import open_gateway
from muster.slurm.formats import Field, print_long, print_rows
from muster.slurm.options import FLAG, Option, parse
from muster.slurm.say import Refused, note

OPTIONS = (
    Option("all", "a", FLAG, "-"),
    Option("format", "o"),
    Option("Format", "O"),
    Option("help", "", FLAG),
    Option("long", "l", FLAG),
    Option("Node", "N", FLAG),
    Option("nodes", "n"),
    Option("noheader", "h", FLAG),
    Option("partition", "p"),
    Option("responding", "r", FLAG),
    Option("dead", "d", FLAG),
    Option("list-reasons", "R", FLAG),
    Option("states", "t"),
    Option("summarize", "s", FLAG),
    Option("exact", "e", FLAG, "-"),
    Option("verbose", "v", FLAG, "-"),
)
USUAL = "%#P %.5a %.10l %.6D %.6t %N"
SUMMARY = "%#P %.5a %.10l %.16F %N"
LONG = "%#P %.5a %.10l %.6D %.11T %N"
BY_NODE = "%#N %.6D %#P %6t"
BY_NODE_LONG = "%#N %.6D %#P %.11T %.4c %.8m %.10G %E"
LONG_NAMES = {
    "partition": "P",
    "available": "a",
    "time": "l",
    "nodes": "D",
    "statecompact": "t",
    "state": "T",
    "statelong": "T",
    "nodelist": "N",
    "nodehost": "n",
    "cpus": "c",
    "cpusstate": "C",
    "memory": "m",
    "freemem": "e",
    "gres": "G",
    "gresused": "g",
    "reason": "E",
    "nodeai": "A",
    "nodeaiot": "F",
}
COMPACT = {"allocated": "alloc", "draining": "drng", "drained": "drain", "mixed": "mix"}
USAGE = """sinfo [-N] [-l] [-s] [-h] [-n NODES] [-p PARTITION] [-t STATE,...] [-o FORMAT | -O NAMES]
Nodes by state. Every queue may use every node, so each stands once for each queue that is named, or for `default`.
Example: sinfo -N -h -o "%N %T %G\""""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that a line speaks of: they are alike in all that it shows."""

    partition: str
    nodes: tuple[NodeRow, ...]

    @property
    def state(self) -> str:
        """Of all of them."""
        return state_of(self.nodes[0]) if self.nodes else "n/a"


def main(arguments: list[str]) -> int:
    """Print the nodes."""
    parsed = parse(OPTIONS, arguments)
    values = parsed.values
    if "help" in values:
        print(USAGE)
        return 0
    if parsed.rest:
        raise Refused(f"{parsed.rest[0]!r} is not understood: sinfo takes options only", 2)
    for sentence in parsed.ignored:
        note("sinfo", sentence)
    by_node, summary, long = "Node" in values, "summarize" in values, "long" in values
    template = values.get("format", os.environ.get("SINFO_FORMAT", ""))
    template = (
        template or (BY_NODE_LONG if long else BY_NODE)
        if by_node
        else template or (SUMMARY if summary else LONG if long else USUAL)
    )
    rows = _rows(values)
    shown = values.get("Format", template)
    lines = []
    for partition in _list(values.get("partition", "")) or ["default*"]:
        lines.extend(_lines(partition, rows, by_node, shown, "Format" in values, summary))
    heading = "noheader" not in values
    if "Format" in values:
        print_long(values["Format"], FIELDS, lines, heading, LONG_NAMES)
    else:
        print_rows(_sized(template, lines), FIELDS, lines, heading)
    return 0


def state_of(row: NodeRow) -> str:
    """As Slurm calls it, with * for a node that is not heard."""
    words = row.state.split()
    taken = row.tasks > 0
    if words[0] == "lost" or "fenced" in words:
        return "down" + ("*" if words[0] == "lost" else "")
    if "drained" in words or "cordoned" in words or "quarantined" in words:
        state = "draining" if taken else "drained"
    elif not taken:
        state = "idle"
    else:
        gpus_full = row.gpus > 0 and sum(row.gpus_milli) >= 1000 * row.gpus
        state = "allocated" if gpus_full or row.cpu_free < 1000 else "mixed"
    return state + ("*" if words[0] == "silent" else "")


def _rows(values: dict[str, str]) -> list[NodeRow]:
    try:
        names = expand(values["nodes"]) if "nodes" in values else None
    except BadHostlist as error:
        raise Refused(f"the list of nodes {values['nodes']!r} {error}") from None
    states = [text.lower().rstrip("*") for text in _list(values.get("states", "")) if text.lower() != "all"]
    with open_gateway() as gateway:
        rows = gateway.nodes().nodes
    kept = []
    for row in rows:
        state = state_of(row)
        plain = state.rstrip("*")
        if names is not None and row.node not in names:
            continue
        if (
            states
            and plain not in states
            and compact(plain) not in states
            and not ("drain" in states and plain.startswith("drain"))
        ):
            continue
        if ("responding" in values and state.endswith("*")) or ("dead" in values and not state.endswith("*")):
            continue
        if "list-reasons" in values and not plain.startswith(("drain", "down")):
            continue
        kept.append(row)
    return sorted(kept, key=lambda row: row.node)


def _lines(partition: str, rows: list[NodeRow], by_node: bool, template: str, long_names: bool, summary: bool) -> list[Line]:
    """Alike in everything that is printed but the names and counts: one line."""
    if by_node:
        return [Line(partition=partition, nodes=(row,)) for row in rows]
    if summary:
        return [Line(partition=partition, nodes=tuple(rows))]
    letters = (
        [LONG_NAMES.get(part.partition(":")[0].strip().lower(), "") for part in template.split(",")]
        if long_names
        else _letters(template)
    )
    told = [letter for letter in letters if letter in FIELDS and letter not in "PDNlaAFC"]
    groups: dict[tuple[str, ...], list[NodeRow]] = {}
    for row in rows:
        line = Line(partition=partition, nodes=(row,))
        groups.setdefault(tuple(str(FIELDS[letter][1](line)) for letter in told), []).append(row)
    return [Line(partition=partition, nodes=tuple(group)) for group in groups.values()] or [Line(partition=partition, nodes=())]


def _letters(template: str) -> list[str]:
    return re.findall(r"%[.#]?[0-9]*([A-Za-z])", template)


def _sized(template: str, lines: list[Line]) -> str:
    """`%#N` is as wide as the widest."""
    for letter in ("N", "P"):
        width = max([len(FIELDS[letter][0]), *(len(str(FIELDS[letter][1](line))) for line in lines)])
        template = template.replace(f"%#{letter}", f"%{width}{letter}")
    return template


def compact(state: str) -> str:
    """The short form: alloc, mix, drain, drng, idle, down."""
    plain = state.rstrip("*")
    return COMPACT.get(plain, plain) + state[len(plain) :]


def _list(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _span(value: Callable[[NodeRow], int]) -> Callable[[Line], str]:
    """One number, or `least+` where the nodes differ."""

    def text(line: Line) -> str:
        numbers = sorted({value(row) for row in line.nodes})
        return "0" if not numbers else f"{numbers[0]}+" if len(numbers) > 1 else str(numbers[0])

    return text


def _gres(line: Line) -> str:
    kinds = dict.fromkeys(f"gpu:{row.model}:{row.gpus}" if row.gpus else "(null)" for row in line.nodes)
    return ",".join(kinds) or "(null)"


def _counted(line: Line, other: bool) -> str:
    states = [state_of(row).rstrip("*") for row in line.nodes]
    taken = sum(1 for state in states if state in ("allocated", "mixed", "draining"))
    idle = sum(1 for state in states if state == "idle")
    return f"{taken}/{idle}/{len(states) - taken - idle}/{len(states)}" if other else f"{taken}/{idle}"


def _cpus(line: Line) -> str:
    total = sum(row.cpu_milli for row in line.nodes) // 1000
    free = sum(row.cpu_free for row in line.nodes) // 1000
    other = sum(row.cpu_free for row in line.nodes if state_of(row).startswith(("drain", "down"))) // 1000
    return f"{total - free}/{free - other}/{other}/{total}"


def _reason(line: Line) -> str:
    words = line.nodes[0].state.split() if line.nodes else []
    return " ".join(word for word in words if word != "heard") or "none"


FIELDS: dict[str, Field[Line]] = {
    "P": ("PARTITION", lambda line: line.partition),
    "R": ("PARTITION", lambda line: line.partition.rstrip("*")),
    "a": ("AVAIL", lambda _: "up"),
    "l": ("TIMELIMIT", lambda _: "infinite"),
    "D": ("NODES", lambda line: len(line.nodes)),
    "t": ("STATE", lambda line: compact(line.state)),
    "T": ("STATE", lambda line: line.state),
    "N": ("NODELIST", lambda line: compress(row.node for row in line.nodes)),
    "n": ("HOSTNAMES", lambda line: line.nodes[0].node if line.nodes else ""),
    "c": ("CPUS", _span(lambda row: row.cpu_milli // 1000)),
    "C": ("CPUS(A/I/O/T)", _cpus),
    "m": ("MEMORY", _span(lambda row: row.memory_mib)),
    "e": ("FREE_MEM", _span(lambda row: row.memory_free)),
    "d": ("TMP_DISK", lambda _: "0"),
    "w": ("WEIGHT", lambda _: "1"),
    "f": ("AVAIL_FEATURES", lambda _: "(null)"),
    "G": ("GRES", _gres),
    "g": ("GRES_USED", lambda line: f"gpu:{sum(-(-milli // 1000) for row in line.nodes for milli in row.gpus_milli)}"),
    "E": ("REASON", _reason),
    "A": ("NODES(A/I)", lambda line: _counted(line, False)),
    "F": ("NODES(A/I/O/T)", lambda line: _counted(line, True)),
}
