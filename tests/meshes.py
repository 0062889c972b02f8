"""The kinds of mesh and spec that conversions are tested on: 4 processes of 2 devices.

Devices are told by (process, number within the process), never by their place in `jax.devices()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Kind:
    """`devices[coordinate]` is 2 * process + number of the device within its process."""

    names: tuple[str, ...]
    devices: np.ndarray

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        return tuple(zip(self.names, self.devices.shape, strict=True))

    @property
    def owners(self) -> np.ndarray:
        return self.devices // 2

    def mesh(self, devices: list[Any] | None = None) -> Any:
        """The mesh of real devices, from `jax.devices()` in whatever order that lists them."""
        import jax

        mine: dict[int, list[Any]] = {}
        listed = jax.devices() if devices is None else devices
        for device in sorted(listed, key=lambda device: device.id):
            mine.setdefault(device.process_index, []).append(device)
        chosen = np.empty(self.devices.shape, object)
        for at, number in np.ndenumerate(self.devices):
            chosen[at] = mine[number // 2][number % 2]
        return jax.sharding.Mesh(chosen, self.names)


def _kind(names: str, devices: Any) -> Kind:
    return Kind(tuple(names), np.array(devices))


KINDS = {
    # Each process a contiguous subcube: what JAX's own functions take.
    "block": _kind("xy", np.arange(8).reshape(4, 2)),
    # Devices dealt out to processes in turn.
    "interleaved": _kind("xy", [[0, 2], [4, 6], [1, 3], [5, 7]]),
    "flat": _kind("x", np.arange(8)),
    "permuted": _kind("xy", [[5, 0], [3, 6], [2, 1], [7, 4]]),
    "cube permuted": _kind("xyz", [[[6, 1], [3, 0]], [[4, 7], [2, 5]]]),
    # No process holds the full product of its chunk numbers.
    "diagonal": _kind("xy", [[0, 2, 4, 6], [7, 1, 3, 5]]),
    # Every second column: full products, but no subcubes.
    "strided": _kind("xy", [[0, 2, 1, 3], [4, 6, 5, 7]]),
}

Spec = tuple[str | tuple[str, ...] | None, ...]

# Eight for each number of mesh axes, for arrays of three dimensions.
SPECS: dict[int, tuple[Spec, ...]] = {
    1: (
        (),
        ("x",),
        (None, "x"),
        (None, None, "x"),
        ("x", None, None),
        ((), "x"),
        (("x",), None),
        (None, ("x",), ()),
    ),
    2: (
        (),
        ("x",),
        ("y", None, "x"),
        ("x", "y"),
        (None, "y"),
        (("x", "y"),),
        (None, ("y", "x")),
        ("y", "x", None),
    ),
    3: (
        (),
        ("z",),
        ("x", "y", "z"),
        ("z", "x"),
        (("x", "z"), "y"),
        (None, ("z", "x")),
        ("y", None, ("x", "z")),
        (("z", "y", "x"),),
    ),
}


def specs(kind: Kind) -> tuple[Spec, ...]:
    """The eight specs that go with a kind of mesh."""
    return SPECS[len(kind.names)]
