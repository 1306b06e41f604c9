"""The openb loader reads nodes, pods, arrivals and ranks, and says where a file is wrong."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.events.codec import decode_input, encode_entry
from muster.events.jobs import JobSubmitted
from muster.simulator.openb.loader import (
    Node,
    Pod,
    TraceError,
    check_times,
    hurried,
    job_id,
    job_submitted,
    node_registered,
    read_arrivals,
    read_nodes,
    read_pods,
    read_ranks,
)

Write = Callable[..., Path]

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn-0,64000,262144,2,P100\nn-1,96000,393216,0,\n"
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p-0,12000,16384,1,1000,,LS,Running,0,100,10
p-1,6000,12288,1,460,V100M16|V100M32|V100M32,LS,Running,20,90,
p-2,500,100,0,0,P100,LS,Running,30,40,50
p-3,500,100,8,1000,,LS,Running,30,40,30
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str, name: str = "list.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return _write


@pytest.mark.parametrize("name", ["nodes.csv", "nodes.csv.gz"])
def test_nodes_are_read_plain_and_packed(write: Write, name: str) -> None:
    assert read_nodes(write(NODES, name)) == [Node("n-0", 64000, 262144, 2, "P100"), Node("n-1", 96000, 393216, 0, "")]


def test_a_node_registers_with_a_device_for_each_gpu() -> None:
    event = node_registered(Node("n-0", 64000, 262144, 2, "P100"), tasks_max=1001)
    assert [device.uuid for device in event.spec.devices] == ["n-0-gpu-0", "n-0-gpu-1"]
    assert (event.spec.cpu_milli, event.spec.memory_mib, event.spec.tasks_max) == (64000, 262144, 1001)
    assert decode_input(encode_entry(event))[0] == event


def test_pods_ask_for_whole_gpus_a_share_or_none(write: Write) -> None:
    whole, share, none, many = read_pods(write(PODS, "pods.csv.gz"))
    assert (whole.gpus, whole.gpu_milli, whole.models) == (1, 0, ())
    assert (share.gpus, share.gpu_milli, share.models) == (0, 460, ("V100M16", "V100M32"))
    assert (none.gpus, none.gpu_milli, none.models) == (0, 0, ())
    assert [pod.asked_milli for pod in (whole, share, none, many)] == [1000, 460, 0, 8000]


def test_a_pod_runs_from_when_it_was_scheduled_and_never_less_than_no_time(write: Write) -> None:
    assert [pod.duration_us for pod in read_pods(write(PODS))] == [90_000_000, 70_000_000, 0, 10_000_000]


def test_a_submission_of_a_pod_is_an_input() -> None:
    pod = Pod("p-1", 6000, 12288, 0, 460, ("A10", "T4"), 0, 1, None)
    event, data = decode_input(encode_entry(job_submitted(pod, job_id(5_000_000, 7), 5_000_000)))
    assert isinstance(event, JobSubmitted)
    assert event.job == "00000000-1388-7000-8000-000000000007"
    assert event.request.groups[0].gpu_models == ("A10", "T4")
    assert event.request.groups[0].gpu_milli == 460
    assert encode_entry(event) == data


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sn,cpu_milli,memory_mib,gpu\nn,1,1,1\n", "line 1: column model is not there"),
        (NODES + "n-0,1,1,1,T4\n", "line 4: column sn: n-0 stands already in line 2"),
        (NODES + "N_0,1,1,1,T4\n", "line 4: column sn: 'N_0' is no name"),
        (NODES + "n-2,1.5,1,1,T4\n", "line 4: column cpu_milli: '1.5' is no number"),
        (NODES + "n-2,-1,1,1,T4\n", "line 4: column cpu_milli: '-1' is no number"),
        (NODES + "n-2,1,1,65,T4\n", "line 4: column gpu: 65 is more than 64"),
        (NODES + "n-2,1,99999999999999999999,1,T4\n", "line 4: column memory_mib: 99999999999999999999 is more"),
        (NODES + "n-2,1,1\n", "line 4: has 3 columns, the header 5"),
        ("sn,cpu_milli,memory_mib,gpu,model\n", "line 2: there is no node"),
        ("", "line 1: column sn is not there"),
    ],
)
def test_a_fault_in_a_node_list_is_named_by_line_and_column(write: Write, text: str, sentence: str) -> None:
    path = write(text)
    with pytest.raises(TraceError) as caught:
        read_nodes(path)
    assert str(caught.value).startswith(f"{path}: {sentence}")


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("p,1,1,1,0", "line 2: column gpu_milli: a pod with GPUs asks for more than 0"),
        ("p,1,1,2,500", "line 2: column gpu_milli: 500 of 2 GPUs"),
        ("p,1,1,1,1001", "line 2: column gpu_milli: 1001 is more than 1000"),
        ("p,1,1,x,0", "line 2: column num_gpu: 'x' is no number"),
        ("-p,1,1,0,0", "line 2: column name: '-p' is no name"),
    ],
)
def test_a_fault_in_a_pod_list_is_named_by_line_and_column(write: Write, row: str, sentence: str) -> None:
    path = write(f"name,cpu_milli,memory_mib,num_gpu,gpu_milli\n{row}\n")
    with pytest.raises(TraceError) as caught:
        read_pods(path)
    assert str(caught.value).startswith(f"{path}: {sentence}")


def test_a_list_without_times_is_refused_where_times_are_needed(write: Write) -> None:
    path = write("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,0,0\n")
    with pytest.raises(TraceError, match="line 2: column creation_time: p has no time"):
        check_times(path, read_pods(path))


def test_what_is_no_file_or_no_csv_is_said_in_a_sentence(tmp_path: Path, write: Write) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_nodes(tmp_path / "missing.csv")
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(gzip.compress(NODES.encode() * 100)[:60])
    with pytest.raises(TraceError, match="is no CSV file"):
        read_nodes(path)
    path.write_bytes(b"sn\xff\xfe,model\n")
    with pytest.raises(TraceError, match="is no CSV file"):
        read_nodes(path)


def test_arrivals_are_the_column_of_the_seed_up_to_its_end(write: Write) -> None:
    path = write("seed42,seed43\n2,0\n0,\n1,\n")
    assert read_arrivals(path, 42, 3) == [2, 0, 1]
    assert read_arrivals(path, 43, 3) == [0]
    with pytest.raises(TraceError, match="line 2: column seed42: 2 is more than 1"):
        read_arrivals(path, 42, 2)
    with pytest.raises(TraceError, match="line 1: column seed44 is not there"):
        read_arrivals(path, 44, 3)
    with pytest.raises(TraceError, match="line 4: column seed42: goes on after the blank in line 3"):
        read_arrivals(write("seed42,b\n1,\n,x\n1,\n"), 42, 3)


def test_every_node_has_a_rank_of_its_own(write: Write) -> None:
    nodes = read_nodes(write(NODES, "nodes.csv"))
    assert read_ranks(write("node,seed42\nn-1,0\nn-0,1\n"), 42, nodes) == {"n-1": 0, "n-0": 1}
    with pytest.raises(TraceError, match="n-0 of the node list is not there"):
        read_ranks(write("node,seed42\nn-1,0\n"), 42, nodes)
    with pytest.raises(TraceError, match="line 3: column seed42: 0 stands already in line 2"):
        read_ranks(write("node,seed42\nn-1,0\nn-0,0\n"), 42, nodes)


def test_a_hurried_trace_comes_faster_and_runs_as_long(write: Write) -> None:
    pods = read_pods(write(PODS))
    faster = hurried(pods, 10)
    assert [(pod.name, pod.created_s) for pod in faster] == [("p-0", 0), ("p-1", 2), ("p-2", 3), ("p-3", 3)]
    assert [pod.duration_us for pod in faster] == [pod.duration_us for pod in pods]
