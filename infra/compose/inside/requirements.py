#!/usr/bin/env python3
"""Print what Muster needs, and nothing of Muster itself, as pip's requirements: `requirements.py pyproject.toml EXTRA[,EXTRA]`.

So that an image has what rarely changes in a layer of its own. Only the standard library is used.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any


def needs(project: dict[str, Any], extras: list[str]) -> list[str]:
    """The requirements of the project with these extras; an extra that names the project's own extras brings theirs."""
    own = re.compile(re.escape(project["name"]) + r"\[([^\]]*)\]")
    found: dict[str, None] = dict.fromkeys(project["dependencies"])
    seen: set[str] = set()
    while extras:
        extra, *extras = extras
        if extra in seen:
            continue
        seen.add(extra)
        if extra not in project["optional-dependencies"]:
            known = ", ".join(project["optional-dependencies"])
            raise SystemExit(f"requirements: there is no extra {extra!r}; there are {known}")
        for requirement in project["optional-dependencies"][extra]:
            if inner := own.fullmatch(requirement):
                extras = [*extras, *(name.strip() for name in inner[1].split(","))]
            else:
                found[requirement] = None
    return list(found)


if __name__ == "__main__":
    told = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
    print("\n".join(needs(told, sys.argv[2].split(","))))
