"""The entry point of `muster`, which says in one sentence what is missing where only a part of Muster is installed."""

import sys

USAGE = 2
"""As where a command makes no sense: `muster.cli.output`, which needs what may be missing here."""


def main() -> None:
    """Run a command."""
    try:
        from muster.cli.main import main as run
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not missing or missing.partition(".")[0] == "muster":
            raise
        print(
            f"muster: the commands need {missing}, which is not installed: pip install 'muster-scheduler[scheduler]' brings it",
            file=sys.stderr,
        )
        sys.exit(USAGE)
    run()
