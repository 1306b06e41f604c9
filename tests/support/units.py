"""The systemd units of `infra/systemd`, read as far as tests need: which program each starts, with what environment."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "infra/systemd"
PROGRAM = "/opt/muster/bin/muster"


class Unit:
    """One unit file."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.text = path.read_text()
        self.settings: dict[str, list[str]] = {}
        """All values of each name, in their order, whatever their section."""
        for line in self.text.splitlines():
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                self.settings.setdefault(name, []).append(value)

    @property
    def files(self) -> dict[str, bool]:
        """The files of its environment, and whether each must be there."""
        return {value.lstrip("-"): not value.startswith("-") for value in self.settings.get("EnvironmentFile", [])}

    @property
    def credentials(self) -> dict[str, str]:
        """The names of its credentials, and the files that they come from."""
        return dict(value.split(":", 1) for value in self.settings.get("LoadCredential", []))

    @property
    def defaults(self) -> dict[str, str]:
        """What stands in the unit itself of its environment."""
        words = [word for value in self.settings.get("Environment", []) for word in shlex.split(value)]
        return dict(word.split("=", 1) for word in words)

    def environment(self, files: Mapping[str, str]) -> dict[str, str]:
        """Its environment, where its files hold these texts; what they say counts more than the unit."""
        found = self.defaults
        for path in self.files:
            for line in files.get(path, "").splitlines():
                name, equals, value = line.partition("=")
                if equals and not line.startswith("#"):
                    found[name.strip()] = value.strip()
        return found

    def command(self, environment: Mapping[str, str], specifiers: Mapping[str, str]) -> list[str]:
        """The words of its ExecStart: `${NAME}` is one word whatever it holds, `$NAME` as many as it has."""
        (line,) = self.settings["ExecStart"]
        for name, value in specifiers.items():
            line = line.replace(name, value)
        words: list[str] = []
        for word in line.split():
            if whole := re.fullmatch(r"\$(\w+)", word):
                words += shlex.split(environment.get(whole[1], ""))
            else:
                words.append(re.sub(r"\$\{(\w+)\}", lambda found: environment.get(found[1], ""), word))
        assert words[0] == PROGRAM
        return words[1:]


def units() -> list[Unit]:
    """All of them."""
    return [Unit(path) for path in sorted(FOLDER.glob("*.service"))]
