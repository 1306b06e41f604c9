"""Muster's own job files: read, refused, written and read again."""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.cli.main import run as muster
from muster.doors import DoorError, Origin, open_file
from muster.doors.fields import JOB_KEYS
from muster.doors.muster_file import job_document
from muster.doors.reference import reference
from muster.doors.writing import as_json, as_yaml
from muster.events.codec import Malformed, check_submission
from muster.events.jobs import Dependency, GroupRequest, JobRequest, JobRun, JobSubmitted, Requirement, Toleration
from tests.unit.doors.manifests import MANIFESTS
from tests.unit.doors.scripts import SCRIPTS

ROOT = Path(__file__).parents[3]
EXAMPLE = """
name: train
queue: gpu
priority: 5
count: 4
min: 2
gpus: 8
gpu_model: [H200, H100]
gpu_memory: 80Gi
cpu: 500m
memory: 1Ti
disk: 10Gi
selector: {zone: [a, b], on: "true"}
tolerations: ["dedicated=ml:NoSchedule", "spot:NoExecute", ":PreferNoSchedule"]
array: {count: 3}
time_limit: 1d12h
grace: 1.5
max_retries: 2
preemptible: false
labels: {team: vision, on: on}
command: python train.py --config config.yaml
environment: {LEVEL: 3, EMPTY: null, FLAG: true}
directory: /data
output: out.%j
"""


def origin() -> Origin:
    numbers = itertools.count()
    return Origin(new_id=lambda: f"job-{next(numbers)}", user="ann", queue="default", submitted_us=7)


def read(text: str) -> list[JobSubmitted]:
    return list(open_file(text.encode(), "job.yaml", origin()).jobs)


def test_every_field_says_what_it_means() -> None:
    (job,) = read(EXAMPLE)
    assert (job.job, job.name, job.user, job.queue, job.submitted_us) == ("job-0", "train", "ann", "gpu", 7)
    request = job.request
    assert (request.priority, request.array, request.max_retries, request.preemptible) == (5, 3, 2, False)
    assert (request.time_limit_us, request.grace_us) == (36 * 3600 * 1_000_000, 1_500_000)
    assert request.labels == {"team": "vision", "on": "on"}
    (group,) = request.groups
    assert (group.count, group.min, group.gpus, group.gpu_models) == (4, 2, 8, ("H200", "H100"))
    assert (group.cpu_milli, group.memory_mib, group.disk_mib, group.gpu_memory_mib) == (500, 1024 * 1024, 10240, 81920)
    assert group.selector == (Requirement(key="zone", values=("a", "b")), Requirement(key="on", values=("true",)))
    assert group.tolerations == (
        Toleration(key="dedicated", value="ml", effect="NoSchedule"),
        Toleration(key="spot", any_value=True, effect="NoExecute"),
        Toleration(any_value=True, effect="PreferNoSchedule"),
    )
    assert job.run.command == ("bash", "-c", "python train.py --config config.yaml")
    assert job.run.environment == {"LEVEL": "3", "EMPTY": "", "FLAG": "true"}


def test_what_is_not_said_is_as_the_reference_says() -> None:
    (job,) = read("name: a\ncommand: [hostname]\n")
    assert job.request.groups == (GroupRequest(cpu_milli=100, memory_mib=100),)
    assert job.queue == "default"


def test_shares_and_groups() -> None:
    (job,) = read('name: a\ngpu_share: "0.25"\n')
    assert job.request.groups[0].gpu_milli == 250
    (job,) = read("name: a\nsuccess: head\ngroups:\n- {name: head}\n- {name: worker, count: 4, min: 2, gpus: 8}\n")
    assert [(group.name, group.count, group.min) for group in job.request.groups] == [("head", 1, 1), ("worker", 4, 2)]


def test_a_file_holds_documents_or_lists_in_yaml_or_json() -> None:
    assert [job.name for job in read("name: a\n---\n- {name: b}\n- {name: c}\n---\n...\n")] == ["a", "b", "c"]
    assert [job.name for job in read('[{"name": "a"},\n {"name": "b", "command": ["x", "\\u00e9\\ud83d\\ude00"]}]')] == ["a", "b"]
    assert read('{"name": "a", "command": ["\\ud83d\\ude00"]}')[0].run.command == ("\U0001f600",)
    assert read("{name: a, gpus: 1}")[0].request.groups[0].gpus == 1


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "1: file", "is empty"),
        ("--- {}\n", "1: file", "no name"),
        ("hello\n", "1: file", "must be a job"),
        ("---\n[]\n", "2: file", "holds no job"),
        ("gpus: 1\n", "1: file", "has no name"),
        ("name: A\n", "1: name", "lower-case"),
        ("name: a\ngpu: 1\n", "2: gpu", "is unknown: a job knows name, user"),
        ("name: a\nname: b\n", "2: name", "stands twice; first in line 1"),
        ('{"name": "a",\n "gpus": 1,\n "gpus": 2}', "3: gpus", "stands twice; first in line 2"),
        ("name: a\ngpus: yes\n", "2: gpus", "whole number from 0 to 64, not 'yes'"),
        ("name: a\ngpus: 65\n", "2: gpus", "from 0 to 64"),
        ("name: a\npreemptible: on\n", "2: preemptible", "true or false, not 'on'"),
        ("name: a\nmemory: 64\n", "2: memory", "with a unit such as 64Gi"),
        ("name: a\nmemory: 0.3Mi\n", "2: memory", "whole MiB"),
        ("name: a\ncpu: 0.0005\n", "2: cpu", "thousandths"),
        ("name: a\ncpu: 1e3\n", "2: cpu", "0.5 or 500m"),
        ("name: a\ngpu_share: 1\n", "2: gpu_share", '"0.5"'),
        ('name: a\ngpu_share: "0.0001"\n', "2: gpu_share", "thousandths"),
        ('name: a\ngpus: 1\ngpu_share: "0.5"\n', "3: gpu_share", "exclude each other"),
        ("name: a\ncount: 2\nmin: 3\n", "3: min", "at most the count, 2"),
        ("name: a\ntime_limit: 10:00\n", "2: time_limit", "24h"),
        ("name: a\ngroups: []\n", "2: groups", "1 to 64 groups"),
        ("name: a\ngpus: 1\ngroups: [{name: g}]\n", "2: gpus", "must stand in the groups"),
        ("name: a\ngroups: [{count: 1}]\n", "2: groups[0]", "without a name"),
        ("name: a\ngroups: [{name: g}, {name: g}]\n", "1: file", "two groups have one name"),
        ("name: a\nsuccess: head\n", "1: file", "request.success names the group 'head'"),
        ("name: a\nselector: [{key: k, op: Like}]\n", "2: selector[0].op", "must be one of In"),
        ("name: a\nselector: [{key: k, op: In}]\n", "1: file", "needs values"),
        ("name: a\ntolerations: [spot]\n", "2: tolerations[0]", "key=value:Effect"),
        ("name: a\ncommand: []\n", "2: command", "must begin with the program"),
        ('name: a\ncommand: "a\\0b"\n', "1: file", "NUL"),
        ("name: a\nenvironment: {A=B: 1}\n", "2: environment.A=B", "no name of a variable"),
        ("name: a\narray: 0\n", "2: array", "from 1 to 100000"),
        ("name: a\nlabels: {a: [b]}\n", "2: labels.a", "must be text, not a list"),
        ("name: !!python/object:os.system x\n", "1: name", "has the tag"),
        ("name: *nowhere\n", "1: name", "'nowhere', which is not there"),
        ("name: a\n? [x]\n: 1\n", "2: file", "a key that is no text"),
        ("name: a\n\tgpus: 1\n", "2: file", "is not YAML"),
        ("name: [" * 40, "1: ", "nested more than 32 deep"),
        ("a: &a [x]\nb: [" + "*a, " * 10 + "z\n", "2: file", "is not YAML"),
    ],
)
def test_an_error_names_the_line_the_key_and_what_would_be_right(text: str, place: str, words: str) -> None:
    with pytest.raises(DoorError) as caught:
        read(text)
    assert str(caught.value).startswith(f"job.yaml:{place}")
    assert words in str(caught.value)


def test_aliases_that_would_double_and_double_again_are_refused() -> None:
    text = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    with pytest.raises(DoorError, match="values"):
        read(text)
    merged = "base: &b {" + ", ".join(f"k{n}: 1" for n in range(3000)) + "}\nlist:\n" + "- {<<: *b}\n" * 3000
    with pytest.raises(DoorError, match="values"):
        read(merged)


def test_bytes_that_are_no_text_and_files_without_end_are_refused() -> None:
    with pytest.raises(DoorError, match=r"job:2: file is not UTF-8: byte 8 is 0xff"):
        open_file(b"name: a\n\xff", "job", origin())
    with pytest.raises(DoorError, match="at most 1048576 are read"):
        open_file(b"#" * (1024 * 1024 + 1), "job", origin())


LABELS = st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), max_size=3)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
GROUPS = st.builds(
    GroupRequest,
    count=st.integers(2, 9),
    min=st.integers(1, 2),
    cpu_milli=st.integers(0, 10**6),
    memory_mib=st.integers(0, 10**7),
    disk_mib=st.integers(0, 10**7),
    gpus=st.integers(0, 64),
    gpu_memory_mib=st.integers(0, 10**6),
    gpu_models=st.lists(st.text(min_size=1, max_size=5), max_size=3, unique=True).map(tuple),
    selector=st.lists(
        st.one_of(
            st.builds(Requirement, key=st.text(min_size=1, max_size=5), values=st.lists(TEXT, min_size=1, max_size=3).map(tuple)),
            st.builds(Requirement, key=st.text(min_size=1, max_size=5), op=st.sampled_from(["Exists", "DoesNotExist"])),
        ),
        max_size=3,
    ).map(tuple),
    tolerations=st.lists(
        st.one_of(
            st.builds(Toleration, key=TEXT, value=TEXT, effect=st.sampled_from(["", "NoSchedule", "NoExecute"])),
            st.builds(Toleration, key=TEXT, any_value=st.just(True)),
        ),
        max_size=3,
    ).map(tuple),
)
JOBS = st.builds(
    JobSubmitted,
    job=st.just("job-0"),
    name=st.just("a"),
    user=st.just("ann"),
    submitted_us=st.just(7),
    request=st.builds(
        JobRequest,
        groups=st.lists(GROUPS, min_size=1, max_size=3).map(
            lambda groups: tuple(msgspec.structs.replace(group, name=f"g{n}") for n, group in enumerate(groups))
        ),
        priority=st.integers(-(10**9), 10**9),
        preemptible=st.booleans(),
        array=st.none() | st.integers(1, 9),
        time_limit_us=st.none() | st.integers(0, 10**14),
        grace_us=st.integers(0, 10**12),
        labels=LABELS,
    ),
    run=st.builds(
        JobRun,
        command=st.lists(TEXT, min_size=1, max_size=4).filter(lambda words: bool(words[0])).map(tuple),
        environment=st.dictionaries(st.text("ABC_", min_size=1, max_size=4), TEXT, max_size=3),
        output=TEXT,
    ),
)


@settings(max_examples=100, deadline=None)
@given(JOBS)
@example(
    JobSubmitted(
        job="job-0",
        name="a",
        user="ann",
        submitted_us=7,
        request=JobRequest(groups=(GroupRequest(),)),
        run=JobRun(command=("\x85\n", "\u2028\na", "a\n\n", " a\nb", "\ufeffa\n", "a \nb")),
    )
)
def test_a_job_that_is_written_is_read_as_the_same_job(job: JobSubmitted) -> None:
    try:
        check_submission(job)
        msgspec.convert(msgspec.to_builtins(job), JobSubmitted)
    except (Malformed, msgspec.ValidationError):
        return  # no job at all
    for text in (as_yaml([job_document(job)]), as_json([job_document(job)])):
        assert read(text) == [job]


@pytest.mark.parametrize("name", [*SCRIPTS, *MANIFESTS])
def test_what_came_through_another_door_is_written_and_read_as_the_same(name: str) -> None:
    text = SCRIPTS[name][0] if name in SCRIPTS else MANIFESTS[name][0]
    opened = open_file(text.encode(), "file", Origin(new_id=lambda: "job-0", user="ann", submitted_us=7))
    for job in opened.jobs:
        assert read(as_yaml([job_document(job)])) == [job]


def test_the_reference_is_what_the_types_say() -> None:
    committed = (ROOT / "docs" / "job-file.md").read_text(encoding="utf-8")
    assert committed == reference(), "run: python -m muster.doors.reference"
    for key in JOB_KEYS:
        assert f"`{key}`" in committed


def test_the_reference_is_written_by_a_command(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    subprocess.run([sys.executable, "-m", "muster.doors.reference", str(path)], check=True, capture_output=True)
    assert path.read_text(encoding="utf-8") == reference()


def test_each_example_of_the_pages_is_read() -> None:
    found = 0
    for page in ("job-file.md", "slurm.md", "kubernetes.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for block in text.split("```yaml\n")[1:]:
            body = block.partition("```")[0]
            if body.startswith(("selector", "tolerations")):
                bodies = [f"name: a\n{part}" for part in body.split("---\n")]
            else:
                bodies = [body]
            for one in bodies:
                assert open_file(one.encode(), page, origin()).jobs
                found += 1
        for block in text.split("```bash\n#!")[1:]:
            assert open_file(f"#!{block.partition('```')[0]}".encode(), page, origin()).jobs
            found += 1
    assert found >= 8


def convert(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    code = muster(["convert", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_convert_prints_a_job_file_and_names_what_is_not_honoured(tmp_path: Path, capsys: Any) -> None:
    script = tmp_path / "a.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --begin=noon\n#SBATCH --array=[0-50]%5\n#SBATCH -d afterok:1:2\npython run.py\n")
    code, out, err = convert(capsys, str(script))
    assert code == 0
    assert f"{script}:2: --begin 'noon' is not honoured" in err
    request = read(out)[0].request
    assert (request.array, request.at_once) == (51, 5)
    assert request.after == (Dependency(job="1"), Dependency(job="2"))
    code, as_list, _ = convert(capsys, str(script), "--json", "--user", "bob", "--queue", "q")
    assert (read(as_list)[0].user, read(as_list)[0].queue) == ("bob", "q")
    code, out, err = convert(capsys, str(script), "--strict")
    assert (code, out) == (1, "")
    assert "1 of what the file asks for cannot be honoured" in err


def test_convert_says_in_one_sentence_what_is_wrong(tmp_path: Path, capsys: Any) -> None:
    wrong = tmp_path / "a.yaml"
    wrong.write_text("name: a\ngpus: many\n")
    assert convert(capsys, str(wrong)) == (2, "", f"muster: {wrong}:2: gpus must be a whole number from 0 to 64, not 'many'\n")
    code, _, err = convert(capsys, str(tmp_path / "missing"))
    assert (code, "cannot be read" in err) == (3, True)
    assert convert(capsys, str(wrong), "--json", "--yaml")[0] == 2


@pytest.mark.parametrize(
    ("said", "starts"),
    [
        ("", "/home/ann/work"),
        ("directory: runs/a\n", "/home/ann/work/runs/a"),
        ("directory: /data\n", "/data"),
        ("directory: null\n", ""),
        ("image: an/image\n", ""),
        ("image: an/image\ndirectory: /in/it\n", "/in/it"),
    ],
)
def test_a_job_starts_where_it_was_submitted_unless_it_says_otherwise(said: str, starts: str) -> None:
    here = Origin(new_id=lambda: "job-0", user="ann", directory="/home/ann/work")
    (job,) = open_file(f"name: a\ncommand: pwd\n{said}".encode(), "job.yaml", here).jobs
    assert job.run.directory == starts
    text = msgspec.json.encode(job_document(job))
    assert open_file(text, "job.json", here).jobs == (job,)
