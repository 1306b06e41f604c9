"""Job files as text: YAML that YAML 1.1 and 1.2 read alike, or JSON."""

import json
import re
from collections.abc import Sequence
from typing import Any

import yaml

_BARE = re.compile(r"[A-Za-z/_][A-Za-z0-9_./@+-]*")
_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


class _Dumper(yaml.SafeDumper):
    """Texts that could be read as something else stand in quotes; scripts stand as they are."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if "\n" in text and not re.search(r"[^\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff]| \n|^[ \n]", text):
        style: str | None = "|"
    elif _BARE.fullmatch(text) and text.lower() not in _WORDS:
        style = None
    else:
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(documents: Sequence[dict[str, Any]]) -> str:
    """The jobs as one YAML file."""
    text: str = yaml.dump_all(
        documents,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=1_000_000,
        explicit_start=len(documents) > 1,
    )
    return text


def as_json(documents: Sequence[dict[str, Any]]) -> str:
    """The jobs as one JSON file: a list."""
    return json.dumps(list(documents), ensure_ascii=False, indent=2) + "\n"
