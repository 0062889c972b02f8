"""Sizes, times and rates in words. Pure."""

from __future__ import annotations


def size(nbytes: float) -> str:
    """Bytes in a unit that suits them.

    >>> size(512), size(16 * 2**20), size(23.5 * 2**30)
    ('512 B', '16 MiB', '23.5 GiB')
    """
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if nbytes < 1024:
            break
        nbytes, unit = nbytes / 1024, larger
    return f"{nbytes:.3g} {unit}" if nbytes < 1000 else f"{nbytes:.0f} {unit}"


def duration(seconds: float) -> str:
    """Seconds in a unit that suits them.

    >>> duration(0.00042), duration(0.0512), duration(-3600.5)
    ('0.42 ms', '51.2 ms', '-3600 s')
    """
    if abs(seconds) >= 100:
        return f"{seconds:.0f} s"
    return f"{seconds:.3g} s" if abs(seconds) >= 1 else f"{seconds * 1000:.3g} ms"


def rate(gigabytes: float) -> str:
    """GB/s with three digits.

    >>> rate(1.2345), rate(0.00123)
    ('1.23 GB/s', '0.00123 GB/s')
    """
    return f"{gigabytes:.3g} GB/s"
