"""Slot files: a reader always finds a whole value, whoever dies while writing."""

import os
from pathlib import Path

import pytest

from muster.agent.slots import HALF_BYTES, VALUE_MAX_BYTES, make_slot, now_us, poke, read_slot, write_slot, write_whole


def test_the_newest_value_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "slot")
    assert read_slot(path) is None
    make_slot(path, {"a": 1})
    assert read_slot(path) == {"a": 1}
    for value in range(5):
        write_slot(path, {"a": value, "b": "ü"})
        assert read_slot(path) == {"a": value, "b": "ü"}
        assert os.path.getsize(path) == 2 * HALF_BYTES  # written in place: a full disk changes nothing


@pytest.mark.parametrize("at", [0, 5, 20, 40, 60])
def test_a_torn_write_leaves_the_value_before_it(tmp_path: Path, at: int) -> None:
    path = tmp_path / "slot"
    make_slot(str(path), {"value": 1})
    write_slot(str(path), {"value": 2})
    before = path.read_bytes()
    write_slot(str(path), {"value": 3})
    after = path.read_bytes()
    half = 0 if before[:HALF_BYTES] != after[:HALF_BYTES] else HALF_BYTES
    torn = bytearray(before)
    torn[half : half + at] = after[half : half + at]
    path.write_bytes(bytes(torn))
    assert read_slot(str(path)) in ({"value": 2}, {"value": 3})
    torn[half + 30] ^= 1
    path.write_bytes(bytes(torn))
    assert read_slot(str(path)) == {"value": 2}


def test_a_file_of_nothing_has_no_value_and_takes_one(tmp_path: Path) -> None:
    path = tmp_path / "slot"
    for junk in (b"", b"\0" * 5000, b"x" * 3, os.urandom(2048)):
        path.write_bytes(junk)
        assert read_slot(str(path)) is None
    write_slot(str(path), {"a": 1})
    assert read_slot(str(path)) == {"a": 1}


def test_a_value_that_is_too_large_is_refused(tmp_path: Path) -> None:
    make_slot(str(tmp_path / "slot"), {})
    with pytest.raises(ValueError, match="a slot holds"):
        write_slot(str(tmp_path / "slot"), {"a": "x" * VALUE_MAX_BYTES})
    assert read_slot(str(tmp_path / "slot")) == {}


def test_a_whole_file_is_replaced(tmp_path: Path) -> None:
    write_whole(str(tmp_path / "file"), b"one")
    write_whole(str(tmp_path / "file"), b"two")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"two"


def test_nobody_is_waited_for_at_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    assert not poke(str(path), b"x")
    os.mkfifo(path)
    assert not poke(str(path), b"x")  # nobody reads
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        assert poke(str(path), b"x")
        while poke(str(path), b"y" * 4096):
            pass  # and a full one does not block
        assert os.read(reader, 1) == b"x"
    finally:
        os.close(reader)


def test_the_clock_goes_on() -> None:
    first = now_us()
    assert 0 < first <= now_us()
