#!/usr/bin/env python3
"""What has to be there before the programs of a compose stack start. Each part does only what is missing, so it may run any time.

    prepare secrets     tokens and keys of the gateways, the agents' token, passwords of the database and of Grafana, and examples
    prepare queues      the queues that MUSTER_QUEUES names, with commas between, beside those that there are

Secrets are made here, in volumes, so that none stands in a file that people copy, in an environment, or in a list of processes.
Nobody has the operator's rights that `queues` needs: it makes a token for itself and takes it away when it is done.
"""

import json
import os
import secrets
import shutil
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import muster.simulator.demo
from muster.gateway.job_tokens import Secrets
from muster.gateway.tokens import Tokens

KEYS = Path("/var/lib/muster-keys")
AGENT = Path("/var/lib/muster-agent")
DATABASE = Path("/var/lib/muster-database")
GRAFANA = Path("/var/lib/muster-grafana")
WORK = Path("/work")
PATIENCE_S = 60


def make_secrets() -> None:
    """Everything that a program is told by a file."""
    Secrets(KEYS)
    tokens = Tokens(KEYS)
    agent = AGENT / "token"
    known = agent.read_text() if agent.exists() else ""
    if tokens.find(known.strip()) is None:
        _, secret = tokens.create("agent", name="agents of the compose stack")
        _write(agent, secret, 0o400)
    password = DATABASE / "password"
    for path in (password, GRAFANA / "password"):
        if not path.exists():
            # Database and Grafana run as other users; nothing but they, and the history, see these volumes.
            _write(path, secrets.token_urlsafe(32), 0o444)
    place = "{POSTGRES_USER}:{}@{POSTGRES_HOST}:{POSTGRES_PORT}/{POSTGRES_DB}".format(password.read_text().strip(), **os.environ)
    _write(DATABASE / "dsn", f"postgresql://{place}", 0o400)
    for path in Path(muster.simulator.demo.__file__).with_name("workload").iterdir():
        if path.is_file() and not path.name.startswith("__") and not (WORK / path.name).exists():
            shutil.copy(path, WORK)


def name_queues() -> None:
    """Add what is missing to the policy, by the gateway."""
    wanted = [name.strip() for name in os.environ.get("MUSTER_QUEUES", "").split(",") if name.strip()]
    tokens = Tokens(KEYS)
    token, secret = tokens.create("operate", name="prepare queues")
    try:
        policy = _ask("GET", "/v1/state", secret)["policy"]
        missing = [name for name in wanted if name not in policy["queues"]]
        if missing:
            _ask("PUT", "/v1/policy", secret, policy | {"queues": [*policy["queues"], *missing]})
            print(f"added the queues {', '.join(missing)}")
    finally:
        tokens.revoke(token.id)


def _ask(method: str, path: str, token: str, body: Any = None) -> Any:
    """What the gateway answers; it is asked again while it does not know the token yet, or is not there."""
    url = os.environ["MUSTER_GATEWAY"] + path
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body is not None else None
    end = time.monotonic() + PATIENCE_S
    while True:
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code not in (401, 503) or time.monotonic() > end:
                raise SystemExit(f"prepare: {method} {path} answers {error.code}: {error.read().decode()}") from None
        except OSError as error:
            if time.monotonic() > end:
                raise SystemExit(f"prepare: {url} does not answer: {error}") from None
        time.sleep(0.5)


def _write(path: Path, text: str, mode: int) -> None:
    """Whole or not at all, and never readable by others even for a moment."""
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")
        os.fsync(file.fileno())
    partial.chmod(mode)
    partial.replace(path)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["secrets"]:
            make_secrets()
        case ["queues"]:
            name_queues()
        case _:
            raise SystemExit("prepare: what is to be prepared? secrets or queues would be right")
