"""What a process takes of memory, by the kernel's account."""

from pathlib import Path

MIB = 2**20


def resident(field: str = "VmRSS") -> int:
    """Bytes: `VmRSS` now, `VmHWM` at most since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise LookupError(field)
