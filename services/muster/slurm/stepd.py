"""`stepd`: what the other tasks of a Slurm job run. It waits for srun and starts the tasks of steps on its node.

It tells the first node where it can be called, and lives as long as that connection. Only who has the job's secret is heard.
When srun goes, the step's tasks are killed.
"""

import asyncio
import contextlib
import os
import signal
import socket

import msgspec

from muster.slurm.channel import (
    EXIT,
    FAULT,
    SIGNAL,
    STDERR,
    STDIN,
    STDOUT,
    Arrived,
    Gone,
    Step,
    accept,
    connect,
    frame,
    read_frame,
    secret,
)
from muster.slurm.gpus import bind
from muster.slurm.running import Process
from muster.slurm.say import Refused

FIND_S = 300
"""The first node may be slow to start."""
AGAIN_S = 0.1
CHUNK_BYTES = 64 * 1024
OWN = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "MUSTER_GPU_UUIDS", "MUSTER_NODE", "MUSTER_RANK", "MUSTER_GROUP",
       "MUSTER_GROUP_RANK", "MUSTER_HOSTFILE", "MUSTER_CREDENTIALS",
       "MUSTER_TASK", "SLURMD_NODENAME", "TMPDIR", "HOME")  # fmt: skip
"""What the node says of itself wins over what srun's node says."""


def main(arguments: list[str]) -> int:
    """Wait for steps until the job's script has ended."""
    if arguments:
        raise Refused("stepd takes no argument", 2)
    return asyncio.run(_run())


async def _run() -> int:
    key = secret()
    running: dict[asyncio.Task[None], None] = {}

    async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            running[task] = None
        try:
            await _serve(reader, writer, key)
        finally:
            if task is not None:
                del running[task]
            writer.close()

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    server = await asyncio.start_server(called, None, 0, family=socket.AF_INET)
    port = server.sockets[0].getsockname()[1]
    line, held = await _register(key, port)
    gone = asyncio.ensure_future(line.read())
    stop = asyncio.ensure_future(ended.wait())
    await asyncio.wait({gone, stop}, return_when=asyncio.FIRST_COMPLETED)
    if stop.done():
        while running:  # srun is told as well, and its tasks have their grace
            await asyncio.wait(list(running))
    held.close()
    server.close()
    for task in list(running):
        task.cancel()
    if running:
        await asyncio.wait(list(running))
    return 0


async def _register(key: bytes, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Tell the first node; the connection that lives as long as the script."""
    host, master = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0") or 0)
    rank = int(os.environ.get("MUSTER_RANK", "0") or 0)
    message = msgspec.json.encode(Arrived(rank=rank, node=os.environ.get("MUSTER_NODE", ""), port=port))
    loop = asyncio.get_running_loop()
    until = loop.time() + FIND_S
    while True:
        try:
            return await connect(host, master, key, message)
        except (OSError, Gone) as error:
            if loop.time() > until:
                raise Refused(f"the first node of the job cannot be reached at {host}:{master}: {error}") from None
            await asyncio.sleep(AGAIN_S)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> None:
    try:
        step = msgspec.json.decode(await accept(reader, writer, key), type=Step)
    except (Gone, msgspec.DecodeError):
        return
    node = os.environ.get("MUSTER_NODE", "")
    own = {name: os.environ[name] for name in OWN if name in os.environ}
    try:
        bound = bind(os.environ, node, len(step.tasks), step.gpus_per_task, step.gpus_per_node)
    except Refused as refused:
        writer.write(frame(FAULT, 0, str(refused).encode()))
        with contextlib.suppress(OSError):
            await writer.drain()
        return
    tasks = [
        Process(step.argv, step.directory, step.environment | own | names | gpus, piped=True, feed=True)
        for names, gpus in zip(step.tasks, bound, strict=True)
    ]
    listening = asyncio.ensure_future(_obey(reader, tasks))
    working = asyncio.ensure_future(_work(writer, tasks))
    try:
        await asyncio.wait({listening, working}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.kill()
        listening.cancel()
        with contextlib.suppress(OSError):
            await working


async def _obey(reader: asyncio.StreamReader, tasks: list[Process]) -> None:
    """What srun says: input, signals. Ends when srun has gone."""
    with contextlib.suppress(Gone):
        while True:
            kind, _, data = await read_frame(reader)
            for task in tasks:
                if kind == SIGNAL:
                    task.signal(int(data))
                elif kind == STDIN:
                    await task.write(data)


async def _work(writer: asyncio.StreamWriter, tasks: list[Process]) -> None:
    await asyncio.gather(*[_one(writer, index, task) for index, task in enumerate(tasks)])


async def _one(writer: asyncio.StreamWriter, index: int, task: Process) -> None:
    await task.start()
    if task.process is not None and task.process.stdout is not None and task.process.stderr is not None:
        outputs = ((STDOUT, task.process.stdout), (STDERR, task.process.stderr))
        await asyncio.gather(*[_pump(writer, kind, index, pipe) for kind, pipe in outputs])
    elif task.problem:
        writer.write(frame(STDERR, index, f"slurmstepd: error: execve(): {task.problem}\n".encode()))
    code = await task.wait()
    with contextlib.suppress(OSError):
        writer.write(frame(EXIT, index, str(code).encode()))
        await writer.drain()


async def _pump(writer: asyncio.StreamWriter, kind: bytes, index: int, pipe: asyncio.StreamReader) -> None:
    while data := await pipe.read(CHUNK_BYTES):
        with contextlib.suppress(OSError):
            writer.write(frame(kind, index, data))
            await writer.drain()
