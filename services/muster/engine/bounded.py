"""What the rules of a job keep it from, for `muster.engine.explain`: by node, and by domain. Nothing here decides."""

import msgspec

from muster.cluster.jobs import Job
from muster.cluster.rules import LEVELS
from muster.engine.filters import JOB_FILTERS
from muster.engine.nodeindex import rows_of
from muster.engine.place import Placer

DOMAINS_MAX = 4
"""So many domains are named, those first that lack the fewest tasks."""


class Kept(msgspec.Struct, frozen=True):
    """What keeps a job off some nodes."""

    code: str
    nodes: int
    text: str


def kept_off(placer: Placer, job: Job, among: int) -> tuple[list[Kept], int]:
    """What the filters of jobs say about some rows, and the rows that pass."""
    found = []
    for each in JOB_FILTERS.values():
        passing = each.passes(placer.bound.around, job, among)
        lost = (among & ~passing).bit_count()
        if lost:
            found.append(Kept(each.code, lost, each.sentence(placer.bound.around, job)))
        among = passing
    return found, among


def short_in(placer: Placer, job: Job, group: int, among: int) -> list[Kept]:
    """In which domains, of those within which the job has to stay, how many tasks of a group have no room."""
    rules = job.gang.rules
    levels = placer.bound.required(job, rules) if rules is not None else ()
    if not levels:
        return []
    level = max(levels, key=LEVELS.index)
    shape, least = job.gang.shapes[group], job.gang.minima[group]
    domains = placer.bound.domains
    found = []
    for value, rows, room in domains.rooms(shape, level, among):
        nodes = sum([bool(domains.room_on(shape, row)) for row in rows_of(rows)])
        if nodes:
            found.append((least - room, value, nodes))
    found.sort()
    texts = []
    for lacking, value, nodes in found[:DOMAINS_MAX]:
        short = f"short by {lacking} in {level} {value}" if lacking > 0 else f"room enough for this group in {level} {value}"
        texts.append(Kept(f"short-in-{level}" if lacking > 0 else "fits", nodes, short))
    rest = found[DOMAINS_MAX:]
    if rest:
        text = f"short by {rest[0][0]} or more in {len(rest)} more domains of level {level}"
        texts.append(Kept(f"short-in-{level}", sum([nodes for _, _, nodes in rest]), text))
    return texts
