"""Recorded logs: reading one, and replaying it in this process. As a program it prints one line for each log in a folder.

A golden log is a file of records, one a line, gzipped: `tests/golden/logs/NAME.jsonl.gz`. `record` makes them.
"""

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from muster.cluster import snapshot
from muster.events.record import Envelope
from muster.log.admit import Admitted, admit, genesis
from muster.replay.audit import audit
from muster.replay.travel import fold_to

LOGS = Path(__file__).parent / "logs"
SUFFIX = ".jsonl.gz"
MUST_FAIL = "must-fail"
"""The log in which one decision is another than was made."""


class Replayed(msgspec.Struct, frozen=True):
    """What a replay came to."""

    name: str
    cycles: int
    decisions: int
    head: str
    """Digest of the record before the last, which holds all before it."""
    state: str
    """Digest of the state after it, in this build's schema of snapshots."""
    difference: str
    """Where audit decides otherwise; empty where it nowhere does."""


def names(folder: Path = LOGS) -> list[str]:
    """The logs of a folder."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}"))


def write(folder: Path, name: str, records: list[bytes]) -> None:
    """Keep these records under this name; the same records give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(folder / f"{name}{SUFFIX}", "wb", mtime=0) as file:
        file.write(b"".join(record + b"\n" for record in records))


def read(folder: Path, name: str) -> list[bytes]:
    """The records under this name."""
    return gzip.decompress((folder / f"{name}{SUFFIX}").read_bytes()).splitlines()


def admitted(records: list[bytes]) -> Iterator[tuple[Envelope, bytes]]:
    """The records, each of which must be admitted."""
    head = genesis(msgspec.json.decode(records[0])["cell"])
    for data in records:
        verdict = admit(head, data)
        assert isinstance(verdict, Admitted), verdict
        head = verdict.head
        yield verdict.envelope, data


def replay(folder: Path, name: str) -> Replayed:
    """Fold the log, and decide it again."""
    records = read(folder, name)
    audited = audit(lambda: admitted(records))
    *_, (envelope, _) = admitted(records)
    return Replayed(
        name=name,
        cycles=len(records),
        decisions=audited.decisions,
        head=envelope.previous,
        state=snapshot.digest(fold_to(admitted(records))),
        difference=audited.difference.lines()[0] if audited.difference is not None else "",
    )


if __name__ == "__main__":
    for name in names(Path(sys.argv[1])):
        print(msgspec.json.encode(replay(Path(sys.argv[1]), name)).decode())
