"""Which tasks go where, which GPUs they see, and how options are read."""

import pytest

from muster.slurm.gpus import bind
from muster.slurm.layout import Asked, Part, Usual, lay_out
from muster.slurm.options import FLAG, MAY, Option, parse
from muster.slurm.say import Refused
from muster.slurm.squeue import span

PARTS = tuple(Part(rank, f"n{rank}") for rank in range(4))


def laid(asked: Asked, usual: Usual | None = None) -> list[tuple[str, int]]:
    return [(part.node, count) for part, count in lay_out(PARTS, asked, usual or Usual())]


@pytest.mark.parametrize(
    ("asked", "usual", "expected"),
    [
        (Asked(), Usual(), [("n0", 1), ("n1", 1), ("n2", 1), ("n3", 1)]),
        (Asked(), Usual(tasks=8, per_node=2), [("n0", 2), ("n1", 2), ("n2", 2), ("n3", 2)]),
        (Asked(tasks=6), Usual(tasks=8), [("n0", 2), ("n1", 2), ("n2", 1), ("n3", 1)]),
        (Asked(tasks=2), Usual(tasks=8), [("n0", 1), ("n1", 1)]),
        (Asked(nodes=1, tasks=1, names=("n2",)), Usual(tasks=8), [("n2", 1)]),
        (Asked(nodes=2, names=("n3",)), Usual(tasks=8, per_node=2), [("n0", 2), ("n3", 2)]),
        (Asked(names=("n1", "n2")), Usual(tasks=8, per_node=2), [("n1", 2), ("n2", 2)]),
        (Asked(per_node=1), Usual(tasks=8, per_node=2), [("n0", 1), ("n1", 1), ("n2", 1), ("n3", 1)]),
        (Asked(without=("n0",), tasks=3), Usual(), [("n1", 1), ("n2", 1), ("n3", 1)]),
        (Asked(relative=2, nodes=1), Usual(), [("n2", 1)]),
    ],
)
def test_tasks_are_spread_over_the_nodes_that_are_asked_for(asked: Asked, usual: Usual, expected: list[tuple[str, int]]) -> None:
    assert laid(asked, usual) == expected


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (Asked(nodes=5), "asks for 5 nodes, and the job has 4"),
        (Asked(names=("m",)), "the job is not on m; it is on n0, n1, n2, n3"),
        (Asked(tasks=9, per_node=2), "9 tasks with 2 on each node do not fit on 4 nodes"),
        (Asked(without=("n0", "n1", "n2", "n3")), "no node is left"),
        (Asked(tasks=100_000), "at most 65536 tasks"),
    ],
)
def test_what_does_not_fit_is_refused(asked: Asked, says: str) -> None:
    with pytest.raises(Refused, match=says):
        laid(asked)


def test_tasks_see_all_gpus_of_the_node_or_some_of_their_own() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,2,5,7"}

    def seen(tasks: int, per_task: int, per_node: int) -> list[str]:
        return [names["CUDA_VISIBLE_DEVICES"] for names in bind(environment, "n0", tasks, per_task, per_node)]

    assert seen(2, 0, -1) == ["0,2,5,7", "0,2,5,7"]
    assert seen(2, 2, -1) == ["0,2", "5,7"]
    assert seen(2, 1, 2) == ["0", "2"]
    assert seen(1, 0, 0) == [""]
    with pytest.raises(Refused, match="3 tasks with 2 GPUs each do not fit on n0, where the job has 4"):
        seen(3, 2, -1)
    with pytest.raises(Refused, match="asks for 5 GPUs on n0"):
        seen(1, 0, 5)


def test_options_are_read_as_getopt_reads_them() -> None:
    table = (Option("nodes", "N"), Option("ntasks", "n"), Option("label", "l", FLAG), Option("kill", "K", MAY))
    parsed = parse(table, ["-lN2", "--ntask=4", "-K1", "--kill", "prog", "-x", "--label"])
    assert parsed.values == {"label": "", "nodes": "2", "ntasks": "4", "kill": ""}
    assert parsed.rest == ["prog", "-x", "--label"]
    assert parse(table, ["a", "-l", "b"], interleaved=True).rest == ["a", "b"]
    assert parse(table, ["--", "-l"]).rest == ["-l"]
    for words, says in (
        (["--n=1"], "may stand for --nodes, --ntasks"),
        (["-z"], "-z is no option"),
        (["-n"], "-n needs a value"),
    ):
        with pytest.raises(Refused, match=says):
            parse(table, words)


def test_spans_are_written_as_slurm_writes_them() -> None:
    assert [span(seconds * 1_000_000) for seconds in (0, 67, 3723, 176_400)] == ["0:00", "1:07", "1:02:03", "2-01:00:00"]
