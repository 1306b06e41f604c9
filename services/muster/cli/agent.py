"""`muster agent`: the agent of one node, and faults of simulated devices. What an agent does: `muster.agent.agent`."""

import asyncio
import logging
import os
import re
import signal
import socket
import sys
import urllib.parse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.metrics import Metrics, checked_metrics
from muster.cli.output import OK, UNREADABLE, Failure, console
from muster.events.base import NAME_PATTERN

USUAL = "http://127.0.0.1:8470"

app = typer.Typer(add_completion=False, invoke_without_command=True)

Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="The agent's data folder; else one of the node's in the user's data folder."),
]
Node = Annotated[str, typer.Option("--node", metavar="NAME", help="The node's name; else this machine's.")]


@app.callback()
def agent(
    context: typer.Context,
    gateway: Annotated[
        list[str] | None,
        typer.Option(
            "--gateway",
            metavar="URL",
            help="Where the gateway listens; several times, or with commas between, if there are several of them.",
            show_default=USUAL,
        ),
    ] = None,
    node: Node = "",
    data: Data = None,
    devices: Annotated[
        str,
        typer.Option("--devices", metavar="8xH100-80GB", help="Simulated devices, and a node of the size that goes with them."),
    ] = "",
    runtime: Annotated[str, typer.Option("--runtime", help="How commands are run: process, or container.")] = "process",
    cpus: Annotated[int, typer.Option("--cpus", help="Say that the node has so many processors.", min=0)] = 0,
    memory_mib: Annotated[int, typer.Option("--memory-mib", help="Say that the node has so much memory.", min=0)] = 0,
    address: Annotated[str, typer.Option("--address", help="Where other nodes reach this one; else found by asking.")] = "",
    label: Annotated[list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label of the node.")] = None,
    cgroup: Annotated[bool, typer.Option("--cgroup/--no-cgroup", help="Limit tasks by cgroup v2, where that is allowed.")] = True,
    output_max_mib: Annotated[
        int, typer.Option("--output-max-mib", help="So much is kept of each output of a task.", min=1)
    ] = 1024,
    metrics: Metrics = "",
    telemetry: Annotated[
        str,
        typer.Option("--telemetry", metavar="kafka://HOST:PORT", help="The bus that gets what GPUs measure."),
    ] = "",
    telemetry_config: Annotated[
        Path | None, typer.Option("--telemetry-config", metavar="FILE", help="How that bus is reached: TLS and SASL.")
    ] = None,
    telemetry_every: Annotated[
        float, typer.Option("--telemetry-every", metavar="S", help="How often GPUs are asked what they measure.", min=1)
    ] = 10.0,
) -> int:
    """Run the node's tasks, until stopped. What runs then goes on, and an agent started again finds it.

    A token, where the gateway wants one, is read from MUSTER_TOKEN, or from the file that MUSTER_TOKEN_FILE names.

    Exit status: 0 told to stop; 2 the command makes no sense; 3 the data folder cannot be used, or another agent uses it.

    Example: muster agent --gateway http://10.0.0.1:8470 --node gpu-17 --data /var/lib/muster

    Example: muster agent --devices 8xH100-80GB
    """
    if context.invoked_subcommand is not None:
        return OK
    from muster.agent.agent import Agent, Options
    from muster.agent.home import HomeTaken
    from muster.agent.inventory import BadDevices
    from muster.agent.runtimes import UnknownRuntime, load
    from muster.cli.gateway_client import told_token
    from muster.log.bus import Bus

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="agent: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    name = node or own_name()
    if not re.fullmatch(NAME_PATTERN, name):
        raise Failure(f"{name} is no name of a node: lower-case letters, digits, dots and dashes, at most 63, would be")
    gateways = _gateways(gateway or [USUAL])
    options = Options(
        gateway=gateways[0],
        others=gateways[1:],
        node=name,
        data=data or default_data(name),
        devices=devices,
        cpu_milli=1000 * cpus,
        memory_mib=memory_mib,
        address=address or own_address(gateways[0]),
        token=told_token() or "",
        labels=dict(_label(text) for text in label or ()),
        output_max_bytes=output_max_mib << 20,
        cgroup=cgroup,
        metrics=checked_metrics(metrics),
        telemetry=telemetry,
        telemetry_config=str(telemetry_config.absolute()) if telemetry_config is not None else "",
        telemetry_every_s=telemetry_every,
    )
    if telemetry:
        Bus.parse(telemetry, telemetry_config)
    try:
        plugin = load(runtime)
        if problem := plugin.check():
            raise Failure(f"the {runtime} runtime cannot be used here: {problem}")
        body = Agent(options, plugin)
    except (UnknownRuntime, BadDevices) as error:
        raise Failure(str(error)) from error
    except HomeTaken as error:
        raise Failure(str(error), UNREADABLE) from error
    except OSError as error:
        raise Failure(f"the data folder {options.data} cannot be used: {error.strerror or error}", UNREADABLE) from error
    asyncio.run(_live(body.run))
    return OK


async def _live(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run until told to stop."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run(stop)


@app.command("break")
def break_device(
    gpu: Annotated[str, typer.Argument(help="The device: its number on the node, or its uuid.", show_default=False)],
    data: Data = None,
    node: Node = "",
    reason: Annotated[str, typer.Option("--reason", help="What is said to have happened.")] = "broken by hand",
    degraded: Annotated[bool, typer.Option("--degraded", help="It still works, but not well.")] = False,
) -> int:
    """Say that a simulated device has failed. Its agent reports it at once.

    Example: muster agent break 3 --data /tmp/muster/agent-0
    """
    _set_health(gpu, data, node, "degraded" if degraded else "failed", reason)
    return OK


@app.command("mend")
def mend_device(
    gpu: Annotated[str, typer.Argument(help="The device: its number on the node, or its uuid.", show_default=False)],
    data: Data = None,
    node: Node = "",
) -> int:
    """Say that a simulated device is healthy again.

    Example: muster agent mend 3 --data /tmp/muster/agent-0
    """
    _set_health(gpu, data, node, "healthy", "")
    return OK


@app.command("xid")
def count_xid(
    gpu: Annotated[str, typer.Argument(help="The device: its number on the node, or its uuid.", show_default=False)],
    code: Annotated[int, typer.Argument(help="NVIDIA's number of the error.", min=1, max=65_535, show_default=False)],
    data: Data = None,
    node: Node = "",
    count: Annotated[int, typer.Option("--count", help="How often it happened.", min=1)] = 1,
) -> int:
    """Say that an Xid happened on a simulated device. Where it is fatal by itself its agent reports that at once.

    Example: muster agent xid 3 79 --data /tmp/muster/agent-0
    """
    _feign(gpu, data, node, {code: count}, {})
    return OK


@app.command("feign")
def feign(
    gpu: Annotated[str, typer.Argument(help="The device: its number on the node, or its uuid.", show_default=False)],
    values: Annotated[list[str], typer.Argument(metavar="FIELD=NUMBER...", help="Fields of a sample.", show_default=False)],
    data: Data = None,
    node: Node = "",
) -> int:
    """Say what a simulated device measures from now on, until it is mended.

    Example: muster agent feign 3 temperature_millicelsius=96000 --data /tmp/muster/agent-0
    """
    from muster.agent.measuring import MEASURED

    measured = {}
    for text in values:
        field, _, number = text.partition("=")
        if field not in MEASURED:
            raise Failure(f"{field[:64]!r} is no field of a sample; there are {', '.join(MEASURED)}")
        if not re.fullmatch(r"[0-9]{1,15}", number):
            raise Failure(f"{field} is given {number[:64]!r}, which is no number: digits, at most 15, would be")
        measured[field] = int(number)
    _feign(gpu, data, node, {}, measured)
    return OK


def _gateways(told: list[str]) -> tuple[str, ...]:
    gateways = tuple(dict.fromkeys(url.strip().rstrip("/") for text in told for url in text.split(",")))
    for url in gateways:
        place = urllib.parse.urlsplit(url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise Failure(f"{url} is no gateway's address: http://HOST:PORT would be")
    return gateways


def own_name() -> str:
    """This machine's name, as far as a node may be called so."""
    return re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower())[:63].strip("-.") or "node"


def own_address(gateway: str) -> str:
    """The address that this machine has towards the gateway; no packet is sent to find it."""
    place = urllib.parse.urlsplit(gateway)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((place.hostname or "127.0.0.1", place.port or 80))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def default_data(node: str) -> Path:
    """The folder of the node's agent in the user's data folder."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "muster" / f"agent-{node}"


def _set_health(gpu: str, data: Path | None, node: str, health: str, reason: str) -> None:
    from muster.agent.home import write_fault

    folder, uuid = _device(gpu, data, node)
    try:
        write_fault(folder, uuid, health, reason)  # type: ignore[arg-type]  # one of the three
    except OSError as error:
        raise Failure(f"{folder} cannot be written: {error.strerror}", UNREADABLE) from error
    _poke(folder, f"{uuid} is {health}")


def _feign(gpu: str, data: Path | None, node: str, xids: dict[int, int], measured: dict[str, int]) -> None:
    from muster.agent.home import write_measured

    folder, uuid = _device(gpu, data, node)
    try:
        write_measured(folder, uuid, xids, measured)
    except OSError as error:
        raise Failure(f"{folder} cannot be written: {error.strerror}", UNREADABLE) from error
    said = [f"had Xid {code}" for code in xids] + [f"measures {field}={value}" for field, value in measured.items()]
    _poke(folder, f"{uuid} {', '.join(said)}")


def _device(gpu: str, data: Path | None, node: str) -> tuple[Path, str]:
    """The agent's folder, and the device's uuid."""
    from muster.agent.inventory import device_uuid

    folder = data or default_data(node or own_name())
    try:
        uid = (folder / "uid").read_text().strip()
    except OSError as error:
        raise Failure(f"{folder} is not the data folder of an agent", UNREADABLE) from error
    return folder, device_uuid(uid, int(gpu)) if gpu.isdigit() else gpu


def _poke(folder: Path, said: str) -> None:
    from muster.agent.slots import poke

    heard = poke(str(folder / "poke"), b"\n")
    console.print(said + ("" if heard else "; no agent runs there that would say so now"), highlight=False)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise Failure(f"the label {text} is not KEY=VALUE")
    return key, value
