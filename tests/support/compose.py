"""The Compose file as tests look at it: what is wrong with it, in a sentence for each place.

Nothing here talks to an engine: `infra/compose-test` does.
"""

import re
from pathlib import Path
from typing import Any

import typer
import yaml

from muster.cli.main import app

ROOT = Path(__file__).parents[2]
FILE = ROOT / "infra" / "compose.yaml"
OURS = "${MUSTER_IMAGE:-muster:local}"
VARIABLE = re.compile(r"(?<!\$)\$\{([^}]*)\}")
SECRET = re.compile(r"PASSWORD|TOKEN|SECRET|PGPASS|DSN")
METRICS = "0.0.0.0:9464"


def loaded(text: str) -> dict[str, Any]:
    """The file, with every variable at its default."""
    found: dict[str, Any] = yaml.safe_load(VARIABLE.sub(lambda one: one[1].partition(":-")[2], text))
    return found


def variables(text: str) -> dict[str, str]:
    """Every variable with its default."""
    return {name: default for name, _, default in (one.partition(":-") for one in VARIABLE.findall(text))}


def faults(text: str) -> list[str]:
    """What is wrong with the file of this text."""
    found = [f"{one} has no default" for one in VARIABLE.findall(text) if ":-" not in one]
    if bare := re.findall(r"(?<!\$)\$[A-Za-z_]\w*", text):
        found += [f"{one} is a variable without braces and default" for one in bare]
    compose = loaded(text)
    used = set()
    for name, service in compose["services"].items():
        found += [f"{name}: {fault}" for fault in _faults(service, compose["services"])]
        used |= {one.partition(":")[0] for one in service.get("volumes", ()) if not one.startswith(".")}
    found += [f"the volume {name} is used by nobody" for name in compose["volumes"].keys() - used]
    found += [f"the volume {name} is not declared" for name in used - compose["volumes"].keys()]
    return found


def _faults(service: dict[str, Any], services: dict[str, Any]) -> list[str]:
    found = []
    once = service.get("restart") == "no"
    if not once and service.get("restart") != "unless-stopped":
        found.append("nobody starts it again")
    if once != bool(service.get("healthcheck", {}).get("disable")) or "healthcheck" not in service:
        found.append("what goes on has a health check, and what is done once has none")
    if service.get("cap_drop") != ["ALL"] or service.get("privileged") or "cap_add" in service:
        found.append("it may do what it need not")
    if service.get("security_opt") != ["no-new-privileges:true"] or str(service.get("user", "")).startswith(("root", "0")):
        found.append("it may become root")
    if "mem_limit" not in service or "pids_limit" not in service:
        found.append("it may take all of the memory, or all processes")
    if service.get("logging", {}).get("options", {}).get("max-size") is None:
        found.append("what it says is kept without a bound")
    environment = service.get("environment", {})
    found += [f"{name} is a secret in the environment" for name in environment if SECRET.search(name) and "FILE" not in name]
    for port in service.get("ports", ()):
        if not port.startswith("127.0.0.1:"):
            found.append(f"the port {port} is open to others by default")
    for other, how in service.get("depends_on", {}).items():
        ends = services[other].get("restart") == "no"
        if how["condition"] != ("service_completed_successfully" if ends else "service_healthy"):
            found.append(f"it waits for {other} in a way that never comes, or comes too early")
    if service["image"].startswith("muster:"):
        found += _command(service)
    return found


def _command(service: dict[str, Any]) -> list[str]:
    """What is wrong with how Muster is called."""
    if "entrypoint" in service:
        program, *words = service["entrypoint"]
        script = ROOT / "infra" / "compose" / "inside" / f"{program}.py"
        known = script.is_file() and all(f'case ["{word}"]' in script.read_text() for word in words)
        return [] if known else [f"{' '.join(service['entrypoint'])} is nothing that can be prepared"]
    try:
        parsed(list(service["command"]), service.get("environment", {}))
    except Exception as error:
        return [f"muster {' '.join(service['command'])}: {error}"]
    return []


def parsed(words: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """What the command line makes of these words, without doing it. Raises what the command line raises."""
    command: Any = typer.main.get_command(app)
    context = None
    while words and hasattr(command, "get_command"):
        inner = command.get_command(context or command.make_context("muster", ["version"]), words[0])
        if inner is None:
            break
        command, words = inner, words[1:]
    if words and hasattr(command, "get_command") and not words[0].startswith("-"):
        raise ValueError(f"No such command: {words[0]}")
    # What a variable says is an option that need not stand there.
    told = [word for one in command.params for word in _told(one, environment)]
    found: dict[str, Any] = command.make_context(command.name, [*told, *words]).params
    return found


def _told(one: Any, environment: dict[str, str]) -> list[str]:
    names = [one.envvar] if isinstance(one.envvar, str) else list(one.envvar or ())
    return next(([one.opts[0], environment[name]] for name in names if name in environment), [])
