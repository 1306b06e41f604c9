"""A small data-parallel trainer: every rank has its share of the data, and all sum their gradients over TCP in each step.

    python train.py --config config.yaml

Ranks find each other through RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or through Slurm's names. Each process writes down
in the folder `processes` that it started and that it ended, and holds a lock there that the kernel takes back when it is gone:
so that whoever looks can tell what ran, without asking whoever started it.
"""

import argparse
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from types import FrameType

import numpy as np
import yaml

SIZE = struct.Struct(">IQ")
MEET_S = 60
STEPS_MAX = 6000
TWICE = 75
"""Exit status of a process whose place another one has."""
Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def named(*names: str, usual: str = "") -> str:
    """The first of these variables that is set."""
    return next((os.environ[name] for name in names if os.environ.get(name)), usual)


class Diary:
    """What this process says about itself, in a file that all of one job write, each line at once."""

    def __init__(self, rank: int) -> None:
        self.about = {
            "job": named("MUSTER_JOB_ID", "SLURM_JOB_ID", usual="alone"),
            "name": named("MUSTER_JOB_NAME", "SLURM_JOB_NAME", usual="alone"),
            "instance": int(named("MUSTER_INSTANCE", "SLURM_ARRAY_TASK_ID", usual="0")),
            "attempt": int(named("MUSTER_ATTEMPT", usual="1")),
            "rank": rank,
            "node": named("MUSTER_NODE", "SLURMD_NODENAME", usual=socket.gethostname()),
            "pid": os.getpid(),
        }
        folder = Path("processes")
        folder.mkdir(exist_ok=True)
        self._file = folder / f"{self.about['job']}.jsonl"
        self._lock = os.open(folder / f"{self.about['job']}.{self.about['instance']}.{rank}.lock", os.O_RDWR | os.O_CREAT, 0o644)

    def begin(self) -> bool:
        """Say that it starts; False if another process has this place."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._write("twice")
            return False
        self._write("start")
        return True

    def end(self, code: int) -> None:
        """Say that it ends."""
        self._write("end", code=code)

    def _write(self, what: str, **more: int) -> None:
        line = json.dumps({"what": what, "at_ns": time.monotonic_ns(), **self.about, **more}) + "\n"
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, line.encode())
        os.close(file)


class Ring:
    """All ranks, each with a connection from the one before it and to the one behind it."""

    def __init__(self, rank: int, world: int, address: str, port: int) -> None:
        self.rank, self.world = rank, world
        if world == 1:
            return
        listener = socket.create_server(("", 0), backlog=4)
        mine = (address if rank == 0 else "", listener.getsockname()[1])
        places = _meet(rank, world, address, port, mine)
        host, behind = places[(rank + 1) % world]
        self._to = socket.create_connection((host, behind), MEET_S)
        self._from, _ = listener.accept()
        listener.close()
        for line in (self._to, self._from):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.settimeout(None)

    def sum(self, vector: Vector) -> Vector:
        """The sum over all ranks, the same to the last bit on each: first pieces are summed up, then handed round."""
        if self.world == 1:
            return vector
        pieces = np.array_split(vector.copy(), self.world)
        for step in range(self.world - 1):
            give, take = (self.rank - step) % self.world, (self.rank - step - 1) % self.world
            pieces[take] = pieces[take] + self._pass_on(pieces[give], pieces[take].size)
        for step in range(self.world - 1):
            give, take = (self.rank + 1 - step) % self.world, (self.rank - step) % self.world
            pieces[take] = self._pass_on(pieces[give], pieces[take].size)
        return np.concatenate(pieces)

    def _pass_on(self, piece: Vector, size: int) -> Vector:
        self._to.sendall(piece.tobytes())
        return np.frombuffer(_exactly(self._from, size * 8), dtype=np.float64)


def _meet(rank: int, world: int, address: str, port: int, mine: tuple[str, int]) -> list[tuple[str, int]]:
    """Where every rank listens: rank 0 asks them all at the master's address, and tells them all."""
    if rank == 0:
        places = [mine] * world
        lines = []
        with socket.create_server(("", port), backlog=world) as server:
            server.settimeout(MEET_S)
            for _ in range(world - 1):
                line, (host, *_rest) = server.accept()
                other, listens = SIZE.unpack(_exactly(line, SIZE.size))
                places[other] = (host, listens)
                lines.append(line)
        told = json.dumps(places).encode()
        for line in lines:
            line.sendall(SIZE.pack(0, len(told)) + told)
            line.close()
        return places
    end = time.monotonic() + MEET_S
    while True:
        try:
            line = socket.create_connection((address, port), MEET_S)
            break
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
    with line:
        line.sendall(SIZE.pack(rank, mine[1]))
        _, size = SIZE.unpack(_exactly(line, SIZE.size))
        return [(host, at) for host, at in json.loads(_exactly(line, size))]


def _exactly(line: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = line.recv(size - len(data))
        if not more:
            raise ConnectionError("another rank is gone")
        data += more
    return bytes(data)


def train(ring: Ring, config: dict[str, float], hold: str) -> tuple[int, float, float]:
    """Train; how many steps that took, and the loss at first and at last."""
    features, samples = int(config["features"]), int(config["samples"])
    numbers = np.random.default_rng(int(config["seed"]))
    truth = numbers.normal(size=features)
    data = numbers.normal(size=(samples, features))
    answers = data @ truth + numbers.normal(size=samples) * 0.1
    data, answers = data[ring.rank :: ring.world], answers[ring.rank :: ring.world]
    weights = np.zeros(features)
    first = loss = 0.0
    for step in range(STEPS_MAX):
        wrong = data @ weights - answers
        held = float(ring.rank == 0 and bool(hold) and Path(hold).exists())
        summed = ring.sum(np.concatenate([data.T @ wrong, [float(wrong @ wrong), held]]))
        loss = float(summed[-2]) / samples
        first = first or loss
        weights = weights - config["rate"] * summed[:-2] / samples
        if step + 1 >= config["steps"] and not summed[-1]:
            return step + 1, first, loss
        time.sleep(config["pause"])
    raise TimeoutError(f"after {STEPS_MAX} steps {hold} is still there")


def main() -> int:
    """One rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--while", dest="hold", default="", help="train on while this file is there")
    told = parser.parse_args()
    rank, world = int(named("RANK", "SLURM_PROCID", usual="0")), int(named("WORLD_SIZE", "SLURM_NTASKS", usual="1"))
    diary = Diary(rank)
    if not diary.begin():
        print(f"rank {rank} runs already: this one leaves", flush=True)
        return TWICE

    def stopped(number: int, _frame: FrameType | None) -> None:
        diary.end(-number)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, stopped)
    config = yaml.safe_load(Path(told.config).read_text())
    devices = named("CUDA_VISIBLE_DEVICES", usual="none")
    code = 1
    try:
        address = named("MASTER_ADDR", "SLURM_LAUNCH_NODE_IPADDR", usual="127.0.0.1")
        ring = Ring(rank, world, address, int(named("MASTER_PORT", usual="29500")))
        about = f"rank {rank} of {world} on {diary.about['node']}, devices {devices}, attempt {diary.about['attempt']}"
        print(f"{about}: begins", flush=True)
        steps, first, loss = train(ring, config, told.hold)
        print(f"{about}: loss {first!r} at first, {loss!r} after {steps} steps", flush=True)
        code = 0
    except ConnectionError as error:
        print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
    finally:
        diary.end(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
