"""`srun [OPTIONS] PROGRAM ...`: starts the tasks of a step on the nodes of this job and ends with the worst exit status.

On its own node it starts them itself; on the others `stepd` does, which `batch` knows. Inside of a job only: outside,
`sbatch` submits. Signals are passed on to every task. Not done: MPI's wire-up, binding to cores, --multi-prog, terminals.
"""

import asyncio
import contextlib
import os
import re
import signal
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from muster.doors.hostlist import BadHostlist, compress, expand
from muster.doors.slurm_values import BadValue, read_time_us
from muster.slurm.batch import PEERS, STEPS, parts
from muster.slurm.channel import EXIT, FAULT, SIGNAL, STDERR, STDIN, STDOUT, Gone, Peer, Step, connect, frame, read_frame, secret
from muster.slurm.gpus import bind
from muster.slurm.layout import Asked, Part, Usual, lay_out
from muster.slurm.options import Parsed, number, parse
from muster.slurm.running import Process
from muster.slurm.say import Refused, note, say
from muster.slurm.srun_options import OPTIONS

PEERS_S = 300
"""So long srun waits for the other nodes of the job to be there."""
CHUNK_BYTES = 64 * 1024
PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCONT")
USAGE = """srun [-N NODES] [-n TASKS] [--ntasks-per-node=N] [-w NODES] [-x NODES] [--gpus-per-task=N] [-l] [-D DIR]
     [-o FILE] [-e FILE] [--export=ALL|NONE|NAME=VALUE,...] [-K] [-t MINUTES] PROGRAM [ARGUMENTS]
Starts the tasks of a step on the nodes of this job; ends with the worst of their exit statuses (128 + n for signal n).
Example: srun -N1 -n1 -w "$head" hostname --ip-address"""

_MINUTES = re.compile(r"[0-9]{1,7}")


def main(arguments: list[str]) -> int:
    """Run a step; the worst exit status of its tasks."""
    parsed = parse(OPTIONS, arguments)
    if "help" in parsed.values:
        print(USAGE)
        return 0
    if "SLURM_JOB_ID" not in os.environ:
        raise Refused("srun starts steps inside of a job, and this is none: sbatch submits one")
    if not parsed.rest:
        raise Refused("no program was given", 2)
    for sentence in parsed.ignored:
        note("srun", sentence)
    here, peers = find_parts(os.environ)
    return asyncio.run(_Run(parsed, os.environ, here, peers).run())


class Output:
    """Where lines of tasks go: to srun's own output or to a file, with the task's number before each line where asked."""

    def __init__(self, label: bool, width: int) -> None:
        self._label = label
        self._width = width
        self._begun: dict[tuple[int, int], bytes] = {}
        self._files: dict[str, int] = {}

    def open(self, path: str) -> int:
        """The descriptor of a file, which is emptied the first time."""
        if path not in self._files:
            try:
                self._files[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
            except OSError as error:
                raise Refused(f"cannot write to {path}: {error.strerror}") from None
        return self._files[path]

    def put(self, task: int, descriptor: int, data: bytes) -> None:
        """Write what a task wrote. With labels, whole lines only."""
        if not self._label:
            _write(descriptor, data)
            return
        data = self._begun.pop((task, descriptor), b"") + data
        *lines, rest = data.split(b"\n")
        mark = f"{task:>{self._width}}: ".encode()
        _write(descriptor, b"".join([mark + line + b"\n" for line in lines]))
        if rest:
            self._begun[task, descriptor] = rest

    def end(self) -> None:
        """Write what did not end with a line."""
        for (task, descriptor), rest in self._begun.items():
            _write(descriptor, f"{task:>{self._width}}: ".encode() + rest + b"\n")
        for descriptor in self._files.values():
            os.close(descriptor)


class _Run:
    """One step: from its options to its exit status."""

    def __init__(self, parsed: Parsed, environment: Mapping[str, str], here: list[Part], peers: dict[int, Peer]) -> None:
        self.peers = peers
        self.values = parsed.values
        self.argv = parsed.rest
        self.environment = environment
        self.folder = Path(environment["MUSTER_STEP_DIR"]) if environment.get("MUSTER_STEP_DIR") else None
        self.number = self._step_number()
        self.gpus_per_task, self.gpus_per_node = self._gpus(parsed)
        self.limit_s = self._limit()
        self.layout = lay_out(here, self._asked(parsed), self._usual())
        self.total = sum(count for _, count in self.layout)
        self.nodes = [part.node for part, _ in self.layout]
        self.output = Output("label" in self.values, len(str(self.total - 1)))
        self.codes: dict[int, int] = {}
        self.local: list[Process] = []
        self.remote: list[asyncio.StreamWriter] = []
        self.ended = False

    async def run(self) -> int:
        """Start everything, wait, and say what went wrong."""
        mark = self.folder / STEPS / str(os.getpid()) if self.folder else None
        if mark is not None:
            with contextlib.suppress(OSError):
                mark.touch()
        self._pass_signals_on()
        feeding: asyncio.Future[None] | None = None
        try:
            works = await self._start()
            feeding = asyncio.ensure_future(self._feed())
            async with asyncio.timeout(self.limit_s):
                await asyncio.gather(*works)
        except TimeoutError:
            say("srun", f"the step has reached its time limit of {self.values['time']}")
            self._signal(signal.SIGTERM)
            self._end()
            return 1
        finally:
            if feeding is not None:
                feeding.cancel()
            self._end()
            self.output.end()
            if mark is not None:
                mark.unlink(missing_ok=True)
        return max(self.codes.values(), default=0)

    async def _start(self) -> list[asyncio.Future[None]]:
        directory = self._directory()
        base = self._base()
        own = int(self.environment.get("MUSTER_RANK", "0") or 0)
        works: list[asyncio.Future[None]] = []
        there: list[tuple[Peer, Step, int]] = []
        first = 0
        for index, (part, count) in enumerate(self.layout):
            names = [self._names(first + local, local, index, count, part) for local in range(count)]
            if part.rank == own:
                bound = bind(self.environment, part.node, count, self.gpus_per_task, self.gpus_per_node)
                for local in range(count):
                    work = self._here(first + local, directory, base | names[local] | bound[local], part.node)
                    works.append(asyncio.ensure_future(work))
            else:
                step = Step(
                    argv=self.argv,
                    directory=directory,
                    environment=base,
                    tasks=names,
                    gpus_per_task=self.gpus_per_task,
                    gpus_per_node=self.gpus_per_node,
                )
                there.append((self.peers[part.rank], step, first))
            first += count
        for peer, step, begin in there:
            works.append(asyncio.ensure_future(self._there(peer, await self._call(peer, step), len(step.tasks), begin)))
        return works

    async def _call(self, peer: Peer, step: Step) -> asyncio.StreamReader:
        """Have another node start its tasks."""
        try:
            reader, writer = await connect(peer.host, peer.port, secret(), msgspec.json.encode(step))
        except (OSError, Gone) as error:
            raise Refused(f"{peer.node} does not answer: {error}") from None
        self.remote.append(writer)
        return reader

    async def _here(self, task: int, directory: str, environment: dict[str, str], node: str) -> None:
        """One task on this node."""
        out, err = self._outputs(task, node)
        piped = "label" in self.values
        process = Process(self.argv, directory, environment, piped, feed=self._feeds(task))
        self.local.append(process)
        await process.start(out, err)
        if process.problem:
            say("srun", f"task {task}: {process.problem}")
        if process.process is not None and process.process.stdout is not None and process.process.stderr is not None:
            await asyncio.gather(
                _pump(process.process.stdout, lambda data: self.output.put(task, out, data)),
                _pump(process.process.stderr, lambda data: self.output.put(task, err, data)),
            )
        self._exited(task, await process.wait(), node)

    async def _there(self, peer: Peer, reader: asyncio.StreamReader, count: int, first: int) -> None:
        """What the tasks of another node say, until they have ended."""
        left = dict.fromkeys(range(count))
        try:
            while left:
                kind, index, data = await read_frame(reader)
                if kind == FAULT:
                    raise Refused(data.decode("utf-8", "replace"))
                task = first + index
                if kind == EXIT:
                    left.pop(index, None)
                    self._exited(task, int(data), peer.node)
                elif kind in (STDOUT, STDERR):
                    self.output.put(task, self._outputs(task, peer.node)[kind == STDERR], data)
        except Gone as error:
            if not self.ended:
                say("srun", f"{peer.node} has gone in the middle of the step: {error}")
            for index in left:
                self.codes[first + index] = 1

    def _exited(self, task: int, code: int, node: str) -> None:
        self.codes[task] = code
        if not code or self.ended:
            return
        signals = {int(number): number.name for number in signal.Signals}
        how = f"killed by {signals[code - 128]}" if code - 128 in signals else f"exited with code {code}"
        say("srun", f"{node}: task {task}: {how}")
        if self.values.get("kill-on-bad-exit", "0") != "0":
            self._end()

    def _end(self) -> None:
        """Kill what is left."""
        self.ended = True
        for process in self.local:
            process.kill()
        for writer in self.remote:
            writer.close()

    def _pass_signals_on(self) -> None:
        loop = asyncio.get_running_loop()
        for name in PASSED_ON:
            loop.add_signal_handler(getattr(signal, name), self._signal, getattr(signal, name))

    def _signal(self, number: int) -> None:
        for process in self.local:
            process.signal(number)
        for writer in self.remote:
            with contextlib.suppress(OSError):
                writer.write(frame(SIGNAL, 0, str(int(number)).encode()))

    async def _feed(self) -> None:
        """Give the step what this program is given: all of it to every task."""
        if self.values.get("input", "all") == "none":
            data_from = None
        else:
            data_from = await _reader(self.values.get("input", "all"))
        while True:
            data = await data_from.read(CHUNK_BYTES) if data_from is not None else b""
            for process in self.local:
                await process.write(data)
            for writer in self.remote:
                with contextlib.suppress(OSError):
                    writer.write(frame(STDIN, 0, data))
                    await writer.drain()
            if not data:
                return

    def _feeds(self, task: int) -> bool:
        return self.values.get("input", "all") != "none"

    def _outputs(self, task: int, node: str) -> tuple[int, int]:
        out = self._file("output", task, node)
        err = self._file("error", task, node)
        return (1 if out is None else out), (err if err is not None else out if out is not None else 2)

    def _file(self, option: str, task: int, node: str) -> int | None:
        pattern = self.values.get(option)
        if pattern is None or pattern == "all":
            return None
        if pattern == "none":
            return self.output.open("/dev/null")
        job = self.environment.get("SLURM_JOB_ID", "")
        signs = {
            "j": job,
            "J": f"{job}.{self.number}",
            "s": str(self.number),
            "t": str(task),
            "N": node,
            "n": str(self.nodes.index(node)),
            "x": self.environment.get("SLURM_JOB_NAME", ""),
            "u": self.environment.get("SLURM_JOB_USER", self.environment.get("USER", "")),
            "A": self.environment.get("SLURM_ARRAY_JOB_ID", job),
            "a": self.environment.get("SLURM_ARRAY_TASK_ID", "0"),
            "%": "%",
        }
        name = re.sub(
            r"%([0-9]*)([a-zA-Z%])", lambda match: signs.get(match[2], match[0]).rjust(int(match[1] or 0), "0"), pattern
        )
        return self.output.open(os.path.join(self._directory(), name))

    def _directory(self) -> str:
        return os.path.abspath(self.values.get("chdir", "."))

    def _base(self) -> dict[str, str]:
        """The environment of all tasks: this program's, or what `--export` names."""
        base = dict(self.environment)
        said = self.values.get("export")
        if said is None:
            return base
        listed = [part for part in said.split(",") if part]
        if "ALL" not in listed:
            kept = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")
            base = {name: value for name, value in base.items() if name in kept or name.startswith(("SLURM", "MUSTER", "CUDA_"))}
        for part in listed:
            name, equals, value = part.partition("=")
            if equals:
                base[name] = value
            elif name not in ("ALL", "NONE", "NIL") and name in self.environment:
                base[name] = self.environment[name]
        return base

    def _names(self, task: int, local: int, index: int, count: int, part: Part) -> dict[str, str]:
        """What tells the tasks apart, for Slurm's programs and for PyTorch's."""
        per_node = _counts([count for _, count in self.layout])
        nodes = compress(self.nodes)
        names = {
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(index),
            "SLURMD_NODENAME": part.node,
            "SLURM_NTASKS": str(self.total),
            "SLURM_NPROCS": str(self.total),
            "SLURM_NNODES": str(len(self.layout)),
            "SLURM_STEP_ID": str(self.number),
            "SLURM_STEPID": str(self.number),
            "SLURM_STEP_NODELIST": nodes,
            "SLURM_STEP_NUM_NODES": str(len(self.layout)),
            "SLURM_STEP_NUM_TASKS": str(self.total),
            "SLURM_STEP_TASKS_PER_NODE": per_node,
            "SLURM_TASKS_PER_NODE": per_node,
            "SLURM_SRUN_COMM_HOST": self.environment.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"),
            "RANK": str(task),
            "LOCAL_RANK": str(local),
            "NODE_RANK": str(index),
            "GROUP_RANK": str(index),
            "WORLD_SIZE": str(self.total),
            "LOCAL_WORLD_SIZE": str(count),
        }
        if cpus := self.values.get("cpus-per-task"):
            names["SLURM_CPUS_PER_TASK"] = cpus
        if self.folder is not None:  # the script's own word counts: `batch` has taken away what was not its
            for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"):
                if name in self.environment:
                    del names[name]
        return names

    def _asked(self, parsed: Parsed) -> Asked:
        nodes = self.values.get("nodes", "").split("-")[-1]
        if nodes and not nodes.isdigit():
            raise Refused(f"--nodes must be a number of nodes, not {self.values['nodes']!r}")
        per_node = number(parsed, "ntasks-per-node") or number(parsed, "tasks-per-node")
        return Asked(
            tasks=number(parsed, "ntasks"),
            nodes=int(nodes) if nodes else None,
            per_node=per_node,
            names=_hosts(self.values.get("nodelist", "")),
            without=_hosts(self.values.get("exclude", "")),
            relative=number(parsed, "relative", 0) or 0,
        )

    def _usual(self) -> Usual:
        def whole(name: str) -> int | None:
            text = self.environment.get(name, "")
            return int(text) if text.isdigit() and int(text) else None

        return Usual(tasks=whole("SLURM_NTASKS"), per_node=whole("SLURM_NTASKS_PER_NODE"))

    def _gpus(self, parsed: Parsed) -> tuple[int, int]:
        """GPUs of each task (0: all of the node's for every task), and of each node (-1: all)."""
        per_task = self.values.get("gpus-per-task", self.environment.get("SLURM_GPUS_PER_TASK", ""))
        how = self.values.get("gpu-bind", "")
        if "none" in how:
            per_task = ""
        elif not per_task and (match := re.fullmatch(r"(?:verbose,)?(?:single:1|per_task:([0-9]+))", how)):
            per_task = match[1] or "1"
        elif self.values.get("ntasks-per-gpu") == "1" and not per_task:
            per_task = "1"
        per_node = self.values.get("gpus-per-node", "")
        gres = [
            part for part in self.values.get("gres", "").split(",") if part.startswith(("gpu", "none", "gres/gpu", "gres:gpu"))
        ]
        if not per_node and gres:
            text = re.sub(r"^gres[:/]", "", gres[0])
            per_node = "0" if text == "none" else text.removeprefix("gpu").removeprefix(":") or "1"
        return _gpu_count(per_task, "gpus-per-task", 0), _gpu_count(per_node, "gpus-per-node", -1)

    def _limit(self) -> float | None:
        if "time" not in self.values:
            return None
        try:
            micros = read_time_us(self.values["time"])
        except BadValue as error:
            raise Refused(f"--time {error}") from None
        return None if micros is None else micros / 1_000_000

    def _step_number(self) -> int:
        """Counts the steps of the job."""
        if self.folder is None:
            return 0
        for step in range(1_000_000):
            try:
                os.close(os.open(self.folder / f"step.{step}", os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                continue
            except OSError:
                return 0
            return step
        raise Refused("a job has at most 1000000 steps")


def find_parts(environment: Mapping[str, str], patience_s: float = PEERS_S) -> tuple[list[Part], dict[int, Peer]]:
    """The parts of the job by rank, and where those that are not this one wait; they may still be on their way.

    In a job that came through another door a step has this part only.

    Raises:
        Refused: they do not come.
    """
    own = Part(
        int(environment.get("MUSTER_RANK", "0") or 0),
        environment.get("MUSTER_NODE") or environment.get("SLURMD_NODENAME") or "localhost",
    )
    folder = environment.get("MUSTER_STEP_DIR", "")
    others = parts() - 1 if folder else 0
    until = time.monotonic() + patience_s
    peers: dict[int, Peer] = {}
    while len(peers) < others:
        with contextlib.suppress(FileNotFoundError):
            peers = msgspec.json.decode(Path(folder, PEERS).read_bytes(), type=dict[int, Peer])
        if len(peers) < others:
            if time.monotonic() > until:
                raise Refused(
                    f"{others - len(peers)} of the {others} other nodes of the job did not come within {patience_s:g} s"
                )
            time.sleep(0.05)
    found = [own, *(Part(rank, peer.node) for rank, peer in peers.items())]
    return sorted(found, key=lambda part: part.rank), peers


def _hosts(text: str) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(expand(text))) if text else ()
    except BadHostlist as error:
        raise Refused(f"the list of nodes {text!r} {error}") from None


def _gpu_count(text: str, option: str, usual: int) -> int:
    if not text:
        return usual
    count = text.rpartition(":")[2]
    if not count.isdigit() or len(count) > 3:
        raise Refused(f"--{option} must be a number of GPUs, not {text!r}")
    return int(count)


def _counts(counts: list[int]) -> str:
    """As Slurm writes numbers by node: `4(x2),3`."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(descriptor, view) :]


async def _pump(pipe: asyncio.StreamReader, put: Callable[[bytes], None]) -> None:
    while data := await pipe.read(CHUNK_BYTES):
        put(data)


async def _reader(source: str) -> asyncio.StreamReader | None:
    """Standard input or a file; None for one that has nothing."""
    if source != "all":
        return await _file_reader(source)
    kind = os.fstat(0).st_mode
    if stat.S_ISREG(kind):
        return await _file_reader("/dev/stdin")
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(0)):
        return None
    reader = asyncio.StreamReader()
    pipe = os.fdopen(os.dup(0), "rb")
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def _file_reader(path: str) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    try:
        reader.feed_data(await asyncio.to_thread(Path(path).read_bytes))
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from None
    reader.feed_eof()
    return reader
