"""Malformed, huge and hostile files: nothing but a `DoorError` with a place comes out of a door, and it comes soon."""

import json
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from muster.doors import DoorError, Origin, open_file
from muster.doors.images import read_images
from muster.events.codec import decode_input, encode_entry
from tests.unit.doors.manifests import MANIFESTS
from tests.unit.doors.scripts import SCRIPTS

MIB = 1024 * 1024
LINE_END = re.compile(rb"\r\n|[\r\n]|\xc2\x85|\xe2\x80[\xa8\xa9]")
"""What YAML ends a line with."""
SECONDS_MAX = 15.0
"""Of the processor, for a file of one MiB."""

ORIGIN = Origin(new_id=lambda: "01900000-0000-7000-8000-000000000001", user="ann", environment={"HOME": "/home/ann"})
SLOW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def opens_or_says_where(data: bytes) -> None:
    """Open the file; what comes out is taken by the scheduler, or is an error that names a place inside the file."""
    lines = len(LINE_END.findall(data)) + 1
    refused: DoorError | None = None
    try:
        opened = open_file(data, "file", ORIGIN)
    except DoorError as error:
        refused = error
    if refused is not None:
        assert refused.file == "file"
        assert 1 <= refused.line <= lines
        assert len(str(refused)) < 1500
        assert "\n" not in str(refused)
        return
    assert opened.jobs
    for job in opened.jobs:
        assert decode_input(encode_entry(job))[0] == job
    for notice in opened.notices:
        assert notice.file == "file"
        assert 1 <= notice.line <= lines
        assert len(str(notice)) < 1500


PIECES = st.sampled_from(
    [
        *(script.encode() for script, _, _ in SCRIPTS.values()),
        *(manifest.encode() for manifest, _, _ in MANIFESTS.values()),
        b'name: a\ngpus: 1\ngpu_share: "0.5"\ncommand: x\n',
    ]
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A file that was right, with pieces cut out, doubled and replaced."""
    data = bytearray(draw(PIECES))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 12)))
        junk = draw(
            st.one_of(
                st.binary(max_size=6),
                st.sampled_from(
                    [b"-1", b"0", b"9" * 30, b"1e999999999", b"null", b"[", b"{", b"}", b": ", b"\n", b"&a ", b"*a", b"<<: "]
                ),
                st.sampled_from(
                    [b"\0", b"\xed\xa0\x80", b"'", b'"', b"%", b"#", b"\t", b"---\n", b"!!binary ", b"--", b"-", b"=", b"0x"]
                ),
                st.just(bytes(data[start : start + 20])),
            )
        )
        data[start:end] = junk
    return bytes(data)


@SLOW
@given(damaged())
def test_a_damaged_file_is_opened_or_its_error_has_a_place(data: bytes) -> None:
    opens_or_says_where(data)


@SLOW
@given(st.binary(max_size=200))
@example(b"#!")
@example(b"#!\n#SBATCH")
@example(b"\xef\xbb\xbfname: a\n")
@example(b"%YAML 9.9\n---\n")
@example(b"\r(")
@example(b"[]")
def test_any_bytes_are_opened_or_their_error_has_a_place(data: bytes) -> None:
    opens_or_says_where(data)


OPTION_VALUES = st.one_of(
    st.text(max_size=12),
    st.integers(-(10**20), 10**20).map(str),
    st.from_regex(r"[a-z0-9:\[\]\-,%=.]{0,20}", fullmatch=True),
    st.sampled_from(["", "gpu:", ":::", "[[[", "1-", "-1-", "0-0:0", "%", "9" * 500, "a[0-9][0-9][0-9][0-9][0-9][0-9]"]),
)
OPTION_NAMES = st.sampled_from(
    ["array", "nodes", "ntasks", "gres", "gpus", "mem", "mem-per-cpu", "time", "nodelist", "exclude", "export", "nice", "tmp"]
) | st.sampled_from(
    ["job-name", "partition", "output", "chdir", "cpus-per-task", "gpus-per-task", "ntasks-per-node", "cpus-per-gpu", "n", "x"]
)


@SLOW
@given(st.lists(st.tuples(OPTION_NAMES, OPTION_VALUES), min_size=1, max_size=5))
def test_any_value_of_an_option_is_taken_or_its_error_has_a_place(options: list[tuple[str, str]]) -> None:
    lines = [f"#SBATCH --{name}={value}" for name, value in options]
    opens_or_says_where("\n".join(["#!/bin/bash", *lines, "hostname", ""]).encode())


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.sampled_from(["1Gi", "500m", "Exists", "In", "Never"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
POD_KEYS = (
    "containers",
    "affinity",
    "tolerations",
    "nodeSelector",
    "volumes",
    "priority",
    "restartPolicy",
    "activeDeadlineSeconds",
)
CONTAINER_KEYS = ("image", "command", "args", "env", "resources", "volumeMounts", "workingDir")
JOB_KEYS = ("parallelism", "completions", "completionMode", "backoffLimit", "suspend", "template")


@SLOW
@given(
    st.dictionaries(st.sampled_from(POD_KEYS), VALUES, max_size=3),
    st.dictionaries(st.sampled_from(CONTAINER_KEYS), VALUES, max_size=3),
    st.dictionaries(st.sampled_from(JOB_KEYS), VALUES, max_size=2),
)
def test_any_value_in_a_manifest_is_taken_or_its_error_has_a_place(pod: object, container: object, job: object) -> None:
    whole = {"containers": [{"image": "x", "command": ["y"]} | dict(container)]} | dict(pod)  # type: ignore[call-overload]
    spec = {"template": {"spec": {"restartPolicy": "Never"} | whole}} | dict(job)  # type: ignore[call-overload]
    for document in (
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": whole},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": spec},
    ):
        opens_or_says_where(json.dumps(document).encode())


@SLOW
@given(
    st.one_of(
        st.binary(max_size=60), st.text(max_size=60).map(lambda text: b'[images]\n"a" = ' + text.encode("utf-8", "replace"))
    )
)
def test_any_file_of_images_is_read_or_its_error_has_a_place(data: bytes) -> None:
    lines = 1
    try:
        read_images(data, "images.toml")
    except DoorError as error:
        lines = error.line
    assert 1 <= lines <= data.count(b"\n") + 1


def _fill(line: Callable[[int], str], start: str = "", end: str = "") -> bytes:
    """Lines up to one MiB."""
    parts, size, number = [start], len(start) + len(end), 0
    while size < MIB - 200:
        parts.append(line(number))
        size += len(parts[-1])
        number += 1
    return "".join([*parts, end]).encode()[:MIB]


POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - image: x\n"

HUGE = {
    "zeros": b"\0" * MIB,
    "open lists": b"[" * MIB,
    "open mappings": b'{"a":' * (MIB // 5),
    "lists in lists": b"- " * (MIB // 2),
    "keys": _fill(lambda n: f"k{n}: 1\n"),
    "the same key": _fill(lambda n: "k: 1\n"),
    "jobs": _fill(lambda n: f"---\nname: j{n}\n"),
    "a list of jobs": _fill(lambda n: f"- name: j{n}\n"),
    "json jobs": _fill(lambda n: f'{{"name": "j{n}"}},\n', "[", '{"name": "z"}]'),
    "one text": b"name: a\ncommand: " + b"x" * (MIB - 20),
    "a quoted text without end": b'name: "' + b"x" * (MIB - 20),
    "a json string without end": b'{"name": "' + b"\\\\" * (MIB // 2 - 20),
    "digits": b"name: a\ngpus: " + b"9" * (MIB - 20),
    "a number with an exponent": b"name: a\ncpu: 1e" + b"9" * (MIB - 20),
    "aliases": _fill(lambda n: "- *a\n", "- &a [1, 2, 3]\n"),
    "merges": _fill(lambda n: "- {<<: *b}\n", "- &b {a: 1, b: 2, c: 3, d: 4, e: 5, f: 6}\n"),
    "variables": _fill(
        lambda n: f"    - {{name: V{n}, value: $(V0)}}\n", POD + "    env:\n    - {name: V0, value: aaaaaaaaaaaaaaaaaaaaaaaa}\n"
    ),
    "references": (POD + "    env:\n    - {name: V, value: " + "a" * 60000 + "}\n    command: ['").encode()
    + b"$(V)" * 200_000
    + b"']\n",
    "tolerations": _fill(lambda n: f"  - {{key: k{n}}}\n", POD + "  tolerations:\n"),
    "selectors": _fill(lambda n: f"    k{n}: v\n", POD + "  nodeSelector:\n"),
    "unknown keys": _fill(lambda n: f"  k{n}: v\n", POD),
    "containers": _fill(lambda n: "  - image: x\n", POD),
    "pods": _fill(lambda n: f"---\n{POD}"),
    "other objects": _fill(lambda n: "---\napiVersion: v1\nkind: Service\n"),
    "options": _fill(lambda n: "#SBATCH --gpus=1\n", "#!/bin/bash\n"),
    "options that are none": _fill(lambda n: f"#SBATCH --zz{n}\n", "#!/bin/bash\n"),
    "options on one line": _fill(lambda n: "-n 1 ", "#!/bin/bash\n#SBATCH "),
    "letters": b"#!/bin/bash\n#SBATCH -" + b"H" * (MIB - 40),
    "backslashes": b"#!/bin/bash\n#SBATCH --comment=" + b"\\" * (MIB - 40),
    "quotes": b"#!/bin/bash\n#SBATCH --comment=" + b"'\"" * (MIB // 2 - 40),
    "late options": _fill(lambda n: "#SBATCH --gpus=1\n", "#!/bin/bash\nx\n"),
    "a long script": _fill(lambda n: "echo hello\n", "#!/bin/bash\n"),
    "hosts": b"#!/bin/bash\n#SBATCH -w " + b"a[1-9]," * 140_000,
    "brackets": b"#!/bin/bash\n#SBATCH -w " + b"a[1-9]" * 10_000,
    "indices": b"#!/bin/bash\n#SBATCH -a " + b"0-99999," * 120_000,
    "partitions": b"#!/bin/bash\n#SBATCH -p " + b"gpu," * 250_000,
    "resources": b"#!/bin/bash\n#SBATCH --gres=" + b"gpu:1," * 170_000,
    "other resources": b"#!/bin/bash\n#SBATCH --gres=" + b"x(1," * 250_000,
    "exports": b"#!/bin/bash\n#SBATCH --export=" + b"A=1," * 250_000,
    "exports with quotes": b"#!/bin/bash\n#SBATCH --export=" + b"A='," * 250_000,
    "words after the interpreter": b"#!/bin/bash" + b" -x" * 300_000,
    "a name": b"#!/bin/bash\n#SBATCH -J " + b"a_" * 500_000,
    "too large": b"x" * (MIB + 1),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_file_is_opened_or_refused_within_seconds(name: str) -> None:
    began = time.process_time()
    opens_or_says_where(HUGE[name])
    taken = time.process_time() - began
    print(f"{name}: {taken:.2f} s")
    assert taken < SECONDS_MAX
