"""Who is kept off what is reserved, what leaves when a reservation begins, and which devices an amount is.

One rule, in every path: nobody for whom it is not may have what is reserved so that he would still be there when a window of it
is (`Reserved.closed`, `Reserved.kept`). `muster.engine.backfill` asks it wherever it asks what is planned. When an asker would be
gone is as for plans: start, time limit, grace and kill margin. Who has no time limit is taken to be there for the
policy's horizon; but where it is maintenance and he may be preempted, he may start, and is told to stop at its begin
(semantics 22). Those for whom a reservation is are not kept off it, before its windows, in them or after.

A reservation is *active* when one of its windows is now and nobody else holds anything of it. What was there before is told
to stop at the begin if it may be preempted and the reservation was made before that; else it is waited for.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import UNSET

from muster.cluster.jobs import Attempt, Instance, Job
from muster.cluster.nodes import Node
from muster.cluster.plans import FAR, PlannedStart, length_us, promised_us
from muster.cluster.reservations import Reservation, those_for
from muster.cluster.state import State
from muster.engine.horizon import Found, Horizon
from muster.engine.nodeindex import rows_of
from muster.events.base import Event
from muster.events.decisions import Piece, ReservationPlaced, StopOrdered
from muster.events.operations import Backfill
from muster.events.reservations import Window

TRIES_MAX: Final = 32
"""So many beginnings are tried for one plan between windows."""


class Held:
    """What one reservation takes, by row: whole nodes as bits, or devices."""

    __slots__ = ("bits", "devices", "name", "reservation")

    def __init__(self, state: State, name: str, reservation: Reservation) -> None:
        self.name = name
        self.reservation = reservation
        self.bits = 0
        self.devices: dict[int, tuple[int, ...]] = {}
        rows = state.ledger.rows
        for node in reservation.spec.nodes:
            if node in rows:
                self.bits |= 1 << rows[node]
        for piece in reservation.pieces:
            if piece.node in rows:
                row = rows[piece.node]
                self.devices[row] = (*self.devices.get(row, ()), *piece.devices)

    @property
    def rows(self) -> list[int]:
        """All rows of which it takes something."""
        return rows_of(self.bits) if self.bits else sorted(self.devices)

    def has(self, row: int, devices: tuple[int, ...]) -> bool:
        """Whether what stands there with these devices stands in it."""
        if self.bits >> row & 1:
            return True
        mine = self.devices.get(row)
        return mine is not None and any(index in mine for index in devices)


class Reserved:
    """All reservations as the engine sees them in a pass, and what they keep from the asker in hand."""

    __slots__ = ("_all", "_clear", "_known", "_vain", "because", "bits", "closed", "devices", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self._known: tuple[int, int] = (-1, -1)
        self._all: list[Held] = []
        self._clear: dict[str, tuple[int, int, tuple[int, int]]] = {}
        """Reservations of which nobody else holds anything in the window that is now."""
        self._vain: dict[str, tuple[int, int]] = {}
        """Amounts for which there was not enough."""
        self.closed = 0
        """The rows that the asker may not have at all, as bits."""
        self.devices: dict[int, dict[int, None]] = {}
        """The devices that he may not have, by row."""
        self.bits = 0
        """All rows on which there is anything that he may not have."""
        self.because: list[tuple[Held, Window]] = []
        """The reservations that keep him off, each with the window because of which."""

    def all(self) -> list[Held]:
        """Every reservation with what it takes, as the nodes are now."""
        state = self.state
        known = (state.reservations.version, state.ledger.altered_upto)
        if known != self._known:
            self._known = known
            self._all = [Held(state, name, each) for name, each in state.reservations.by_name.items()]
        return self._all

    # The rule

    def ask_for(self, instance: Instance, start_us: int, end_us: int) -> None:
        """Places are looked for from now on for this instance, which would be there between these instants."""
        self.closed, self.bits = 0, 0
        self.devices = {}
        self.because = []
        for held in self.binding(instance.job):
            window = meets(self.state, held.reservation, instance.job, start_us, end_us)
            if window is not None:
                self.because.append((held, window))
                self.closed |= held.bits
                for row, devices in held.devices.items():
                    self.bits |= 1 << row
                    self.devices.setdefault(row, {}).update(dict.fromkeys(devices))
        self.bits |= self.closed

    def binding(self, job: Job) -> list[Held]:
        """The reservations that are not for the job."""
        if not self.state.reservations.by_name:
            return []
        own = those_for(self.state, job)
        return [held for held in self.all() if held.name not in own]

    def kept(self, node: Node, free: list[int]) -> list[int]:
        """What of what is free on the node (CPU, memory, disk, tasks, devices) the asker may not have; empty for nothing."""
        row = node.row
        if self.closed >> row & 1:
            return [max(0, amount) for amount in free]
        mine = self.devices.get(row)
        if mine is None:
            return []
        return [0] * 4 + [max(0, units) if index in mine else 0 for index, units in enumerate(free[4:])]

    def idle(self, node: Node) -> list[int]:
        """The devices of the node that are free and kept from the asker."""
        mine, free, units = self.devices.get(node.row, {}), node.device_free, node.device_units
        return [index for index in mine if index < len(free) and free[index] == units[index]]

    # What is planned

    def earliest(self, horizon: Horizon, instance: Instance) -> Found | None:
        """When and where the instance can start at the earliest, on nodes of which nothing is reserved then for others.

        From each instant on at which windows end, as long as nothing better was found: the first start at which none of its rows
        is in a window, while it runs. So a start may be missed that lies between two of these instants.
        """
        binding = self.binding(instance.job)
        if not binding:
            return horizon.earliest(instance)
        now_us = since_us = self.state.at_us
        best: Found | None = None
        for _ in range(TRIES_MAX):
            closed, next_us = self._closed_at(binding, instance, since_us)
            found = horizon.earliest_from(instance, since_us, closed)
            for _ in range(TRIES_MAX):
                if found is None:
                    break
                rows = dict.fromkeys([placement.row for placement in found[1]])
                met, until_us = self._closed_at(binding, instance, found[0])
                if not any(met >> row & 1 for row in rows):
                    break
                closed |= met
                next_us = min(next_us, until_us)
                found = horizon.earliest_from(instance, since_us, closed)
            else:
                found = None
            if found is not None and (best is None or found[0] < best[0]):
                best = found
            if next_us == FAR or next_us > now_us + horizon.settings.horizon_us or (best is not None and best[0] <= next_us):
                break
            since_us = next_us
        return best

    def clear_of(self, planned: PlannedStart) -> bool:
        """Whether nothing of the plan's places is reserved for others while it is to run."""
        binding = self.binding(planned.instance.job)
        if not binding:
            return True
        job, start_us = planned.instance.job, max(planned.start_us, self.state.at_us)
        length = length_us(self.state.policy, job)
        end_us = FAR if length == FAR else start_us + length
        return not any(
            any(held.has(place.row, place.devices) for place in planned.placements)
            and meets(self.state, held.reservation, job, start_us, end_us)
            for held in binding
        )

    def _closed_at(self, binding: list[Held], instance: Instance, start_us: int) -> tuple[int, int]:
        """The rows that an instance starting then may not have, and when the first window ends that is in its way."""
        length = length_us(self.state.policy, instance.job)
        closed, next_us = 0, FAR
        for held in binding:
            window = meets(self.state, held.reservation, instance.job, start_us, FAR if length == FAR else start_us + length)
            if window is not None:
                next_us = min(next_us, window.until_us)
                for row in held.rows:
                    closed |= 1 << row
        return closed, next_us

    # What is decided

    def decisions(self) -> Iterator[Event]:
        """What is to be decided about reservations now, one by one, each on what those before it made."""
        for held in self.all():
            pieces = self.choose(held)
            if pieces is not None:
                yield ReservationPlaced(reservation=held.name, pieces=pieces)
        for attempt in self.evicted():
            instance = attempt.instance
            yield StopOrdered(
                job=instance.job.id,
                instance=instance.index,
                attempt=attempt.number,
                reason="reserved",
                kill_at_us=self.state.at_us + instance.job.request.grace_us,
            )

    def evicted(self) -> list[Attempt]:
        """Those who are to be told to stop because a reservation begins where they are, in the order of their binding."""
        state = self.state
        found: dict[Attempt, None] = {}
        for held in self.all():
            reservation = held.reservation
            if not reservation.is_open(state.at_us) or reservation.made_us >= reservation.window.from_us:
                continue
            others = self.others(held)
            for attempt in others:
                if attempt.phase != "stop" and attempt.instance.job.request.preemptible:
                    found[attempt] = None
        return sorted(found, key=_bound)

    def others(self, held: Held) -> list[Attempt]:
        """Those who hold something of one that has begun and is not for them: nobody, once that was so in this window."""
        reservation = held.reservation
        clear = reservation.at, reservation.made_us, self._known
        if self._clear.get(held.name) == clear:
            return []
        found = holders(self.state, held)
        if not found:
            self._clear[held.name] = clear
        return found

    # Which devices

    def choose(self, held: Held) -> tuple[Piece, ...] | None:
        """The devices for an amount, or None where they stand, or there are not enough.

        They are chosen when it is said, and again when one of them is not there any more, or when a window begins and others
        hold something of it while as much is free. First what is free at the begin, then what may be preempted, then what is free
        soonest; ties by row and index. Nothing that another reservation has at that time.
        """
        state, reservation = self.state, held.reservation
        spec = reservation.spec
        if spec.nodes or self._vain.get(held.name) == self._known or (reservation.pieces and not self._worse(held)):
            return None
        found: list[tuple[tuple[int, int], int, Piece]] = []
        taken = self._elsewhere(held)
        for row, node in enumerate(state.ledger.nodes):
            if node is not None and node.liveness == "heard" and not node.fenced:
                for key, devices in _pieces(state, held, node, spec.gpus, taken.get(row, {})):
                    found.append((key, row, Piece(node.name, devices)))
        if len(found) < spec.count:
            self._vain[held.name] = self._known
            return None
        found.sort(key=_key_and_row)
        chosen = tuple([piece for _, _, piece in found[: spec.count]])
        worst = found[spec.count - 1][0]
        if reservation.pieces and reservation.is_open(state.at_us) and worst > (0, state.at_us) and self._whole(held):
            return None  # others have the rest too
        return chosen if chosen != reservation.pieces else None

    def _worse(self, held: Held) -> bool:
        """Whether other devices may be better: some are gone, or others hold some of them now that it has begun."""
        if not self._whole(held):
            return True
        reservation = held.reservation
        return reservation.is_open(self.state.at_us) and bool(self.others(held))

    def _whole(self, held: Held) -> bool:
        """Whether all its devices are there and well."""
        for piece in held.reservation.pieces:
            node = self.state.node(piece.node)
            if node is None or node.fenced or node.liveness == "lost":
                return False
            if any(index >= len(node.devices) or not node.devices[index].usable for index in piece.devices):
                return False
        return True

    def _elsewhere(self, held: Held) -> dict[int, dict[int, None] | None]:
        """By row: the devices that other reservations have while this one is; None for the whole node."""
        taken: dict[int, dict[int, None] | None] = {}
        now_us, mine = self.state.at_us, held.reservation.spec.windows[held.reservation.at :]
        for other in self.all():
            if other.name == held.name or not any(other.reservation.meets(max(w.from_us, now_us), w.until_us) for w in mine):
                continue
            for row in rows_of(other.bits):
                taken[row] = None
            for row, devices in other.devices.items():
                some = taken.setdefault(row, {})
                if some is not None:
                    some.update(dict.fromkeys(devices))
        return taken


def meets(state: State, reservation: Reservation, job: Job, start_us: int, end_us: int) -> Window | None:
    """The window because of which a job for which it is not may not be there between these instants; `FAR`: no end is known."""
    if end_us != FAR:
        return reservation.meets(start_us, end_us)
    if reservation.for_nobody and job.request.preemptible:
        return reservation.meets(start_us, start_us + 1)
    return reservation.meets(start_us, start_us + horizon_us(state))


def horizon_us(state: State) -> int:
    """For how long a job without a time limit is taken to be there."""
    settings = state.policy.backfill
    return Backfill().horizon_us if settings is UNSET else settings.horizon_us


def holders(state: State, held: Held) -> list[Attempt]:
    """Those for whom it is not and who hold something of it, in the order of its rows."""
    found: dict[Attempt, None] = {}
    for row in held.rows:
        node = state.ledger.nodes[row]
        for task in node.tasks if node is not None else ():
            if task.attempt not in found and held.has(row, task.devices):
                if held.name not in those_for(state, task.attempt.instance.job):
                    found[task.attempt] = None
    return list(found)


def phase(state: State, name: str) -> str:
    """`planned` or `active`; `over` where there is none (any more)."""
    reservation = state.reservations.by_name.get(name)
    if reservation is None:
        return "over"
    held = Held(state, name, reservation)
    some = bool(reservation.spec.nodes or reservation.pieces)
    return "active" if some and reservation.is_open(state.at_us) and not holders(state, held) else "planned"


def reserved_devices(state: State, name: str) -> dict[int, None] | None:
    """The devices of a node that are in an active reservation; None for the whole node."""
    found: dict[int, None] = {}
    for each, reservation in state.reservations.by_name.items():
        if phase(state, each) == "active":
            if name in reservation.spec.nodes:
                return None
            for piece in reservation.pieces:
                if piece.node == name:
                    found.update(dict.fromkeys(piece.devices))
    return found


def _pieces(
    state: State, held: Held, node: Node, gpus: int, taken: dict[int, None] | None
) -> list[tuple[tuple[int, int], tuple[int, ...]]]:
    """The pieces that a node can give, with what speaks against each: 1 if somebody is in the way who may be preempted, 2 if one
    may not; and when the last of them is gone."""
    if taken is None:
        return []
    against = _against(state, held, node)
    usable = [index for index, device in enumerate(node.devices) if device.usable and not device.profile and index not in taken]
    usable.sort(key=lambda index: (against.get(index, (0, 0)), index))
    found = []
    for at in range(0, len(usable) - gpus + 1, gpus):
        some = usable[at : at + gpus]
        found.append((max([against.get(index, (0, 0)) for index in some]), tuple(sorted(some))))
    return found


def _against(state: State, held: Held, node: Node) -> dict[int, tuple[int, int]]:
    """Who is in the way, by device: 1 if he may be preempted, 2 if not, and when he is gone."""
    now_us, window = state.at_us, held.reservation.window
    begin_us = max(window.from_us, now_us)
    told = held.reservation.made_us < window.from_us
    against: dict[int, tuple[int, int]] = {}
    for task in node.tasks:
        job = task.attempt.instance.job
        if held.name in those_for(state, job):
            continue
        end_us = promised_us(state.policy, task.attempt)
        if end_us < now_us:
            end_us = FAR
        if end_us > begin_us:
            for index in task.devices:
                kind = 1 if told and job.request.preemptible else 2
                against[index] = max(against.get(index, (0, 0)), (kind, end_us))
    return against


def _key_and_row(found: tuple[tuple[int, int], int, Piece]) -> tuple[tuple[int, int], int, tuple[int, ...]]:
    return found[0], found[1], found[2].devices


def _bound(attempt: Attempt) -> tuple[int, tuple[int, int, int]]:
    return attempt.bound_cycle, attempt.instance.place
