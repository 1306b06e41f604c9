"""Ids that say when they were made."""

import secrets
import time

_CODE = "0123456789abcdef"


def new_id() -> str:
    """A UUIDv7 of now (RFC 9562, 5.7): 48 bits of milliseconds, the version, 74 random bits."""
    number = (time.time_ns() // 1_000_000 & (1 << 48) - 1) << 80 | secrets.randbits(80)
    number = number & ~(0xF << 76) | 0x7 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def made_ms(id: str) -> int | None:
    """When a UUIDv7 was made, in milliseconds since 1970; None where the id is another."""
    digits = id.replace("-", "")
    if len(id) != 36 or len(digits) != 32 or id[14] != "7" or any(digit not in _CODE for digit in digits.lower()):
        return None
    return int(digits[:12], 16)
