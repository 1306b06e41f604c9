"""Reservations in scenes: how they are said, what is sent, and what is so."""

from datetime import timedelta

import msgspec

from muster.engine.reserved import phase
from muster.events.codec import encode_entry
from muster.events.reservations import WINDOWS_MAX, ReservationRemoved, ReservationSet, Window
from muster.reading.recurring import date_of, every_of, instant_of, repeated, tables, zone_of
from muster.simulator.scenario.names import Mentions, read_one
from muster.simulator.scenario.reading import Value
from muster.simulator.scenario.world import OPERATIONS, START_US, World

RESERVATION_STATES = ("planned", "active", "refused", "over")
_FIELDS = ["name", "nodes", "gpus", "count", "from", "until", "for", "every", "zone"]


class ReserveScene(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation as a scene says it: its windows count from the scene's start, its job is a name."""

    said: ReservationSet
    job: str = ""


def read_reservation(value: Value, mentions: Mentions) -> ReserveScene:
    """A reservation as an operator says it is."""
    fields = value.known("a reservation", _FIELDS)
    for key in ("name", "from", "until"):
        if key not in fields:
            raise value.error(f"has a reservation without {key}")
    name = read_one(fields["name"])
    nodes: tuple[str, ...] = ()
    if "nodes" in fields:
        nodes = tuple(mentions.node_names(fields["nodes"], picks=False).plain)
    gpus = fields["gpus"].count() if "gpus" in fields else 0
    count = fields["count"].count() if "count" in fields else (1 if gpus else 0)
    if bool(nodes) == bool(gpus and count):
        raise value.error("needs either nodes, or gpus (and count)")
    first = Window(from_us=fields["from"].micros(), until_us=fields["until"].micros())
    if first.until_us <= first.from_us:
        raise fields["until"].error("must be after from")
    windows, every, zone = _windows(first, fields)
    queue, user, job = _whom(fields["for"], mentions) if "for" in fields else ("", "", "")
    said = ReservationSet(
        reservation=name,
        nodes=nodes,
        count=count,
        gpus=gpus,
        windows=windows,
        queue=queue,
        user=user,
        every=every,
        zone=zone,
        tzdata=tables() if zone else "",
    )
    return ReserveScene(said=said, job=job)


def _windows(first: Window, fields: dict[str, Value]) -> tuple[tuple[Window, ...], str, str]:
    """All windows, how they recur and in which zone.

    By the calendar: `start` is the date of the first one, whose clock shows `daily` when it begins.
    """
    if "every" not in fields:
        return (first,), "", ""
    value = fields["every"]
    try:
        if not isinstance(value.data, dict):
            return repeated(first, value.micros(), WINDOWS_MAX), f"{value.said()} s", ""
        said = value.known("every", ["daily", "zone", "start"])
        if "daily" not in said or "start" not in said:
            raise value.error("needs daily and start")
        named = said.get("zone") or fields.get("zone")
        if named is None:
            raise value.error("needs a zone")
        zone = zone_of(named.scalar_text())
        time = said["daily"].scalar_text()
        every = every_of(f"daily@{time}")
        start = date_of(said["start"].scalar_text())
        origin_us = instant_of(start, every.hour, every.minute, zone)
        found = []
        for number in range(366):
            after_us = instant_of(start + timedelta(days=number), every.hour, every.minute, zone) - origin_us
            found.append(Window(from_us=first.from_us + after_us, until_us=first.until_us + after_us))
        return tuple(found), f"daily@{time}", zone.key or ""
    except ValueError as error:
        raise value.error(str(error)) from None


def _whom(value: Value, mentions: Mentions) -> tuple[str, str, str]:
    """Queue, user, name of a job: one of them, or none for nobody."""
    if value.data is None or value.data == "nobody":
        return "", "", ""
    if not isinstance(value.data, dict):
        queue = read_one(value)
        if queue not in mentions.queues:
            raise value.error(f"names the queue {queue!r}, which does not exist; there are {', '.join(mentions.queues)}")
        return queue, "", ""
    fields = value.known("those for whom it is", ["queue", "user", "job"])
    if len(fields) != 1:
        raise value.error("is a queue's name, {user: u} or {job: j}")
    if "user" in fields:
        return "", read_one(fields["user"]), ""
    if "job" in fields:
        return "", "", mentions.job(fields["job"])
    return read_one(fields["queue"]), "", ""


def reserve(world: World, scene: ReserveScene, job: str) -> None:
    """It is sent; `job` is the id of the one for which it is."""
    shift = [Window(from_us=START_US + window.from_us, until_us=START_US + window.until_us) for window in scene.said.windows]
    event = msgspec.structs.replace(scene.said, windows=tuple(shift), job=job)
    world.send(OPERATIONS, encode_entry(event), event.reservation)


def unreserve(world: World, name: str) -> None:
    """It is to be no more."""
    world.send(OPERATIONS, encode_entry(ReservationRemoved(reservation=name)))


def read_states(value: Value, mentions: Mentions) -> list[tuple[str, str]]:
    """Reservations with what they are to be."""
    return [(name, item.word(RESERVATION_STATES)) for name, item in value.mapping("reservations to states").items()]


def judge_states(world: World, wanted: list[tuple[str, str]]) -> str | None:
    """None if all are so, else what is so instead."""
    wrong = []
    for name, state in wanted:
        said = world.reserved.get(name)
        found = "never said" if said is None else phase(world.state, name)
        if found == "over" and said in world.book.refused:
            found = "refused"
        if found != state:
            wrong.append(f"{name} is {found}")
    return ", ".join(wrong) or None
