"""The house rules hold in this tree, and each rule finds the fault that is planted for it."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tidy import rules

ROOT = Path(__file__).parents[2]
HEADER = '"""A module."""\n\n'
ENGINE = "services/muster/engine/planted.py"


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_rule_holds(rule: Callable[[Path], list[str]]) -> None:
    assert rule(ROOT) == []


PLANTS = [
    (rules.core_is_pure, "import time\n", "imports time"),
    (rules.core_is_pure, "import os.path\n", "imports os.path"),
    (rules.core_is_pure, "from random import Random\n", "imports random"),
    (rules.core_is_pure, "import asyncio\n", "imports asyncio"),
    (rules.core_is_pure, "import threading\n", "imports threading"),
    (rules.core_is_pure, "import socket\n", "imports socket"),
    (rules.core_is_pure, "from pathlib import Path\n", "imports pathlib"),
    (rules.core_is_pure, "def read(name: str) -> str:\n    return open(name).read()\n", "calls open()"),
    (rules.core_is_pure, "KEY = hash('a')\n", "calls hash()"),
    (rules.core_is_pure, "KEY = id(object())\n", "calls id()"),
    (rules.core_is_pure, "async def wait() -> None:\n    pass\n", "is asynchronous"),
    (rules.core_is_pure, "COUNT = 0\n\n\ndef add() -> None:\n    global COUNT\n    COUNT += 1\n", "writes a global"),
    (rules.core_has_no_floats, "HALF = 0.5\n", "has the float 0.5"),
    (rules.core_has_no_floats, "LARGE = 1e6\n", "has the float 1000000.0"),
    (rules.core_has_no_floats, "def half(n: int) -> int:\n    return int(n / 2)\n", "divides with /"),
    (rules.core_has_no_floats, "def halve(n):\n    n /= 2\n    return n\n", "divides with /"),
    (rules.core_has_no_floats, "def real(n: int) -> object:\n    return float(n)\n", "names float"),
    (rules.core_has_no_floats, "import numpy as np\n\nA = np.zeros(3, dtype=np.float64)\n", "uses np.float64"),
    (rules.core_iterates_no_sets, "def f() -> None:\n    for x in {1, 2}:\n        g(x)\n", "order of a set"),
    (
        rules.core_iterates_no_sets,
        "def f(names: list[str]) -> list[str]:\n    seen = set(names)\n    return [n for n in seen]\n",
        "order of a set",
    ),
    (rules.core_iterates_no_sets, "def f(names: frozenset[str]) -> list[str]:\n    return list(names)\n", "order of a set"),
    (
        rules.core_iterates_no_sets,
        "def f(a: set[int], b: set[int]) -> tuple[int, ...]:\n    return tuple(a - b)\n",
        "order of a set",
    ),
    (rules.core_iterates_no_sets, "def f(a: set[int]) -> int:\n    return a.pop()\n", "order of a set"),
    (
        rules.core_iterates_no_sets,
        "class A:\n    def __init__(self):\n        self.b: set[int] = set()\n\n    def f(self):\n        return list(self.b)\n",
        "order of a set",
    ),
    (rules.core_sorts_stably, "import numpy as np\n\nORDER = np.argsort(np.arange(3))\n", "argsort without"),
    (rules.core_sorts_stably, "import numpy as np\n\nORDER = np.arange(3).argsort(kind='quicksort')\n", "argsort without"),
    (rules.core_sorts_stably, "import numpy as np\n\nORDER = np.sort(np.arange(3))\n", "sort without"),
    (rules.core_sorts_stably, "import numpy as np\n\nORDER = np.argpartition(np.arange(3), 1)\n", "calls argpartition"),
    (rules.core_sorts_stably, "import numpy as np\n\nKINDS = np.unique(np.arange(3))\n", "calls unique"),
    (rules.files_are_short, "A = 1\n" * 600, "has 602 lines"),
    (rules.files_are_short, "def f() -> None:\n" + "    g()\n" * 100, "f has 101 lines"),
    (rules.no_file_is_dead, "A = 1\n", "nothing imports it"),
    (rules.nothing_is_left_for_later, "A = 1  # TODO: count\n", "says TODO"),
    (rules.nothing_is_left_for_later, "def f() -> None:\n    raise NotImplementedError\n", "says NotImplementedError"),
]


@pytest.mark.parametrize(("rule", "text", "found"), PLANTS, ids=[f"{rule.__name__}:{found}" for rule, _, found in PLANTS])
def test_the_rule_finds_its_plant(tmp_path: Path, rule: Callable[[Path], list[str]], text: str, found: str) -> None:
    tree = small_tree(tmp_path)
    assert rule(tree) == []
    (tree / ENGINE).write_text(HEADER + text)
    findings = rule(tree)
    assert findings, "the plant was not found"
    assert all(re.match(rf"{ENGINE}(:\d+)?: ", finding) for finding in findings)
    assert any(found in finding for finding in findings)


def test_a_sorted_set_and_a_membership_are_no_finding(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    text = "def f(a: set[int]) -> list[int]:\n    return sorted(a) if 1 in a else []\n"
    (tree / ENGINE).write_text(HEADER + text)
    assert rules.core_iterates_no_sets(tree) == []


def test_a_module_without_docstring_is_found(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    (tree / ENGINE).write_text("A = 1\n")
    assert rules.modules_say_what_they_are(tree) == [f"{ENGINE}: has no docstring"]


def test_a_package_without_marker_is_found(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    (tree / "services/muster/engine/py.typed").unlink()
    assert rules.modules_say_what_they_are(tree) == ["services/muster/engine: has no py.typed"]


def test_a_dependency_that_nothing_imports_is_found(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    every = "aiokafka, asyncpg, faust, httptools, httpx, litestar, msgspec, numpy, platformdirs, prometheus_client, rich.table"
    every += ", typer, tzdata, uvicorn, uvloop"
    (tree / ENGINE).write_text(HEADER + f"import {every}, pynvml, yaml\n")
    assert rules.every_dependency_is_imported(tree) == []
    (tree / ENGINE).write_text(HEADER + f"import {every}, pynvml\n")
    assert rules.every_dependency_is_imported(tree) == ["pyproject.toml: pyyaml is imported nowhere"]


def test_an_init_in_the_namespace_is_found(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    (tree / "services/muster/__init__.py").write_text(HEADER)
    assert rules.muster_is_a_namespace(tree) == ["services/muster/__init__.py: must not be there"]


def small_tree(folder: Path) -> Path:
    """A tree of the same layout in which every rule holds."""
    for source, package in (("events", "events"), ("projections", "cluster"), ("services", "engine")):
        place = folder / source / "muster" / package
        place.mkdir(parents=True)
        (place / "__init__.py").write_text(HEADER)
        (place / "py.typed").touch()
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder
