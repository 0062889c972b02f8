"""Which process each device of a mesh belongs to: all that planning needs to know of a cluster."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ._errors import SpecError, build

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh

Order: TypeAlias = Literal["block", "interleaved"] | npt.ArrayLike


class Topology:
    """The axes of a mesh and, for each of its devices, the process that the device belongs to.

    Immutable and hashable; holds no devices, so that a cluster can be planned that is not there.
    Positions number the devices in row-major order of the mesh.

    Args:
      axes: name and size of each mesh axis, major axis first.
      process_indices: the process of each device, in the mesh's shape or flat.

    Raises:
      SpecError: if the axes or the process numbers cannot be a mesh's. Nothing communicates.

    >>> topology = Topology({"data": 2, "model": 2}, [[0, 0], [1, 1]])
    >>> topology.positions(1)
    array([2, 3])
    """

    __slots__ = ("__dict__", "_hash", "axes", "process_indices")

    axes: tuple[tuple[str, int], ...]
    process_indices: npt.NDArray[np.int32]
    _hash: int

    def __init__(
        self, axes: Mapping[str, int] | Iterable[tuple[str, int]], process_indices: npt.ArrayLike
    ) -> None:
        named = _named(axes)
        sizes = tuple(size for _, size in named)
        if len({name for name, _ in named}) != len(named) or any(size < 1 for size in sizes):
            raise _topology_error(
                f"axes {dict(named)!r} of sizes {sizes}",
                "axis names are distinct and sizes at least 1",
                "give every mesh axis its own name and a positive size",
            )
        owners = _numbers(process_indices)
        if owners.shape not in (sizes, (math.prod(sizes),)):
            raise _topology_error(
                f"process numbers of shape {owners.shape}",
                f"a mesh of shape {sizes} has {math.prod(sizes)} devices, each of one process",
                "give one process number for each device, in the mesh's shape or flat",
            )
        # A private copy: the hash below must stay that of the contents.
        owners = np.array(owners, dtype=np.int32).reshape(sizes)
        owners.flags.writeable = False
        setattr_ = object.__setattr__
        setattr_(self, "axes", named)
        setattr_(self, "process_indices", owners)
        setattr_(self, "_hash", hash((named, owners.tobytes())))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Topology is immutable: {name!r} cannot be set")

    @classmethod
    def build(
        cls,
        axes: Mapping[str, int] | Iterable[tuple[str, int]] | AbstractMesh,
        processes: int,
        order: Order = "block",
    ) -> Topology:
        """A topology by rule, for a cluster that need not exist.

        Args:
          axes: mesh axes with their sizes, major first, or an abstract mesh.
          processes: how many processes share the devices.
          order: `"block"` gives each process a run of consecutive positions, `"interleaved"` deals
            positions out in turn, an array of process numbers says it for each position.

        Raises:
          SpecError: if the devices cannot be shared out so.

        >>> Topology.build({"x": 4}, processes=2, order="interleaved").process_indices
        array([0, 1, 0, 1], dtype=int32)
        """
        named = _named(getattr(axes, "shape", axes))
        devices = math.prod(size for _, size in named)
        if not isinstance(order, str):
            owners = _numbers(order)
            if (owners >= processes).any():
                raise _topology_error(
                    f"process number {owners.max()} with processes={processes}",
                    f"process numbers lie between 0 and {processes - 1}",
                    "raise processes, or renumber the order",
                )
            return cls(named, owners)
        if order not in ("block", "interleaved"):
            raise _topology_error(
                f"order={order!r}",
                "order is 'block', 'interleaved' or an array of process numbers",
                "choose one of these",
            )
        if processes < 1 or devices % processes:
            raise _topology_error(
                f"{devices} devices for processes={processes}",
                f"order={order!r} gives every process as many devices, but {devices} is not a"
                f" positive multiple of {processes}",
                "change an axis size or the number of processes, or give an array as order",
            )
        position = np.arange(devices)
        return cls(
            named,
            position // (devices // processes) if order == "block" else position % processes,
        )

    @classmethod
    def from_mesh(cls, mesh: Mesh) -> Topology:
        """The topology of a mesh of devices. Kept for each mesh; never asks JAX for processes."""
        from jax.sharding import Mesh

        if not isinstance(cast("object", mesh), Mesh):
            raise _topology_error(
                f"a {type(mesh).__name__}",
                "the processes are read off a mesh's devices",
                "pass a jax.sharding.Mesh, or a Topology for a cluster that is not there",
            )
        return _from_mesh(mesh)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Topology:
        """The inverse of `to_dict`.

        >>> topology = Topology.build({"x": 4}, processes=2)
        >>> Topology.from_dict(topology.to_dict()) == topology
        True
        """
        try:
            axes, owners = data["axes"], data["process_indices"]
            pairs = [(name, operator.index(size)) for name, size in axes]
        except (KeyError, TypeError, ValueError) as error:
            raise _topology_error(
                f"{str(data)[:80]}",
                "a saved topology has 'axes' (pairs of name and size) and 'process_indices'",
                "write it with Topology.to_dict",
            ) from error
        return cls(pairs, owners)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, strings and numbers, for JSON or msgpack."""
        return {
            "axes": [list(pair) for pair in self.axes],
            "process_indices": self.process_indices.ravel().tolist(),
        }

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the mesh axes, major first."""
        return tuple(name for name, _ in self.axes)

    @functools.cached_property
    def shape(self) -> Mapping[str, int]:
        """Size of each mesh axis by name."""
        return dict(self.axes)

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.process_indices.size

    @functools.cached_property
    def processes(self) -> tuple[int, ...]:
        """The processes that have a device in the mesh, ascending."""
        return tuple(np.unique(self.process_indices).tolist())

    @functools.cached_property
    def most_devices(self) -> int:
        """How many devices the process with the most of them has in the mesh."""
        return int(np.unique(self.process_indices, return_counts=True)[1].max())

    @functools.cached_property
    def _positions(self) -> dict[int, npt.NDArray[np.intp]]:
        return {}

    def holds(self, process: int) -> bool:
        """Whether a process has a device in the mesh."""
        return len(self.positions(process)) > 0

    def who(self) -> str:
        """The processes of the mesh in words, abridged: for messages."""
        owners = self.processes
        listed = ", ".join(map(str, owners[:8]))
        return f"processes {listed}" + (f" and {len(owners) - 8} more" if len(owners) > 8 else "")

    def positions(self, process: int) -> npt.NDArray[np.intp]:
        """The positions of a process's devices, ascending; empty where it has none in the mesh."""
        if process not in self._positions:  # one by one: a program asks for its own process
            self._positions[process] = np.flatnonzero(self.process_indices.ravel() == process)
        return self._positions[process]

    def coordinates(self, positions: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Mesh coordinates of positions: shape (number of positions, number of axes)."""
        if not self.axes:
            return np.zeros((len(positions), 0), np.intp)
        return np.stack(np.unravel_index(positions, self.process_indices.shape), axis=1)

    def is_subcube(self, process: int) -> bool:
        """Whether the process's devices form one rectangle of the mesh: what JAX's own functions need."""
        at = self.coordinates(self.positions(process))
        if not len(at):
            return False
        return math.prod((at.max(axis=0) - at.min(axis=0) + 1).tolist()) == len(at)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Topology)
            and self.axes == other.axes
            and np.array_equal(self.process_indices, other.process_indices)
        )

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Topology, (self.axes, self.process_indices)

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.axes)
        return f"Topology({axes}; {self.size} devices of {len(self.processes)} processes)"


# A program has few meshes, but tests and planners make many.
@functools.lru_cache(maxsize=256)
def _from_mesh(mesh: Mesh) -> Topology:
    owners = [device.process_index for device in mesh.devices.flat]
    return Topology(mesh.shape, owners)


def _named(axes: object) -> tuple[tuple[str, int], ...]:
    try:
        pairs = cast("Mapping[str, int]", axes).items() if isinstance(axes, Mapping) else axes
        return tuple(
            (str(name), operator.index(size))
            for name, size in cast("Iterable[tuple[str, int]]", pairs)
        )
    except (TypeError, ValueError):
        raise _topology_error(
            f"axes {axes!r}",
            "axes are a mapping of names to whole numbers, or pairs of these",
            "write, for example, {'data': 4, 'model': 2}",
        ) from None


def _numbers(process_indices: npt.ArrayLike) -> npt.NDArray[np.integer[Any]]:
    try:
        owners = np.asarray(process_indices)
    except ValueError:  # ragged
        owners = np.asarray(None)
    largest = np.iinfo(np.int32).max
    if owners.dtype.kind not in "iu" or (owners < 0).any() or (owners > largest).any():
        raise _topology_error(
            f"process numbers {process_indices!r}"[:200],
            f"they are an array of whole numbers from 0 to {largest}",
            "number the processes from 0",
        )
    return owners


def _topology_error(given: str, rule: str, advice: str) -> SpecError:
    return build(SpecError, where="Topology", given=given, rule=rule, advice=advice)
