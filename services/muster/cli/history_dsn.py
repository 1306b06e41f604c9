"""Where PostgreSQL is, as a person says it: by an option, a file, or the environment. No password is taken from a command line,
where `ps` shows it to everybody, and none is ever printed.
"""

import importlib.util
import os
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

import typer

from muster.cli.output import UNREADABLE, USAGE, Failure

DSN = "MUSTER_HISTORY_DSN"
DSN_FILE = "MUSTER_HISTORY_DSN_FILE"
EXAMPLE = "postgresql://USER@HOST:5432/DATABASE"
HOW = f"{DSN}, the file that {DSN_FILE} names, PGPASSWORD and ~/.pgpass may have it"

Dsn = Annotated[
    str,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help=f"Where PostgreSQL is, without a password; else {DSN}, or the file that {DSN_FILE} names.",
        show_default=False,
        rich_help_panel="PostgreSQL",
    ),
]


def find_dsn(told: str) -> str:
    """The DSN of the history; empty where nobody says one.

    Raises:
        Failure: it is none, it has a password and stands on the command line, or its file cannot be read.
    """
    if told:
        need_driver()
        _check(told, "--dsn")
        if _has_password(told):
            raise Failure(f"--dsn has a password, which `ps` shows to everybody: {HOW}", USAGE)
        return told
    if given := os.environ.get(DSN, "").strip():
        need_driver()
        _check(given, DSN)
        return given
    named = os.environ.get(DSN_FILE, "")
    if not named:
        return ""
    need_driver()
    try:
        read = Path(named).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Failure(f"the DSN cannot be read from {named}: {why}", UNREADABLE) from None
    _check(read, f"the file {named}")
    return read


def need_dsn(told: str) -> str:
    """The DSN of the history.

    Raises:
        Failure: as `find_dsn`, or nobody says one.
    """
    found = find_dsn(told)
    if not found:
        raise Failure(f"which PostgreSQL? --dsn, {DSN} or {DSN_FILE} says where it is: {EXAMPLE}")
    return found


def need_driver() -> None:
    """See that PostgreSQL can be spoken to.

    Raises:
        Failure: a part of Muster is not installed.
    """
    if importlib.util.find_spec("asyncpg") is None:
        raise Failure("what speaks to PostgreSQL is not installed: pip install 'muster-scheduler[history]' brings it")


def place(dsn: str) -> str:
    """Which database a DSN names, without who and with what password."""
    try:
        parts = urlsplit(dsn)
        query = dict(parse_qsl(parts.query))
        host = parts.hostname or query.get("host") or os.environ.get("PGHOST") or "localhost"
        port = parts.port or query.get("port") or os.environ.get("PGPORT") or 5432
    except ValueError:
        return "PostgreSQL"
    return f"{host}:{port}{parts.path}"


def _check(dsn: str, source: str) -> None:
    """A DSN in which something is wrong is not repeated: what is wrong may be that its password was not quoted."""
    try:
        parts = urlsplit(dsn)
        good = parts.scheme in ("postgresql", "postgres") and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise Failure(f"{source} is no DSN such as {EXAMPLE}; what is neither letter nor digit in a password is written as %XX")


def _has_password(dsn: str) -> bool:
    parts = urlsplit(dsn)
    return parts.password is not None or any(name == "password" for name, _ in parse_qsl(parts.query, keep_blank_values=True))
