"""What is reserved, as it is shown: each reservation with its present or next window, and who is in its way."""

import msgspec

from muster.cluster.state import State
from muster.events.decisions import Piece
from muster.events.reservations import Window

HELD_BY_MAX = 100


class ReservationShown(msgspec.Struct, frozen=True, kw_only=True):
    """One reservation that is not over."""

    reservation: str
    phase: str
    """`planned`, or `active`: a window is now, and nobody else holds anything of it."""
    window: Window
    """The present one, or the next."""
    windows_left: int
    """With this one."""
    nodes: tuple[str, ...]
    count: int
    gpus: int
    """So many pieces, and so many GPUs each; both 0 where nodes are named."""
    pieces: tuple[Piece, ...]
    """The devices of an amount, once they are chosen."""
    queue: str
    user: str
    job: str
    """For whom: one of them; none for maintenance."""
    every: str
    zone: str
    tzdata: str
    held_by: tuple[str, ...]
    """Jobs for which it is not and that hold something of it, where its window is now; the first of them."""


class ReservationList(msgspec.Struct, frozen=True, kw_only=True):
    """All reservations that are not over, by name, as of a cycle."""

    cycle: int
    at_us: int
    reservations: tuple[ReservationShown, ...]


def reservation_list(state: State) -> ReservationList:
    """All that are not over."""
    from muster.engine.reserved import Held, holders, phase  # it loads NumPy, which who only reads answers does not need

    found = []
    for name, each in state.reservations.by_name.items():
        spec = each.spec
        there = holders(state, Held(state, name, each)) if each.is_open(state.at_us) else []
        found.append(
            ReservationShown(
                reservation=name,
                phase=phase(state, name),
                window=each.window,
                windows_left=len(spec.windows) - each.at,
                nodes=spec.nodes,
                count=spec.count,
                gpus=spec.gpus,
                pieces=each.pieces,
                queue=spec.queue,
                user=spec.user,
                job=spec.job,
                every=spec.every,
                zone=spec.zone,
                tzdata=spec.tzdata,
                held_by=tuple(dict.fromkeys([attempt.instance.job.id for attempt in there]))[:HELD_BY_MAX],
            )
        )
    return ReservationList(cycle=state.number, at_us=state.at_us, reservations=tuple(found))
