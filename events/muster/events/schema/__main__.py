"""Rewrites `events/schema` and `events/asyncapi.json`, or the folder that is named, and `asyncapi.json` beside it."""

import sys
from pathlib import Path

from muster.events.schema import FOLDER, render, write
from muster.events.schema.asyncapi import document

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
write(folder)
(folder.parent / "asyncapi.json").write_text(render(document()), encoding="utf-8")
