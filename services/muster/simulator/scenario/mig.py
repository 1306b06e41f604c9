"""Slices of GPUs (MIG) in a file: what a node's GPUs are cut into, and what a task takes."""

from muster.reading.catalogue import PROFILE
from muster.simulator.scenario.reading import Value

SLICES_MAX = 7


def read_cuts(value: Value) -> dict[int, tuple[str, ...]]:
    """`{0: ["3g.40gb", "3g.40gb"]}`: by GPU, the profiles of its slices."""
    cuts = {}
    for key, item in value.mapping("GPUs").items():
        if not key.isdecimal():
            raise item.error(f"must stand under the number of a GPU, not under {key!r}")
        profiles = tuple([_profile(part) for part in item.several()])
        if sum(int(profile[0]) for profile in profiles) > SLICES_MAX:
            raise item.error(f"has more than the {SLICES_MAX} compute slices of a GPU")
        cuts[int(key)] = profiles
    return cuts


def read_slices(value: Value) -> tuple[str, int]:
    """`3g.40gb`, a list of them, or `{3g.40gb: 2}`: the profile, and how many; 0 where that is not said."""
    if isinstance(value.data, dict):
        counts = [(key, item.whole()) for key, item in value.mapping("slices").items()]
        if len(counts) != 1:
            raise value.error("must name one profile: a task takes slices of one, groups may differ")
        ((profile, count),) = counts
        return _checked(value, profile), count
    if isinstance(value.data, list):
        profiles = [_profile(item) for item in value.several()]
        if len(dict.fromkeys(profiles)) != 1:
            raise value.error("must be of one profile: a task takes slices of one, groups may differ")
        return profiles[0], len(profiles)
    return _profile(value), 0


def _profile(value: Value) -> str:
    return _checked(value, value.string())


def _checked(value: Value, profile: str) -> str:
    if not PROFILE.fullmatch(profile):
        raise value.error(f"must be a profile of slices such as 3g.40gb, not {profile!r}")
    return profile
