"""An agent with real processes under real supervisors, and a gateway that is a real HTTP server: what is assigned is run."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from muster.agent.agent import OBEYED_S
from muster.agent.protocol import Master, Ranks, Wanted
from muster.events.jobs import GroupRequest
from tests.support.agents import Gateway, Node, log_now_us, node, sleepers, task, until

NAMES = "import json, os; print(json.dumps(dict(os.environ)))"


def output(agent: Node, job: str = "j1", rank: int = 0, attempt: int = 1, stream: str = "stdout") -> str:
    return (agent.data / "output" / job / f"0.{attempt}.{rank}.{stream}").read_text()


def test_a_task_is_prepared_then_run_then_reported_until_it_is_no_longer_named(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, agent):
        gateway.assign(task("sh", "-c", "echo hello; echo oops >&2; exit 3", phase="prepare", master=None))
        ready = gateway.reaches("ready")
        assert 20_000 <= ready.port < 32_000  # rank 0's agent chooses where the members meet
        time.sleep(0.1)
        assert gateway.level() == ready  # it waits for the start
        gateway.assign(task("sh", "-c", "echo hello; echo oops >&2; exit 3"))
        ended = gateway.reaches("exited")
        assert (ended.code, ended.blame, ended.reason) == (3, "", "")
        assert (output(agent), output(agent, stream="stderr")) == ("hello\n", "oops\n")
        until(lambda: gateway.reports[-1].applied == gateway.number)
        assert gateway.level() is not None
        gateway.assign()
        until(lambda: not gateway.reports[-1].tasks)
        until(lambda: not list((agent.data / "tasks").iterdir()))
        assert output(agent) == "hello\n"  # outputs outlive their task
        assert agent.left() == agent.supervisors() == []


def test_that_it_obeyed_is_said_once_and_needs_no_report_of_its_own_where_another_says_it(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, _):
        gateway.assign(task("sleep", "301"))
        gateway.reaches("running")
        said = len(gateway.reports)
        assert gateway.reports[-1].applied == gateway.number
        time.sleep(3 * OBEYED_S)
        assert len(gateway.reports) == said
        gateway.assign(task("sleep", "301"))  # nothing changes here, so nothing else says that it was obeyed
        until(lambda: gateway.applied_after(said))
        assert len(gateway.reports) == said + 1


def test_the_node_says_what_it_has(tmp_path: Path) -> None:
    with node(tmp_path, "--devices", "8xH100-80GB", "--label", "rack=r7") as (gateway, _):
        assert gateway.spec is not None
        assert gateway.spec.spec is not None
        spec = gateway.spec.spec
        assert [device.model for device in spec.devices] == ["H100"] * 8
        assert {device.memory_mib for device in spec.devices} == {80 * 1024}
        assert (spec.labels["rack"], spec.rack, spec.zone) == ("r7", "r7", "")
        assert spec.labels["muster.address"] == "127.0.0.1"
        assert spec.cpu_milli >= 8 * 14_000
        assert {device.health for device in gateway.spec.devices} == {"healthy"}


def test_a_task_finds_its_devices_and_its_peers_in_its_environment(tmp_path: Path) -> None:
    with node(tmp_path, "--devices", "4xH100-80GB") as (gateway, agent):
        assert gateway.spec is not None
        assert gateway.spec.spec is not None
        uuids = [gateway.spec.spec.devices[index].uuid for index in (3, 1)]
        gateway.assign(
            task(
                "python3",
                "-c",
                NAMES,
                rank=5,
                attempt=2,
                group_rank=5,
                local_rank=1,
                devices=(3, 1),
                device_uuids=tuple(uuids),
                ranks=Ranks(world_size=8, nodes=("n0", "n1"), ranks_per_node=(4, 4)),
                master=Master(addr="10.1.2.3", port=20_007),
                group_request=GroupRequest(count=8, gpus=2, cpu_milli=6000),
                environment={"MINE": "yes", "RANK": "77"},
            )
        )
        gateway.reaches("exited", rank=5)
        names = json.loads(output(agent, rank=5, attempt=2))
        for name, value in {
            "CUDA_VISIBLE_DEVICES": "3,1",
            "RANK": "5",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "4",
            "MASTER_ADDR": "10.1.2.3",
            "MASTER_PORT": "20007",
            "MUSTER_JOB_ID": "j1",
            "MUSTER_ATTEMPT": "2",
            "MUSTER_RESTARTS": "1",
            "SLURM_PROCID": "5",
            "SLURM_NODEID": "1",
            "SLURM_JOB_NODELIST": "n[0-1]",
            "SLURM_CPUS_PER_TASK": "6",
            "MINE": "yes",
        }.items():
            assert names[name] == value, name
        assert names["NVIDIA_VISIBLE_DEVICES"] == ",".join(uuids)


@pytest.mark.parametrize(
    ("command", "code", "reason", "blame"),
    [
        (("true",), 0, "", ""),
        (("sh", "-c", "exit 77"), 77, "", ""),
        (("sh", "-c", "kill -SEGV $$"), -signal.SIGSEGV, "", ""),
        (("no-such-command",), 127, "cannot start no-such-command: No such file or directory", "job"),
        (("/etc/passwd",), 127, "cannot start /etc/passwd: Permission denied", "job"),
    ],
)
def test_how_it_ended_is_reported(tmp_path: Path, command: tuple[str, ...], code: int, reason: str, blame: str) -> None:
    with node(tmp_path) as (gateway, _):
        gateway.assign(task(*command))
        ended = gateway.reaches("exited")
        assert (ended.code, ended.reason, ended.blame) == (code, reason, blame)


def test_a_folder_that_is_not_there_and_an_image_are_refused_with_the_reason(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, _):
        gateway.assign(
            task("true", job="a", directory="/no/such/folder"),
            task("true", job="b", image="pytorch/pytorch:2.1"),
            task("true", job="c", output="/proc/nothing/here"),
            task("true", job="d", device_uuids=("GPU-elsewhere",), devices=(0,)),
        )
        ends = {job: gateway.reaches("exited", job=job) for job in "abcd"}
        assert ends["a"].reason == "cannot start /no/such/folder: No such file or directory"
        assert (ends["b"].code, ends["b"].blame) == (125, "job")
        assert "pytorch/pytorch:2.1" in ends["b"].reason
        assert (ends["c"].code, ends["c"].blame) == (125, "job")
        assert (ends["d"].blame, ends["d"].reason) == ("node", "the device GPU-elsewhere is not here")


def test_stop_is_a_notice_then_a_kill_by_log_time(tmp_path: Path) -> None:
    deaf = "trap 'echo noticed' TERM; while :; do sleep 0.05; done"
    with node(tmp_path) as (gateway, agent):
        run = [task("sh", "-c", deaf, job="deaf"), task("sh", "-c", "trap 'exit 5' TERM; sleep 1001 & wait", job="polite")]
        gateway.assign(*run)
        gateway.reaches("running", job="deaf")
        gateway.reaches("running", job="polite")
        until(lambda: sleepers("1001"))
        time.sleep(0.2)
        kill_at_us = log_now_us() + 2_000_000
        gateway.assign(
            task("sh", "-c", deaf, job="deaf", phase="stop", kill_at_us=kill_at_us),
            task("x", job="polite", phase="stop", kill_at_us=kill_at_us),
        )
        assert gateway.reaches("exited", job="polite").code == 5, "it was killed, and had all the time it was given"
        ended = gateway.reaches("exited", job="deaf")
        assert (ended.code, ended.reason) == (-9, "told to stop")
        assert log_now_us() >= kill_at_us
        assert "noticed" in output(agent, "deaf")
        assert sleepers("1001") == []


def test_what_is_stopped_before_it_began_never_begins(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, _):
        mark = tmp_path / "ran"
        gateway.assign(task("touch", str(mark), job="a", phase="stop"), task("touch", str(mark), job="b", phase="prepare"))
        assert gateway.reaches("exited", job="a").code == -15
        gateway.reaches("ready", job="b")
        gateway.assign(task("touch", str(mark), job="a", phase="stop"), task("touch", str(mark), job="b", phase="stop"))
        assert gateway.reaches("exited", job="b").code == -15
        assert not mark.exists()


def test_what_is_no_longer_named_is_killed_and_forgotten(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, agent):
        gateway.assign(task("sh", "-c", "trap '' TERM; sleep 1002; sleep 1002"))
        gateway.reaches("running")
        until(lambda: sleepers("1002"))
        gateway.assign()
        until(lambda: not gateway.reports[-1].tasks)
        assert sleepers("1002") == []
        assert agent.left() == []


@pytest.mark.parametrize("more", [(), ("--no-cgroup",)])
def test_what_forks_daemonises_and_ignores_signals_is_gone_before_the_end_is_reported(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    escape = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for number in range(5):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            os.execve('/bin/sh', ['sh', '-c', 'trap \"\" TERM HUP INT; sleep 1003 & wait'], {'PATH': '/usr/bin:/bin'})\n"
        "        os._exit(0)\n"
        "time.sleep(0.3)\n"
        "sys.exit(4)\n"
    )
    with node(tmp_path, *more) as (gateway, agent):
        gateway.assign(task("python3", "-c", escape))
        until(lambda: len(sleepers("1003")) == 5)
        ended = gateway.reaches("exited")
        assert sleepers("1003") == []  # at once, not after a while
        assert ended.code == 4
        assert agent.left() == []


def test_a_task_may_print_more_than_is_kept(tmp_path: Path) -> None:
    with node(tmp_path, "--output-max-mib", "1") as (gateway, agent):
        gateway.assign(task("sh", "-c", "head -c 200000000 /dev/zero; echo end >&2"))
        ended = gateway.reaches("exited")
        assert ended.code == 0
        assert ended.reason == f"{200_000_000 - (1 << 20)} bytes of output are lost: more than the bound"
        kept = output(agent)
        assert 1 << 20 <= len(kept) < (1 << 20) + 200
        assert kept.endswith("muster: the output is cut here, it has reached its bound\n")
        assert output(agent, stream="stderr") == "end\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small file system")
def test_a_full_disk_hides_neither_a_start_nor_an_end(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=2m tmpfs {small} 2>/dev/null"):
        pytest.skip("no file system can be mounted here")
    gateway = Gateway()
    agent = Node(gateway, small / "agent")
    agent.said = tmp_path / "agent.err"
    agent.start()
    try:
        until(lambda: gateway.spec)
        talks = task("sh", "-c", "head -c 10000000 /dev/zero; sleep 0.3; exit 6")
        gateway.assign(talks)
        ended = gateway.reaches("exited")
        assert ended.code == 6
        assert ended.reason.endswith("bytes of output are lost: No space left on device")
        shutil.rmtree(small / "agent" / "output" / "j1")
        with (small / "fill").open("wb", buffering=0) as fill:
            while True:
                try:
                    fill.write(b"x" * 4096)
                except OSError:
                    break
        gateway.assign(talks, task("true", job="j2"))
        refused = gateway.reaches("exited", job="j2")
        assert refused.blame == "node"
        (small / "fill").unlink()
        gateway.assign(talks, task("true", job="j3"))
        assert gateway.reaches("exited", job="j3").code == 0  # and the node works on
    finally:
        agent.end()
        gateway.close()
        os.system(f"umount -l {small}")


def test_outputs_go_where_the_job_wants_them_and_can_be_followed(tmp_path: Path) -> None:
    with node(tmp_path) as (gateway, _):
        talk = "for i in 1 2 3; do echo line $i; sleep 0.1; done; echo err >&2"
        talks = task("sh", "-c", talk, directory=str(tmp_path), output="logs/%x-%j_%4a.%t.out", array=3)
        gateway.assign(talks, wanted=(Wanted(id="w1", job="j1", follow=True), Wanted(id="w2", job="j1", offset=5, follow=True)))
        until(lambda: gateway.ended == {"w1", "w2"})
        whole = "line 1\nline 2\nline 3\nerr\n"
        assert (tmp_path / "logs" / "test-j1_0000.0.out").read_text() == whole  # both streams, as no other was named
        assert (gateway.output("w1"), gateway.output("w2")) == (whole.encode(), whole[5:].encode())
        gateway.assign(wanted=(Wanted(id="w3", job="j1", stream="stderr"), Wanted(id="w4", job="nobody")))
        until(lambda: {"w3", "w4"} <= gateway.ended)
        assert (gateway.output("w3"), gateway.output("w4")) == (whole.encode(), b"")


def test_a_device_is_broken_and_mended_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from muster.cli.main import run

    with node(tmp_path, "--devices", "2xH100-80GB") as (gateway, agent):
        assert run(["agent", "break", "1", "--data", str(agent.data), "--reason", "smoke"]) == 0
        until(lambda: [(d.health, d.reason) for d in gateway.reports[-1].devices] == [("healthy", ""), ("failed", "smoke")])
        assert run(["agent", "mend", "1", "--data", str(agent.data)]) == 0
        until(lambda: [device.health for device in gateway.reports[-1].devices] == ["healthy", "healthy"])
        assert run(["agent", "break", "0", "--data", str(tmp_path)]) == 3
        assert "not the data folder of an agent" in capsys.readouterr().err


def test_a_container_is_run_and_removed_by_the_engine_that_is_there(tmp_path: Path) -> None:
    """The engine is a script that does what its client does: runs the command below itself, and takes the same words."""
    engine = tmp_path / "bin" / "podman"
    engine.parent.mkdir()
    engine.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/said\n'
        '[ "$1" = image ] && exit 1\n'
        '[ "$1" = pull ] && { [ "$3" = good/image:1 ] && exit 0; echo "no such image" >&2; exit 125; }\n'
        '[ "$1" = run ] || exit 0\n'
        'while [ "$1" != good/image:1 ]; do [ "$1" = --entrypoint ] && own=$2; shift; done; shift; exec $own "$@"\n'
    )
    engine.chmod(0o755)
    with node(tmp_path, "--runtime", "container", path=f"{engine.parent}:") as (gateway, agent):
        gateway.assign(
            task("sh", "-c", "echo in; exit 9", job="a", image="good/image:1"), task("true", job="b", image="bad/image:1")
        )
        assert gateway.reaches("exited", job="a").code == 9
        assert output(agent, "a") == "in\n"
        bad = gateway.reaches("exited", job="b")
        assert (bad.code, bad.blame, bad.reason) == (125, "node", "the image bad/image:1 cannot be had: no such image")
        said = (tmp_path / "said").read_text()
        uid = (agent.data / "uid").read_text()
        assert f"rm --force muster-a.0.1.0-{uid}" in said
        assert "--network host" in said
