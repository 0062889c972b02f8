"""What the machine that a process runs on tells of itself. Linux tells most; elsewhere less is known."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path


def identity() -> str:
    """What tells hosts apart: the kernel's start, and the name, as one kernel may have several."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {socket.gethostname()}"


def address(host: str) -> str:
    """The first address of a host, which is the one that gloo takes; "" where it has none."""
    with suppress(OSError, UnicodeError):
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    return ""


def load() -> float:
    """How many threads have run or waited to, on average over the last minute; 0 if not known."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return 0.0


def memory() -> tuple[int, int]:
    """Bytes of memory, in all and available; 0 if not known."""
    with suppress(OSError, ValueError, LookupError):
        rows = (row.split() for row in Path("/proc/meminfo").read_text().splitlines()[:3])
        sizes = {row[0]: int(row[1]) * 1024 for row in rows}
        return sizes["MemTotal:"], sizes["MemAvailable:"]
    return 0, 0
