"""Writes `docs/job-file.md` of the checkout that this is run in."""

import sys
from pathlib import Path

from muster.doors.reference import reference


def main(arguments: list[str]) -> int:
    """Write the page to the path given, or to docs/job-file.md."""
    path = Path(arguments[0] if arguments else "docs/job-file.md")
    path.write_text(reference(), encoding="utf-8")
    print(f"wrote {path}")
    return 0


sys.exit(main(sys.argv[1:]))
