"""A catalogue of devices as a file: TOML, one `[[model]]` for each, with the fields of `DeviceModel` and a `source`.

The package has one of its own (`gpus.toml`), which is recorded where a cell has none. People and other schedulers write the
names of GPUs in many ways; `find_model` knows what is meant.
"""

import functools
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.events.base import MODELS_MAX
from muster.events.catalogue import DeviceModel
from muster.reading.toml import parse_toml
from muster.reading.values import Value

FILE: Final = Path(__file__).with_name("gpus.toml")
GB_MIB: Final = 953
"""The MiB of 10^9 bytes, less than one: a board that is sold with so many GB reports at least that."""
_CAPABILITY: Final = re.compile(r"([0-9]{1,2})(?:\.([0-9]))?")
PROFILE: Final = re.compile(r"[1-7]g\.[1-9][0-9]{0,3}gb(\+[a-z.]{1,16})?")
_SLICE: Final = re.compile(r"((?:.{0,64}[_-])?)([1-7]g\.[1-9][0-9]{0,3}gb(?:\+[a-z.]{1,16})?)")
_BANDWIDTH: Final = re.compile(r"([0-9]{1,7})(?:\.([0-9]{1,3}))? *(GB/s|TB/s|GB|TB)?", re.IGNORECASE)
_NOISE: Final = re.compile(
    r"nvidia|tesla|geforce|quadro|graphics|generation|gpu|sxm[0-9]*|hbm[0-9a-z]*|pg[0-9]+|shared|[0-9]+gb|nvl"
)
_SIZE: Final = re.compile(r"([0-9]+)gb")


def read_catalogue(text: str, file: str) -> tuple[DeviceModel, ...]:
    """The models of a file.

    Raises:
        FileError: something makes no sense; names the key.
    """
    document = parse_toml(text, file)
    tables = document.known("a catalogue", ["model"])
    items = tables["model"].items("models") if "model" in tables else []
    if not 1 <= len(items) <= MODELS_MAX:
        raise document.error(f"must have 1 to {MODELS_MAX} tables [[model]], not {len(items)}")
    found = [_model(item) for item in items]
    seen: dict[tuple[str, int], None] = {}
    for item, model in zip(items, found, strict=True):
        if (model.model, model.memory_mib) in seen:
            raise item.error(f"stands twice: {model.model} with {model.memory_mib} MiB")
        seen[model.model, model.memory_mib] = None
    return tuple(found)


@functools.cache
def package_catalogue() -> tuple[DeviceModel, ...]:
    """The catalogue that comes with Muster."""
    return read_catalogue(FILE.read_text(encoding="utf-8"), FILE.name)


def read_capability(value: Value) -> int:
    """`9.0`, `"9.0"` or `9`: in tenths."""
    match = _CAPABILITY.fullmatch(value.scalar_text())
    found = int(match[1]) * 10 + int(match[2] or 0) if match else 0
    if not 10 <= found <= 999:
        raise value.error(f"must be a compute capability such as 8.0 or 9.0, not {value.said()}")
    return found


def write_capability(tenths: int) -> str:
    """As it is read."""
    return f"{tenths // 10}.{tenths % 10}"


def read_bandwidth(value: Value) -> int:
    """GB/s, or with its unit: `2000`, `2000GB/s`, `3.35TB/s`."""
    match = _BANDWIDTH.fullmatch(value.scalar_text())
    found = (
        Decimal(f"{match[1]}.{match[2] or 0}") * (1000 if (match[3] or "").upper().startswith("T") else 1)
        if match
        else Decimal(0)
    )
    if found != int(found) or not 1 <= found <= 1_000_000:
        raise value.error(f"must be a memory bandwidth in whole GB/s such as 2000, 2000GB/s or 3.35TB/s, not {value.said()}")
    return int(found)


def read_profile(value: Value) -> str:
    """A profile of slices (MIG): `3g.40gb`."""
    text = value.string()
    if not PROFILE.fullmatch(text):
        raise value.error(f"must be a profile of slices such as 3g.40gb, not {value.said()}")
    return text


def find_slice(text: str) -> tuple[str, str]:
    """What is left of a name such as `nvidia_a100_3g.20gb` without its profile, and the profile; empty where there is none."""
    match = _SLICE.fullmatch(text)
    return (match[1].rstrip("_-"), match[2]) if match else (text, "")


def find_model(text: str) -> tuple[str, int] | None:
    """The model that a name means, `tesla_v100` or `NVIDIA-A100-SXM4-80GB`, and the least MiB where it names a size."""
    words = [word for word in re.split(r"[^a-z0-9]+", text.lower()[:128]) if word]
    plain = "".join(word for word in words if not _NOISE.fullmatch(word))
    found = _names().get(plain) or _names().get(plain.removesuffix("pcie"))
    if found is None:
        return None
    size = next((int(match[1]) for word in words if (match := _SIZE.fullmatch(word))), 0)
    return found, size * GB_MIB


@functools.cache
def _names() -> dict[str, str]:
    found: dict[str, str] = {}
    for each in package_catalogue():
        for name in (each.model, *each.names, each.model.removeprefix("RTX").removeprefix("GTX")):
            plain = re.sub(r"[^a-z0-9]", "", name.lower())
            if not plain.isdecimal() or name in each.names:
                found.setdefault(plain, each.model)
    return found


def _model(item: Value) -> DeviceModel:
    known = [field.name for field in msgspec.structs.fields(DeviceModel)]
    fields = item.known("a model", [*known, "source"])
    for key in ("model", "capability", "bandwidth_gbs"):
        if key not in fields:
            raise item.error(f"needs a {key}")
    said: dict[str, Any] = {key: value.plain() for key, value in fields.items() if key != "source"}
    try:
        return msgspec.convert(said, DeviceModel)
    except msgspec.ValidationError as error:
        raise item.error(f"makes no sense: {error}") from None
