"""The images that the stack needs: those that are there, else those that a registry has, else stand-ins that we build.

A stand-in has the name of the image in whose place it is, and a label with what it was made of: it is built again when that
changes. It is Debian's own software, started from the same variables as the official image, and trusts whom this machine trusts.
"""

import contextlib
import functools
import hashlib
import inspect
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from engine import CACHE, Engine, Say, Trouble, install, run

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
COMPOSE = ROOT / "infra" / "compose.yaml"
LABEL = "muster.stand-in"
OURS = "muster:compose-test"
BASE = "muster-stand-in-base"
SUITE = "bookworm"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
LOCAL_CERTIFICATES = Path("/usr/local/share/ca-certificates")
PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "retries", "timeout")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
PULL_S = 600


class Made(NamedTuple):
    """What stands where an image is named."""

    name: str
    stands_in: str
    """Which of the folders in `standin` makes it; empty where nothing can."""


VARIABLES = {
    "MUSTER_BASE_IMAGE": "python",
    "MUSTER_POSTGRES_IMAGE": "postgres",
    "MUSTER_KAFKA_IMAGE": "kafka",
    "MUSTER_PROMETHEUS_IMAGE": "prometheus",
    "MUSTER_GRAFANA_IMAGE": "",
}


def named() -> dict[str, Made]:
    """The image of each variable of compose.yaml: as the environment says it, else the default."""
    defaults = dict(re.findall(r"\$\{(MUSTER_\w+_IMAGE):-([^}]+)\}", COMPOSE.read_text()))
    return {name: Made(os.environ.get(name) or defaults[name], VARIABLES[name]) for name in VARIABLES if name in defaults}


def bring(engine: Engine, say: Say) -> set[str]:
    """Have all images; the variables of those that cannot be had.

    Raises:
        Trouble: one that is needed cannot be had.
    """
    missing: set[str] = set()
    answers = True
    for variable, made in named().items():
        if _is_there(engine, made):
            continue
        if answers:
            try:
                engine.docker("pull", "--quiet", made.name, within_s=PULL_S)
                say(f"pulled {made.name}")
                continue
            except Trouble as trouble:
                answers = False
                say(f"no registry has {made.name}: {str(trouble).strip().splitlines()[-1]}")
        if made.stands_in and engine.own:
            stand_in(engine, made, say)
        elif made.stands_in:
            raise Trouble(f"{made.name} is not here and cannot be pulled; stand-ins are built in an engine of our own only")
        else:
            missing.add(variable)
    return missing


def build(engine: Engine) -> None:
    """Muster's own image, from the Dockerfile. Layers of what did not change are taken from the cache."""
    before = engine.docker("images", "--quiet", "--no-trunc", OURS).strip()
    proxies = [word for name in PROXIES if name in os.environ for word in ("--build-arg", name)]
    base = named()["MUSTER_BASE_IMAGE"].name
    file = ROOT / "infra" / "Dockerfile"
    words: list[str | Path] = ["--build-arg", f"BASE={base}", *proxies, "--tag", OURS, "--file", file, ROOT]
    engine.docker("build", *words, within_s=900, both=True)
    after = engine.docker("images", "--quiet", "--no-trunc", OURS).strip()
    if before and before != after:
        with contextlib.suppress(Trouble):
            engine.docker("image", "rm", before)


def stand_in(engine: Engine, made: Made, say: Say) -> None:
    """Build what stands in for this image."""
    _base(engine, say)
    say(f"builds a stand-in for {made.name}")
    folder = HERE / "standin" / made.stands_in
    with tempfile.TemporaryDirectory(prefix="build-", dir=CACHE) as name:
        context = Path(name) / "context"
        shutil.copytree(folder, context)
        if made.stands_in == "kafka":
            broker = ROOT / "infra" / "kafka" / "broker"
            run([broker, "jars"], within_s=600)
            shutil.copytree(Path(os.environ.get("MUSTER_KAFKA_JARS", ROOT / "build/kafka/jars")), context / "jars")
        words = ["--build-arg", f"BASE={BASE}", "--label", f"{LABEL}={_recipe(made.stands_in)}", "--tag", made.name]
        engine.docker("build", *words, context, within_s=900, both=True)


def _is_there(engine: Engine, made: Made) -> bool:
    """Whether the image is here, and is no stand-in that is made of something else by now."""
    with contextlib.suppress(Trouble):
        format = f'{{{{index .Config.Labels "{LABEL}"}}}}'
        label = engine.docker("image", "inspect", "--format", format, made.name).strip()
        return label in ("", "<no value>") or label == _recipe(made.stands_in)
    return False


def _base(engine: Engine, say: Say) -> None:
    """A small Debian that trusts whom this machine trusts, and goes where this machine goes for packages."""
    recipe = _base_recipe()
    if engine.has("image", "inspect", f"{BASE}:{recipe}"):
        return
    install(["debootstrap"] if not shutil.which("debootstrap") else [], say)
    mirror = _mirror()
    say(f"lays out a small Debian from {mirror}")
    with tempfile.TemporaryDirectory(prefix="base-", dir=CACHE) as name:
        root = Path(name) / "root"
        run(["debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE, root, mirror], within_s=600, both=True)
        for package in (root / "var/cache/apt/archives").glob("*.deb"):
            package.unlink()
        shutil.rmtree(root / "var/lib/apt/lists")
        if LOCAL_CERTIFICATES.is_dir():
            shutil.copytree(LOCAL_CERTIFICATES, root / str(LOCAL_CERTIFICATES).lstrip("/"), dirs_exist_ok=True)
        shutil.copy(CERTIFICATES, root / str(CERTIFICATES).lstrip("/"))
        for path, text in _apt_settings().items():
            (root / path).write_text(text)
        (root / "etc/pip.conf").write_text(_pip_settings())
        with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as archive:
            engine.docker("import", "-", f"{BASE}:{recipe}", within_s=300, stdin=archive.stdout)
    engine.docker("tag", f"{BASE}:{recipe}", f"{BASE}:latest")


@functools.cache
def _mirror() -> str:
    """Where this machine gets Debian from."""
    wanted = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages"]
    with contextlib.suppress(Trouble):
        for line in run(wanted).splitlines():
            mirror, suite, component = line.split()
            if (suite, component) == (SUITE, "main"):
                return mirror.rstrip("/")
    return "http://deb.debian.org/debian"


def _apt_settings() -> dict[str, str]:
    """This machine's settings of how packages are fetched, by file."""
    files = [Path("/etc/apt/apt.conf"), *sorted(Path("/etc/apt/apt.conf.d").glob("*"))]
    texts = {str(path).lstrip("/"): path.read_text() for path in files if path.is_file()}
    return {path: text for path, text in texts.items() if "Acquire::" in text and "DPkg::" not in text and "APT::" not in text}


def _pip_settings() -> str:
    """Where this machine gets Python's packages from; and the certificates, which lie where they lie here."""
    said = {"cert": str(CERTIFICATES)}
    with contextlib.suppress(Trouble):
        for line in run(["python3", "-m", "pip", "config", "list"]).splitlines():
            key, _, value = line.partition("=")
            if (name := key.rpartition(".")[2]) in PIP_KEYS:
                said[name] = value.strip("'\"").replace("\\n", " ")
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in sorted(said.items()))


@functools.cache
def _base_recipe() -> str:
    parts = [
        SUITE,
        _mirror(),
        CERTIFICATES.read_text(),
        _pip_settings(),
        *(f"{k}{v}" for k, v in sorted(_apt_settings().items())),
    ]
    return _digest([HOW, *parts])


def _recipe(stands_in: str) -> str:
    """A digest of all that a stand-in is made of."""
    files = [path.read_text() for path in sorted((HERE / "standin" / stands_in).iterdir())]
    jars = [(ROOT / "infra/kafka/pom.xml").read_text()] if stands_in == "kafka" else []
    return _digest([_base_recipe(), *files, *jars])


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


HOW = inspect.getsource(_base)
"""How the small Debian is laid out: read now, since the file may be changed while this runs."""
