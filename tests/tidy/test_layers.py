"""The contracts of import-linter in pyproject.toml hold, and each finds the imports that are planted for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "events": ("events", "log", "client"),
    "projections": (
        "cluster",
        "telemetry",
    ),
    "services": (
        "engine",
        "scheduler",
        "replay",
        "reading",
        "simulator",
        "verify",
        "doors",
        "slurm",
        "agent",
        "gateway",
        "up",
        "bench",
        "cli",
    ),
}
UPWARD = [
    ("events", "log"),
    ("log", "cluster"),
    ("log", "verify"),
    ("log", "client"),
    ("client", "cluster"),
    ("client", "engine"),
    ("cluster", "engine"),
    ("engine", "scheduler"),
    ("telemetry", "client"),
    ("telemetry", "engine"),
    ("scheduler", "replay"),
    ("replay", "simulator"),
    ("reading", "simulator"),
    ("simulator", "doors"),
    ("doors", "agent"),
    ("agent", "gateway"),
    ("gateway", "up"),
    ("up", "bench"),
    ("bench", "cli"),
    # The second contract: what lies below the core and yet is none of its business.
    ("cluster", "log"),
    ("cluster", "client"),
    ("engine", "log"),
    ("engine", "verify"),
    # The third: what the second judge may not lean on.
    ("verify", "log"),
    ("verify", "client"),
    ("verify", "cluster"),
    ("verify", "replay"),
]


def test_imports_only_go_down() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 kept, 0 broken" in result.stdout


def test_every_upward_import_is_found(tmp_path: Path) -> None:
    skeleton(tmp_path)
    assert "3 kept, 0 broken" in lint(tmp_path).stdout
    for importer, imported in UPWARD:
        (place(tmp_path, importer) / f"{imported}_planted.py").write_text(f"import muster.{imported}\n")
    result = lint(tmp_path)
    assert result.returncode == 1
    assert "0 kept, 3 broken" in result.stdout
    missed = [pair for pair in UPWARD if f"muster.{pair[0]}.{pair[1]}_planted -> muster.{pair[1]}" not in result.stdout]
    assert missed == []


def skeleton(folder: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", folder)
    for packages in PACKAGES.values():
        for package in packages:
            place(folder, package).mkdir(parents=True)
            (place(folder, package) / "__init__.py").touch()


def place(folder: Path, package: str) -> Path:
    return next(folder / source / "muster" / package for source, packages in PACKAGES.items() if package in packages)


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(folder / source) for source in PACKAGES)
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache"]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
