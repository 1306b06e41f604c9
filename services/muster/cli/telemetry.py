"""`muster telemetry worker|bridge|rules|replay`: from samples of GPUs to proposals about their health. See `muster.telemetry`."""

import asyncio
import importlib.util
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from muster.cli.metrics import Metrics, checked_metrics
from muster.cli.output import OK, UNREADABLE, USAGE, Failure, Json, console, print_json, print_table
from muster.events.telemetry import GpusSampled

if TYPE_CHECKING:
    from muster.telemetry.rules import Rules

app = typer.Typer(add_completion=False, no_args_is_help=True)

BusAddress = Annotated[str, typer.Option("--bus", metavar="kafka://HOST:PORT", help="Where the bus is.", envvar="MUSTER_BUS")]
BusConfig = Annotated[
    Path | None,
    typer.Option(
        "--bus-config",
        metavar="FILE",
        help="Settings of TLS and SASL, under the names that Kafka's clients have.",
        envvar="MUSTER_BUS_CONFIG",
    ),
]
RulesFile = Annotated[
    Path | None,
    typer.Option("--rules", metavar="FILE", help="Rules of your own; else those that come with Muster.", envvar="MUSTER_RULES"),
]


@app.callback()
def telemetry() -> None:
    """Judge samples of GPUs by rules, and propose what is to be held of their health."""


@app.command()
def worker(
    bus: BusAddress,
    bus_config: BusConfig = None,
    rules: RulesFile = None,
    group: Annotated[
        str, typer.Option("--group", metavar="NAME", help="Workers of one group share the topic's partitions.")
    ] = "muster-telemetry",
    instance: Annotated[
        str, typer.Option("--instance", metavar="NAME", help="This worker's own name: started again, it goes on at once.")
    ] = "",
    metrics: Metrics = "",
) -> int:
    """Read samples from `muster.telemetry`, and write proposals to `muster.gpu-health`. Start one, or one a partition.

    It keeps nothing: started again it reads the last samples once more, and sends no proposal that was sent.

    Exit status: 0 told to stop; 2 the command makes no sense; 3 it cannot run: the sentence before says why.

    Example: muster telemetry worker --bus kafka://10.0.0.1:9092 --instance telemetry-1
    """
    if "faust" not in sys.modules and importlib.util.find_spec("faust") is None:  # once imported it hides its spec
        raise Failure("faust-streaming is not installed: pip install 'muster-scheduler[telemetry]' brings it")
    from muster.log.bus import Bus
    from muster.up.keeper import Keeper
    from muster.up.process import FINAL

    Bus.parse(bus, bus_config)
    _rules(rules)
    options = {
        "bus": bus,
        "config": str(bus_config.absolute()) if bus_config is not None else "",
        "rules": str(rules.absolute()) if rules is not None else "",
        "worker": {"group": group, "instance": instance},
        "metrics": checked_metrics(metrics),
    }
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="muster: %(message)s")
    keeper = Keeper("the telemetry worker", "muster.up.telemetry_worker", msgspec.json.encode(options), FINAL, snapshots_s=None)
    if asyncio.run(keeper.run()):
        raise Failure("the telemetry worker cannot run: the sentence above says why", UNREADABLE)
    return OK


@app.command()
def rules(rules: RulesFile = None, json: Json = False) -> int:
    """Print the rules in force, and what each Xid makes of its device.

    Example: muster telemetry rules --rules mine.toml
    """
    found = _rules(rules)
    if json:
        print_json(found)
        return OK
    print_table(
        ("RULE", "HOLDS WHERE", "IN", "PROPOSES", "AT ONCE", "WELL AFTER"),
        [
            (
                rule.name,
                f"{rule.measure} of {rule.signal} >= {rule.at_least}",
                f"{rule.window_s} s",
                rule.health,
                "yes" if rule.at_once else "",
                f"{rule.recovers_after * rule.window_s} s" if rule.recovers_after else "",
            )
            for rule in found.rule
        ],
    )
    console.print()
    rows = [
        (code, kind.health, name, kind.action)
        for kind in found.xid.values()
        for code, name in sorted(kind.codes.items(), key=lambda each: int(each[0]))
    ]
    print_table(("XID", "MAKES IT", "WHAT", "NVIDIA"), rows)
    return OK


@app.command()
def replay(
    file: Annotated[str, typer.Argument(help="Samples, one message a line as JSON; - is standard input.", show_default=False)],
    rules: RulesFile = None,
    json: Json = False,
) -> int:
    """Print what the rules make of samples in a file. The same samples lead to the same proposals.

    Example: muster telemetry bridge --print --once http://10.0.0.7:9400/metrics > hour.jsonl
    Example: muster telemetry replay hour.jsonl
    """
    from muster.telemetry.reducer import Reducer
    from muster.telemetry.replay import replay

    reducer = Reducer(_rules(rules))
    if file == "-":
        made = replay(reducer, sys.stdin.buffer)
    else:
        try:
            with Path(file).open("rb") as lines:
                made = replay(reducer, lines)
        except OSError as error:
            raise Failure(f"{file} cannot be read: {error.strerror or error}", UNREADABLE) from None
    for proposal in made:
        if json:
            print_json(proposal)
        else:
            said = f"{proposal.node} {proposal.device} {proposal.health}: {proposal.reason} [{proposal.id}]"
            console.print(said, markup=False, highlight=False, soft_wrap=True)
    counts = reducer.counts
    told = f"{counts.samples} samples, {counts.late} late, {counts.repeated} repeated; {len(made)} proposals"
    print(told, file=sys.stderr)
    return OK


@app.command()
def bridge(
    sources: Annotated[
        list[str], typer.Argument(metavar="URL...", help="Pages of DCGM's exporter: http://HOST:9400/metrics, or files.")
    ],
    bus: Annotated[str, typer.Option("--bus", metavar="kafka://HOST:PORT", help="Where the bus is.", envvar="MUSTER_BUS")] = "",
    bus_config: BusConfig = None,
    gateway: Annotated[
        str, typer.Option("--gateway", metavar="URL", help="Who knows the nodes.", envvar="MUSTER_GATEWAY")
    ] = "http://127.0.0.1:8470",
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="The node of all these pages; else their host label.")] = "",
    uid: Annotated[str, typer.Option("--uid", metavar="UID", help="That node's uid; no gateway is asked then.")] = "",
    host_label: Annotated[str, typer.Option("--host-label", metavar="LABEL", help="Which label names the node.")] = "Hostname",
    every: Annotated[float, typer.Option("--every", metavar="S", help="How often they are read.", min=1)] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="Read them once, and end.")] = False,
    print_only: Annotated[bool, typer.Option("--print", help="Print samples, one message a line, and send none.")] = False,
) -> int:
    """Read pages of DCGM's exporter every few seconds, and write what they tell to `muster.telemetry`.

    Exit status: 0 told to stop, or with --once all were read; 1 with --once one was not; 2 the command makes no sense.

    Example: muster telemetry bridge --bus kafka://10.0.0.1:9092 http://gpu-17:9400/metrics http://gpu-18:9400/metrics
    """
    from muster.telemetry.bridge import SOURCES_MAX

    if len(sources) > SOURCES_MAX:
        raise Failure(f"{len(sources)} pages are more than the {SOURCES_MAX} that one bridge reads: start several")
    if uid and not node:
        raise Failure("--uid says whose it is together with --node")
    if not bus and not print_only:
        raise Failure("--bus says where samples go to, or --print prints them")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="bridge: %(message)s")
    for name in ("httpx", "aiokafka"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return asyncio.run(_bridge(sources, bus, bus_config, gateway, (node, uid), host_label, every, once, print_only))


async def _bridge(
    sources: Sequence[str],
    bus: str,
    bus_config: Path | None,
    gateway: str,
    whose: tuple[str, str],
    host_label: str,
    every_s: float,
    once: bool,
    print_only: bool,
) -> int:
    from muster.cli.gateway_client import told_token
    from muster.cli.telemetry_nodes import Nodes
    from muster.client import ClientError, Muster
    from muster.telemetry.bridge import Bridge, Put, SourceAway

    async def shown(sampled: GpusSampled) -> None:
        print_json(sampled)
        sys.stdout.flush()

    nodes = Nodes(gateway, told_token() or "", *whose)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def work(put: Put) -> int:
        made = Bridge(sources, put, nodes.identify, host=whose[0], host_label=host_label)
        if once:
            return OK if await made.once() else 1
        await made.run(every_s, stop)
        return OK

    try:
        if print_only:
            return await work(shown)
        async with Muster(bus, config=bus_config) as muster:

            async def sent(sampled: GpusSampled) -> None:
                try:
                    await muster.gpus_sampled(sampled)
                except ClientError as error:
                    raise SourceAway(str(error)) from None

            return await work(sent)
    except ClientError as error:
        raise Failure(str(error), UNREADABLE) from None
    finally:
        await nodes.close()


def _rules(path: Path | None) -> "Rules":
    from muster.telemetry.rules import BadRules, load, usual

    try:
        return usual() if path is None else load(path)
    except BadRules as error:
        raise Failure(str(error), USAGE) from None
