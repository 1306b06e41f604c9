"""`muster scenario run|mutate FILE...`: scenes as data, played on the real core with a virtual clock."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.output import FOUND, OK, USAGE, Failure, Json, print_json
from muster.simulator.scenario.format import Scenario, load
from muster.simulator.scenario.mutate import mutate as mutate_scene
from muster.simulator.scenario.play import Result, play
from muster.simulator.scenario.reading import ScenarioError
from muster.simulator.scenario.trace import trace_lines

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Scenes as data: play them, or see what they notice.")

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Scenes, or a folder of them.", show_default=False)]


@app.command()
def run(
    files: Files,
    json: Json = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print every entry of the log.")] = False,
) -> int:
    """Play each scene five times and say whether all that it expects was true.

    Exit status: 0 all passed; 1 one failed or is no scene.

    Example: muster scenario run tests/scenarios/*.yaml
    """
    passed = True
    for path in _scenes(files):
        try:
            scenario = load(path)
        except ScenarioError as error:
            passed = False
            _say(Result(file=str(path), name=path.stem, passed=False, step="file", error=str(error)), json)
            continue
        result, world = play(scenario)
        passed = passed and result.passed
        if trace:
            for line in trace_lines(world, json):
                print(line)
        _say(result, json)
    return OK if passed else FOUND


@app.command()
def mutate(files: Files, json: Json = False) -> int:
    """Play each scene with one rule of the engine left out, and say which of these mutants no expectation noticed.

    Exit status: 0 every scene noticed at least one; 1 one noticed none, or does not pass as it is.

    Example: muster scenario mutate tests/scenarios/G1.yaml
    """
    good = True
    for path in _scenes(files):
        try:
            scenario: Scenario = load(path)
        except ScenarioError as error:
            good = False
            _say(Result(file=str(path), name=path.stem, passed=False, step="file", error=str(error)), json)
            continue
        result = mutate_scene(scenario)
        good = good and result.passed
        if json:
            print_json(result)
        else:
            print(result.line)
    return OK if good else FOUND


def _say(result: Result, json: bool) -> None:
    if json:
        print_json(result)
    else:
        print(result.line)


def _scenes(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
            if not found:
                raise Failure(f"{path} has no scenes (*.yaml) in it", USAGE)
            yield from found
        elif path.exists():
            yield path
        else:
            raise Failure(f"{path} is not there", USAGE)
