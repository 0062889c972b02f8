"""What every device must hold, by brute force: DESIGN.md's definitions, element by element.

Written apart from the planner, and kept so: it imports nothing of hostmesh. A layout is a mesh
(axes with sizes, and the process of each device) and, for each dimension of the array, the mesh
axes that cut it. A shard is found by cutting the array itself in halves, thirds and so on, one mesh
axis after another; chunk numbers by cutting the array of all chunk numbers in the same way.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from meshes import KINDS, Kind, Spec, specs

if TYPE_CHECKING:
    from collections.abc import Iterator

Coordinate = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """`axes`: (name, size), major first; `owners`: processes in the mesh's shape; `cuts`: axis
    names for each dimension."""

    axes: tuple[tuple[str, int], ...]
    owners: np.ndarray
    cuts: tuple[tuple[str, ...], ...]

    @property
    def rank(self) -> int:
        return len(self.cuts)

    @property
    def counts(self) -> tuple[int, ...]:
        """n_i: the product of the sizes of the axes that cut dimension i."""
        counts = []
        for cut in self.cuts:
            n = 1
            for name in cut:
                n *= dict(self.axes)[name]
            counts.append(n)
        return tuple(counts)

    def devices(self, process: int | None = None) -> list[tuple[int, Coordinate]]:
        """(position, coordinate) of all devices, or of one process's, row-major."""
        everywhere = enumerate(itertools.product(*(range(size) for _, size in self.axes)))
        return [(i, at) for i, at in everywhere if process is None or self.owners[at] == process]

    @property
    def processes(self) -> list[int]:
        return sorted({int(self.owners[at]) for _, at in self.devices()})

    def piece(self, value: np.ndarray, at: Coordinate) -> np.ndarray:
        """The part of a global value that the device at a mesh coordinate holds."""
        for dimension, cut in enumerate(self.cuts):
            for name in cut:
                (place,) = (i for i, axis in enumerate(self.axes) if axis[0] == name)
                parts = np.split(value, self.axes[place][1], axis=dimension)
                value = parts[at[place]]
        return value

    def chunk(self, at: Coordinate) -> tuple[int, ...]:
        """The chunk number along each dimension on the device at a mesh coordinate."""
        return self._chunks[at]

    @functools.cached_property
    def _chunks(self) -> dict[Coordinate, tuple[int, ...]]:
        numbers = np.indices(self.counts).reshape(self.rank, *self.counts)
        return {
            at: tuple(int(self.piece(numbers[i], at).item()) for i in range(self.rank))
            for _, at in self.devices()
        }

    def chunks(self, process: int) -> list[tuple[int, ...]]:
        return sorted({self.chunk(at) for _, at in self.devices(process)})

    def held(self, process: int) -> list[list[int]]:
        """C_i: the chunk numbers along each dimension over the process's own devices."""
        chunks = self.chunks(process)
        return [sorted({chunk[i] for chunk in chunks}) for i in range(self.rank)]

    def product(self, process: int) -> list[tuple[int, ...]]:
        """C_1 x C_2 x ...: the chunks of the process's host-local value."""
        return sorted(itertools.product(*self.held(process)))

    def is_full_product(self, process: int) -> bool:
        """Whether a process's devices hold all of its host-local value."""
        return self.product(process) == self.chunks(process)

    def replica_group(self, chunk: tuple[int, ...]) -> list[int]:
        return sorted({int(self.owners[at]) for _, at in self.devices() if self.chunk(at) == chunk})

    def is_subcube(self, process: int) -> bool:
        """Whether a box around the process's devices holds no device of another: JAX's demand."""
        at = [coordinate for _, coordinate in self.devices(process)]
        if not at:
            return False
        box = tuple(slice(min(column), max(column) + 1) for column in zip(*at, strict=True))
        return bool((self.owners[box] == process).all())

    def local(
        self, value: np.ndarray, process: int, whole: tuple[int, ...] | set[int] = ()
    ) -> np.ndarray:
        """The host-local value of a process: its chunks side by side along each dimension.

        Dimensions in `whole` are left as they are.
        """
        for i, numbers in enumerate(self.held(process)):
            if i in whole:
                continue
            parts = np.split(value, self.counts[i], axis=i)
            value = np.concatenate([parts[number] for number in numbers], axis=i)
        return value

    def covered(self, shape: tuple[int, ...], process: int) -> np.ndarray:
        """For each element of a global shape, whether the process holds a device with it."""
        seen = np.zeros(shape, bool)
        for _, at in self.devices(process):
            self.piece(seen, at)[...] = True
        return seen


def assert_shards(array: jax.Array, mesh: jax.sharding.Mesh, layout: Layout, value: Any) -> None:
    """Every shard on this process is, bit for bit, the piece of `value` at its device's place."""
    place = {device: at for at, device in np.ndenumerate(mesh.devices)}
    mine = [d for d in mesh.devices.flat if d.process_index == jax.process_index()]
    assert array.shape == value.shape
    assert {shard.device for shard in array.addressable_shards} == set(mine)
    for shard in array.addressable_shards:
        piece = layout.piece(value, place[shard.device])
        assert_bits_equal(shard.data, piece, (shard.device, layout))
        assert value[shard.index].tobytes() == piece.tobytes(), "not JAX's own index"


def ids(shape: tuple[int, ...]) -> np.ndarray:
    """A global value that tells every element from every other."""
    return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)


def noise(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    """Random bits of a dtype: for floats all kinds of NaN, infinities and both zeros among them."""
    rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
    size = int(np.prod(shape))
    bits = {"float4": 4, "float6": 6}.get(dtype.name.partition("_")[0])
    if dtype.name in ("bool", "int1", "int2", "int4", "uint1", "uint2", "uint4"):
        values = rng.integers(-8, 8, size).astype(np.int8).astype(dtype)
    elif bits:
        values = rng.integers(0, 1 << bits, size).astype(np.uint8).view(dtype)
    else:
        values = np.frombuffer(rng.bytes(size * dtype.itemsize), dtype).copy()
        if size and dtype.kind in "fc":
            values[0], values[-1] = np.nan, -0.0
    return values.reshape(shape)


def keys(count: int) -> jax.Array:
    """PRNG keys, made under any transfer guard: JAX's own making of them moves their seed."""
    with jax.transfer_guard("allow"):
        return jax.random.split(jax.random.key(0), count)


def assert_bits_equal(got: Any, expected: np.ndarray, what: object = "") -> None:
    """Same shape, dtype and bits: NaN payloads and the sign of zero count."""
    got = np.asarray(jax.device_get(got))
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    native = expected.dtype.newbyteorder("=")
    assert got.dtype == native, f"{what}: dtype {got.dtype}, expected {native}"
    same = got.tobytes() == expected.astype(native).tobytes()
    assert same, f"{what}: got\n{got}\nexpected\n{expected}"


def layouts(rank: int = 3) -> Iterator[tuple[str, Kind, Spec, Layout]]:
    """(name, kind, spec, layout) of every kind of mesh with every spec that goes with it."""
    for name, kind in KINDS.items():
        for spec in specs(kind):
            yield name, kind, spec, Layout(kind.axes, kind.owners, cuts_of(spec, rank))


def cuts_of(spec: tuple[Any, ...], rank: int) -> tuple[tuple[str, ...], ...]:
    """A spec's entries, one for each dimension, each a tuple of axis names."""
    cuts = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
    return tuple(cuts + [()] * (rank - len(cuts)))
