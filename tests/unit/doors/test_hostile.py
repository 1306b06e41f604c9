"""Malformed, huge and hostile files: nothing but a `DoorError` with a place comes out of a door, and it comes soon.

How soon is counted in calls of functions, not in time.
"""

import contextlib
import itertools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from muster.doors import DoorError, Origin, open_file
from muster.doors.images import read_images
from muster.doors.origin import is_name
from muster.events.codec import decode_input, encode_entry
from tests.unit.doors.manifests import MANIFESTS
from tests.unit.doors.scripts import SCRIPTS
from tests.unit.doors.test_kubernetes_places import MEMBERS, VOLCANO

MEMBER = {"scheduling.x-k8s.io/pod-group": "g"}
MIB = 1024 * 1024
LINE_END = re.compile(rb"\r\n|[\r\n]|\xc2\x85|\xe2\x80[\xa8\xa9]")
"""What YAML ends a line with."""
PART = 128 * 1024
CALLS_A_BYTE = 8
CALLS_ANYWAY = 250_000
"""What a file may cost however small it is: the most values that are read of one."""

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
        MEMBERS.encode(),
        VOLCANO.encode(),
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
    st.sampled_from(
        [
            "",
            "gpu:",
            ":::",
            "[[[",
            "1-",
            "-1-",
            "0-0:0",
            "%",
            "9" * 500,
            "(a|b)&c",
            "[a*2&(b|c)]",
            "a&|b",
            "((((((((((a",
            "a100_80gb|v100",
            "x:2,y@db",
            "1@10:00",
            "a[0-9][0-9][0-9][0-9][0-9][0-9]",
        ]
    ),
)
OPTION_NAMES = (
    st.sampled_from(
        ["array", "nodes", "ntasks", "gres", "gpus", "mem", "mem-per-cpu", "time", "nodelist", "exclude", "export", "nice", "tmp"]
    )
    | st.sampled_from(["constraint", "licenses", "switches", "exclusive", "prefer", "mincpus", "C", "L"])
    | st.sampled_from(
        [
            "job-name",
            "partition",
            "output",
            "chdir",
            "cpus-per-task",
            "gpus-per-task",
            "ntasks-per-node",
            "cpus-per-gpu",
            "n",
            "x",
        ]
    )
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
    "topologySpreadConstraints",
    "priorityClassName",
    "hostNetwork",
)
CONTAINER_KEYS = ("image", "ports", "command", "args", "env", "resources", "volumeMounts", "workingDir")
VOLCANO_KEYS = ("minAvailable", "maxRetry", "queue", "policies", "plugins", "priorityClassName")
TASK_KEYS = ("name", "replicas", "minAvailable", "policies", "template")
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
    st.dictionaries(st.sampled_from(VOLCANO_KEYS), VALUES, max_size=3),
    st.lists(st.dictionaries(st.sampled_from(TASK_KEYS), VALUES, max_size=3), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(("minMember", "queue", "value")), VALUES, max_size=2),
)
def test_any_value_in_a_gang_is_taken_or_its_error_has_a_place(
    spec: dict[str, Any], tasks: list[dict[str, Any]], group: dict[str, Any]
) -> None:
    pod = {"spec": {"containers": [{"image": "x"}]}}
    whole = [{"template": pod} | task for task in tasks]
    documents = [
        {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "a"}, "spec": {"tasks": whole} | spec},
        {"apiVersion": "v1", "kind": "PodGroup", "metadata": {"name": "g"}, "spec": group},
        {"apiVersion": "v1", "kind": "PriorityClass", "metadata": {"name": "h"}} | group,
        *({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": MEMBER}} | pod for name in ("p", "q")),
    ]
    opens_or_says_where(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}).encode())


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
def test_a_huge_file_is_opened_or_refused(name: str) -> None:
    opens_or_says_where(HUGE[name])


@pytest.mark.parametrize("name", HUGE)
def test_work_grows_no_faster_than_the_file(name: str) -> None:
    data = HUGE[name][:PART]
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        with contextlib.suppress(DoorError):
            open_file(data, "file", ORIGIN)
    finally:
        sys.setprofile(None)
    assert calls < CALLS_A_BYTE * len(data) + CALLS_ANYWAY


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in itertools.pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    ("data", "line", "said"),
    [
        (LAUGHS.encode(), 6, "beyond the 100000 values"),
        (b"name: &a [*a]\n", 1, "anchor 'a', which is not there"),
        (b"name: x\nlabels: " + b"{a: " * 40 + b"}" * 40, 2, "nested more than 32 deep"),
        (b"[" * 40 + b"]" * 40, 1, "nested more than 32 deep"),
        (b"name: x\ncommand: a\0b\n", 2, "control character '\\x00'"),
        (b'name: x\ncommand: "a\\0b"\n', 1, "NUL character"),
        (b"#!/bin/bash\n#SBATCH -n 1\necho \0\n", 3, "NUL"),
        (b"name: x\n\xff\n", 2, "not UTF-8: byte 8 is 0xff"),
        (b"name: x\ngpus: 1e400\n", 2, "whole number"),
        (b"name: x\ngpus: " + b"9" * 5000, 2, "whole number"),
        (b"name: x\ncpu: 0x" + b"f" * 5000, 2, "cores"),
        (b"name: x\ntime_limit: 99999999999999d\n", 2, "span"),
        (b"name: $(touch x)\n", 1, "lower-case letters"),
        (b'name: "a\\nb"\n', 1, "lower-case letters"),
        (b"name: ../../etc\n", 1, "lower-case letters"),
        (b"#!/bin/bash\n#SBATCH --time=99999999999999999999\n", 2, "time"),
        (b"#!/bin/bash\n#SBATCH --mem=99999999999999999999T\n", 2, "mem"),
        (b"x" * (10 * MIB), 1, f"has {10 * MIB} bytes; at most {MIB} are read"),
        (b"#!/bin/bash\n" + b"x" * (10 * MIB), 1, f"at most {MIB} are read"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(data: bytes, line: int, said: str) -> None:
    with pytest.raises(DoorError) as caught:
        open_file(data, "file", ORIGIN)
    assert said in str(caught.value)
    assert caught.value.line == line


EVIL = ("$(touch x)", "`touch x`", "a; touch x", "a\nb", "'; touch x; '", "../../../etc/passwd", "%j/../../x", "-rf", "a\x1b[2J")


@pytest.mark.parametrize("evil", EVIL)
def test_nothing_but_the_users_own_command_is_in_the_command(evil: str) -> None:
    quoted = json.dumps(evil)
    fields = f"labels: {{k: {quoted}}}\noutput: {quoted}\ndirectory: {quoted}\nenvironment: {{E: {quoted}}}\n"
    muster = f"name: a\nuser: u\n{fields}command: 'true'\n"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "labels": {"k": evil}},
        "spec": {"containers": [{"image": "x", "command": ["true"], "env": [{"name": "E", "value": evil}], "workingDir": evil}]},
    }
    script = "".join(
        f"#SBATCH --{name}={json.dumps(evil)}\n" for name in ("job-name", "output", "chdir", "comment") if "\n" not in evil
    )
    for data, command in (
        (muster.encode(), ("bash", "-c", "true")),
        (json.dumps(pod).encode(), ("true",)),
        (f"#!/bin/bash\n{script}true\n".encode(), None),
    ):
        (job,) = open_file(data, "file", ORIGIN).jobs
        assert is_name(job.name)
        if command is not None:
            assert job.run.command == command
        else:  # the script is the user's own, and travels as it is
            assert job.run.command == ("/bin/bash", "-c", data.decode(), "slurm_script")


def test_no_shell_is_ours() -> None:
    """A shell runs what a job says is for one, in the task and nowhere else."""
    for path in (Path(__file__).parents[3] / "services").rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"shell\s*=\s*True|os\.system\(|os\.popen\(|getoutput\(|create_subprocess_shell", text), path
