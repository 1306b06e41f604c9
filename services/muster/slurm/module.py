"""`module load ...`: scripts call it. Muster has no modules: it says so, and nothing changes."""

import sys


def main(arguments: list[str]) -> int:
    """Say that nothing is loaded. Succeeds: a script with `set -e` goes on."""
    command = arguments[0] if arguments else "help"
    names = " ".join(word for word in arguments[1:] if not word.startswith("-"))
    if command in ("load", "add", "try-load", "switch", "swap"):
        print(
            f"module: {names or 'nothing'} is not loaded: there are no modules here, programs come from the PATH", file=sys.stderr
        )
    elif command in ("list", "avail", "av", "spider"):
        print("module: there are no modules here", file=sys.stderr)
    return 0
