"""The port at which the first task of a gang listens, chosen by its agent."""

import hashlib
import socket
from typing import Final

PORTS: Final = range(20_000, 32_000)
"""Below the ports that kernels hand out by themselves."""


def free_port(name: str, taken: set[int]) -> int:
    """For the task of this name: a port that nobody listens on and no other task of the node was given; 0 where there is none."""
    first = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest())
    for step in range(len(PORTS)):
        port = PORTS[(first + step) % len(PORTS)]
        if port in taken:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
    return 0
