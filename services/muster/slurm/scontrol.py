"""`scontrol show hostnames|hostlist [LIST]`: what scripts call it for. Of jobs and nodes it shows the plainest fields."""

import os
import time

from muster.doors.hostlist import BadHostlist, compress, expand
from muster.slurm.options import FLAG, Option, parse
from muster.slurm.say import Refused

OPTIONS = (Option("oneliner", "o", FLAG), Option("details", "d", FLAG), Option("quiet", "Q", FLAG), Option("help", "h", FLAG))
USAGE = """scontrol show hostnames [LIST]   the nodes of a list, one a line (default: SLURM_JOB_NODELIST)
scontrol show hostlist NAMES     names, with commas between them, as a list
scontrol show job ID | node NAME what Muster knows of it"""


def main(arguments: list[str]) -> int:
    """Show something."""
    parsed = parse(OPTIONS, arguments, interleaved=True)
    words = parsed.rest
    if "help" in parsed.values or not words:
        print(USAGE)
        return 0
    if words[0] != "show" or len(words) < 2:
        raise Refused(f"{' '.join(words)!r} is not supported: `scontrol show hostnames` is, and show hostlist, job and node")
    what, rest = words[1], words[2:]
    if what in ("hostnames", "hostname"):
        _print_hostnames(rest[0] if rest else os.environ.get("SLURM_JOB_NODELIST", ""))
    elif what in ("hostlist", "hostlistsorted"):
        names = _expanded(rest[0]) if rest else []
        print(compress(sorted(names) if what == "hostlistsorted" else names))
    elif what in ("job", "jobid", "jobs"):
        _print_job(rest[0] if rest else os.environ.get("SLURM_JOB_ID", ""), "oneliner" in parsed.values)
    elif what in ("node", "nodes"):
        _print_nodes(_expanded(rest[0]) if rest else [], "oneliner" in parsed.values)
    else:
        raise Refused(f"show {what} is not supported: show hostnames is, and hostlist, job and node")
    return 0


def _print_hostnames(text: str) -> None:
    if not text:
        raise Refused("no list was given, and SLURM_JOB_NODELIST is not set")
    for name in _expanded(text):
        print(name)


def _expanded(text: str) -> list[str]:
    try:
        return expand(text)
    except BadHostlist as error:
        raise Refused(f"the list {text[:200]!r} {error}") from None


def _print_job(job: str, one_line: bool) -> None:
    from muster.slurm.cell import find_job, open_gateway

    with open_gateway() as gateway:
        shown = gateway.job(find_job(gateway, job))
    row = shown.job
    at = {
        name: _instant(value) for name, value in (("Submit", row.submitted_us), ("Start", row.started_us), ("End", row.ended_us))
    }
    lines = (
        f"JobId={row.job} JobName={row.name}",
        f"UserId={row.user} Priority={row.priority} Partition={row.queue}",
        f"JobState={row.state.upper()} Reason={row.reason or 'None'} ExitCode={max(0, row.code)}:{max(0, -row.code)}",
        f"SubmitTime={at['Submit']} StartTime={at['Start']} EndTime={at['End']}",
        f"NodeList={compress(row.nodes) or '(null)'} NumNodes={len(row.nodes)} NumTasks={row.tasks}",
        f"Command={' '.join(shown.run.command)[:200]!r} WorkDir={shown.run.directory}",
        f"StdOut={shown.run.output or '(null)'}",
    )
    print(" ".join(lines) if one_line else "\n   ".join(lines))


def _print_nodes(names: list[str], one_line: bool) -> None:
    from muster.slurm.cell import open_gateway

    with open_gateway() as gateway:
        rows = [row for row in gateway.nodes().nodes if not names or row.node in names]
    unknown = [name for name in names if all(row.node != name for row in rows)]
    if unknown:
        raise Refused(f"node {unknown[0]} not found")
    for row in rows:
        lines = (
            f"NodeName={row.node} State={row.state.upper().replace(' ', '+')}",
            f"CPUAlloc={(row.cpu_milli - row.cpu_free) // 1000} CPUTot={row.cpu_milli // 1000}",
            f"RealMemory={row.memory_mib} AllocMem={row.memory_mib - row.memory_free}",
            f"Gres=gpu:{row.model or 'none'}:{row.gpus}",
        )
        print(" ".join(lines) if one_line else "\n   ".join(lines))


def _instant(at_us: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_us // 1_000_000)) if at_us else "Unknown"
