"""`batch COMMAND ...`: what the first task of a Slurm job runs. It runs the script, with Slurm's programs on the PATH.

On the other nodes `stepd` waits, and finds its way here: it calls MASTER_ADDR:MASTER_PORT, where this listens, and says
where it can be called. The script gets another free MASTER_PORT. What stepds have said stands in `peers.json` of the folder
MUSTER_STEP_DIR, for srun. When the script and its steps have ended, the connections close and the stepds end.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import msgspec

from muster.slurm.channel import Arrived, Gone, Peer, accept, secret
from muster.slurm.install import install
from muster.slurm.say import Refused, note

PEERS = "peers.json"
STEPS = "steps"
MUSTER_ONLY = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "OMP_NUM_THREADS")
"""A Slurm script has none of these: srun gives them to its tasks."""
SHELLS = ("bash", "sh", "dash", "zsh", "ksh", "mksh", "ash")
PRELUDE = 'export PATH="$MUSTER_STEP_DIR/bin:$PATH"; '
ARGUMENT_MAX_BYTES = 131_071
"""What Linux takes as one argument of a program."""
AFTER_S = 0.02


def main(arguments: list[str]) -> int:
    """Run the command as the script of the job; its exit status."""
    if not arguments:
        raise Refused("no command was given", 2)
    return asyncio.run(_run(arguments))


async def _run(command: list[str]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="muster-slurm-", dir=_task_folder()))
    lines: list[asyncio.StreamWriter] = []
    server = None
    try:
        (folder / STEPS).mkdir()
        install(folder / "bin")
        environment = {name: value for name, value in os.environ.items() if name not in MUSTER_ONLY}
        environment["PATH"] = f"{folder / 'bin'}:{environment.get('PATH', '/usr/bin:/bin')}"
        environment["MUSTER_STEP_DIR"] = str(folder)
        if parts() > 1:
            server = await _listen(folder, lines)
            environment["MASTER_PORT"] = str(_free_port())
        code = await _script(with_path(command), environment)
        await _steps_end(folder / STEPS)
        return code
    finally:
        for line in lines:
            line.close()
        if server is not None:
            server.close()
        shutil.rmtree(folder, ignore_errors=True)


def with_path(command: list[str]) -> list[str]:
    """The command with srun on the PATH even in a login shell, whose profile sets PATH anew: said in the script's first line."""
    if os.path.basename(command[0]) not in SHELLS or "-c" not in command[:-1]:
        return command
    place = command.index("-c") + 1
    text = PRELUDE + command[place]
    if len(text.encode("utf-8", "surrogateescape")) > ARGUMENT_MAX_BYTES:
        return command
    return [*command[:place], text, *command[place + 1 :]]


def _task_folder() -> str | None:
    """The task's own folder, which goes with the task, however that ends; None for the usual place."""
    hostfile = os.environ.get("MUSTER_HOSTFILE", "")
    return os.path.dirname(hostfile) if hostfile and os.access(os.path.dirname(hostfile), os.W_OK) else None


def parts() -> int:
    """How many parts the job has."""
    counts = os.environ.get("MUSTER_RANKS_PER_NODE", "1").split(",")
    return sum(int(count) for count in counts if count.isdigit())


async def _script(command: list[str], environment: dict[str, str]) -> int:
    """The script's exit status. SIGTERM reaches it with the whole group; this waits for what follows."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, lambda: None)
    try:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdin=subprocess.DEVNULL)
    except OSError as error:
        note("slurm_script", f"{command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126
    code = await process.wait()
    return 128 - code if code < 0 else code


async def _steps_end(folder: Path) -> None:
    """A shell that was told to end goes before its steps do: they have their grace too."""
    while _steps(folder):  # noqa: ASYNC110  # they are no children of ours, and nobody tells
        await asyncio.sleep(AFTER_S)


def _steps(folder: Path) -> bool:
    return any(_lives(int(path.name)) for path in folder.iterdir() if path.name.isdigit())


def _lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


async def _listen(folder: Path, lines: list[asyncio.StreamWriter]) -> asyncio.Server:
    key = secret()
    peers: dict[int, Peer] = {}

    async def arrived(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            said = msgspec.json.decode(await accept(reader, writer, key), type=Arrived)
        except (Gone, msgspec.DecodeError):
            writer.close()
            return
        lines.append(writer)
        peers[said.rank] = Peer(node=said.node, host=writer.get_extra_info("peername")[0], port=said.port)
        fresh = folder / f".{PEERS}"
        fresh.write_bytes(msgspec.json.encode({str(rank): peer for rank, peer in sorted(peers.items())}))
        fresh.replace(folder / PEERS)
        with contextlib.suppress(OSError, asyncio.CancelledError):  # cancelled when the script has ended
            await reader.read()
        writer.close()

    port = int(os.environ.get("MASTER_PORT", "0") or 0)
    try:
        return await asyncio.start_server(arrived, None, port, family=socket.AF_INET)
    except OSError as error:
        raise Refused(f"cannot listen for the other nodes of the job on port {port}: {error.strerror}") from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
