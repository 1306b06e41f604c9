"""Rows hold what PostgreSQL can hold, and no more than they should."""

from muster.cluster.evolve import apply
from muster.cluster.jobs import Job, job_of
from muster.cluster.shapes import intern_gang
from muster.cluster.state import State
from muster.events.codec import decode_cycle
from muster.events.jobs import GroupRequest, JobRequest, JobRun
from muster.history.making import COMMAND_MAX, LARGEST, counted, gpu_milli, job_row, json, shortened, text, total
from muster.history.rows import BY_NAME, TABLES, Json
from tests.golden.recorded import LOGS, names, read


def test_no_text_has_a_character_that_postgres_cannot_hold() -> None:
    assert text("a\0b\0") == "a\ufffdb\ufffd"
    assert text("as it is") == "as it is"
    assert json(["\0", "\\u0000", {"k\0": "\0"}]) == '["\ufffd","\\\\u0000",{"k\ufffd":"\ufffd"}]'
    assert json({"b": 1, "a": "ä"}) == '{"a":"ä","b":1}'


def test_a_sum_that_is_too_large_for_a_column_is_the_largest() -> None:
    assert total([2**53] * 100_000) == LARGEST
    assert total([1, 2]) == 3


def test_a_command_is_kept_whole_up_to_a_length() -> None:
    assert shortened(("python", "train.py")) == ["python", "train.py"]
    assert shortened(("sh", "-c", "x" * 100_000, "more")) == ["sh", "-c", "x" * (COMMAND_MAX - 6) + "…"]
    assert sum(map(len, shortened(tuple("x" * 1000 for _ in range(100))))) <= COMMAND_MAX + 1


def test_the_row_of_a_job_adds_up_its_groups() -> None:
    groups = (
        GroupRequest(name="lead", count=1, cpu_milli=500, gpu_milli=250, gpu_models=("A", "B")),
        GroupRequest(name="work", count=3, cpu_milli=1000, memory_mib=10, gpus=2, gpu_models=("B", "C")),
        GroupRequest(name="small", count=2, gpu_memory_mib=4096),
    )
    job = job_of_a_state(
        JobRequest(groups=groups, labels={"b": "1", "a": "2"}), JobRun(command=("x",), environment={"SECRET": "s"})
    )
    row = job_row("main", job, counted(job), 0)
    assert (row.tasks, row.cpu_milli, row.memory_mib, row.gpu_milli, row.gpu_memory_mib) == (6, 3500, 30, 6250, 8192)
    assert (row.gpu_models, row.labels, row.command) == (Json('["A","B","C"]'), Json('{"a":"2","b":"1"}'), Json('["x"]'))
    assert (row.submitted_us, row.ended_us, row.state, row.is_array) == (None, None, "pending", False)
    assert "SECRET" not in repr(row), "environments are not kept"


def job_of_a_state(request: JobRequest, run: JobRun) -> Job:
    """A job that was submitted with this."""
    return job_of("j", "name", "ada", "default", request, run, intern_gang(request), (1, 0), 5)


def test_what_tasks_hold_of_devices_is_never_more_than_the_devices() -> None:
    held = 0
    for name in names():
        records = read(LOGS, name)
        state = State(decode_cycle(records[0]).cell)
        for data in records:
            apply(state, decode_cycle(data))
            for node in state.nodes if len(records) < 30 else ():
                if node is not None and node.tasks:
                    held += 1
                    assert 0 <= sum(map(gpu_milli, node.tasks)) <= 1000 * len(node.devices)
    assert held > 100


def test_every_column_has_a_type_and_every_key_comes_first() -> None:
    for table in TABLES:
        assert len(table.types) == len(table.columns) == len(dict.fromkeys(table.columns))
        assert table.key[0] == "cell"
        assert BY_NAME[table.name] is table
    assert BY_NAME["placements"].key == ("cell", "job", "instance", "attempt", "rank", "placed_cycle")
    assert dict(zip(BY_NAME["jobs"].columns, BY_NAME["jobs"].types, strict=True))["labels"] == "jsonb"
