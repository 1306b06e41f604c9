"""Rewrites `events/schema`, or the folder that is named."""

import sys
from pathlib import Path

from muster.events.schema import FOLDER, write

write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
