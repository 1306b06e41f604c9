"""Indices of a job array as Slurm writes them: `0-15`, `1,3,7`, `0-15:4`, `[0-50]%5`.

An array of Muster's has elements numbered from 0; the k-th element has the k-th index. Indices are sorted and each
stands once, as in Slurm.
"""

import itertools
import re

INDEX_MAX = 4_000_000
"""The largest index that Slurm knows."""
INDICES_MAX = 100_000
TEXT_MAX = 65_536

_SPEC = re.compile(r"\[?([0-9,:\- ]*)\]?(?:%([0-9]{1,7}))?")
_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")


class BadArray(ValueError):
    """It is no array: one sentence."""


def read_array(spec: str) -> tuple[list[int], int]:
    """The indices, and how many of them may run at once (0: all).

    Raises:
        BadArray: it cannot be read, or has too many or too large indices.
    """
    match = _SPEC.fullmatch(spec.strip()) if len(spec) <= TEXT_MAX else None
    if match is None:
        raise BadArray("must be indices such as 0-15, 1,3,7, 0-15:4 or 0-50%5")
    found: dict[int, None] = {}
    named = 0
    for text in match[1].split(","):
        part = _PART.fullmatch(text.strip())
        if part is None:
            raise BadArray(f"has {text[:40]!r} for an index; it must be a number, a range such as 0-15, or 0-15:4")
        first, last, step = int(part[1]), int(part[2] or part[1]), int(part[3] or 1)
        if last < first:
            raise BadArray(f"has the range {text[:40]} that runs backwards")
        if last > INDEX_MAX:
            raise BadArray(f"has the index {last}; at most {INDEX_MAX} is taken")
        if step < 1:
            raise BadArray(f"has the range {text[:40]} with a step of 0")
        named += (last - first) // step + 1
        if named > INDICES_MAX:
            raise BadArray(f"names more than {INDICES_MAX} indices")
        found.update(dict.fromkeys(range(first, last + 1, step)))
    at_once = int(match[2]) if match[2] is not None else 0
    if match[2] is not None and at_once < 1:
        raise BadArray("lets 0 elements run at once; after % stands a number from 1")
    return sorted(found), at_once


def write_array(indices: list[int]) -> str:
    """The shortest text for sorted indices: `0-3`, `0-12:4`, `1,3,7`."""
    if len(indices) > 2:
        step = indices[1] - indices[0]
        if all(after - before == step for before, after in itertools.pairwise(indices)):
            return f"{indices[0]}-{indices[-1]}" + ("" if step == 1 else f":{step}")
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
