"""A file of the tensors of all-MiniLM-L6-v2, 90 MB, with made values: what is loaded and saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

_WIDTH, _INNER, _LAYERS, _WORDS, _PLACES = 384, 1536, 6, 30522, 512


def shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes, as in the real file.

    >>> found = shapes()
    >>> len(found), sum(4 * int(np.prod(shape)) for shape in found.values())
    (103, 90852864)
    """
    found: dict[str, tuple[int, ...]] = {}

    def dense(name: str, rows: int, columns: int) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = (rows, columns), (rows,)

    def norm(name: str) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = (_WIDTH,), (_WIDTH,)

    norm("embeddings.LayerNorm")
    for name, rows in (("word", _WORDS), ("position", _PLACES), ("token_type", 2)):
        found[f"embeddings.{name}_embeddings.weight"] = (rows, _WIDTH)
    for number in range(_LAYERS):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            dense(f"{layer}.attention.self.{part}", _WIDTH, _WIDTH)
        dense(f"{layer}.attention.output.dense", _WIDTH, _WIDTH)
        norm(f"{layer}.attention.output.LayerNorm")
        dense(f"{layer}.intermediate.dense", _INNER, _WIDTH)
        dense(f"{layer}.output.dense", _WIDTH, _INNER)
        norm(f"{layer}.output.LayerNorm")
    dense("pooler.dense", _WIDTH, _WIDTH)
    return found


def write(path: Path, tensors: Mapping[str, tuple[int, ...]]) -> None:
    """A safetensors file of float32 tensors of these shapes, written one by one."""
    header: dict[str, object] = {}
    first = 0
    for name, shape in tensors.items():
        last = first + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [first, last]}
        first = last
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(0)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in tensors.values():
            file.write(random.standard_normal(shape, np.float32).data)


def spec(name: str, shape: tuple[int, ...], dtype: object) -> PartitionSpec:
    """Matrices cut over both axes of the mesh (x, y), as far as these divide them."""
    import jax
    from jax.sharding import PartitionSpec

    processes, devices = jax.process_count(), jax.local_device_count()
    if len(shape) != 2:
        return PartitionSpec()
    if shape[0] % processes == 0 and shape[1] % devices == 0:
        return PartitionSpec("x", "y")
    # 30,522 words are no multiple of 4.
    if shape[0] % devices == 0 and shape[1] % processes == 0:
        return PartitionSpec("y", "x")
    return PartitionSpec()
