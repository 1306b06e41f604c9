"""No folder of tests has fewer tests than tests/counts.toml says."""

import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_folder_has_fewer_tests_than_its_floor() -> None:
    counts = collect(ROOT)
    print(dict(counts))
    assert shortfalls(counts, floors(ROOT)) == []


def test_every_folder_has_a_floor() -> None:
    assert sorted(set(collect(ROOT)) - set(floors(ROOT))) == []


def test_a_missing_test_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (folder / "test_two.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    assert shortfalls(collect(tmp_path), {"unit": 2}) == []
    assert shortfalls(collect(tmp_path), {"unit": 3}) == ["unit: has 2 tests, at least 3 are wanted"]
    assert shortfalls(collect(tmp_path), {"golden": 1}) == ["golden: has 0 tests, at least 1 are wanted"]


@cache
def collect(root: Path) -> Counter[str]:
    """How many tests pytest finds in each folder of `root/tests`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "--quiet",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "tests",
    ]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 5), result.stdout + result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("tests/") and "::" in line]
    return Counter(line.split("/")[1] for line in lines)


def floors(root: Path) -> dict[str, int]:
    """The least number of tests of each folder."""
    read: dict[str, int] = tomllib.loads((root / "tests" / "counts.toml").read_text())["floors"]
    return read


def shortfalls(counts: Counter[str], wanted: dict[str, int]) -> list[str]:
    """Folders with fewer tests than their floor."""
    return [
        f"{name}: has {counts[name]} tests, at least {floor} are wanted" for name, floor in wanted.items() if counts[name] < floor
    ]
