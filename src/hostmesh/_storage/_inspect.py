"""Names, shapes and dtypes of what a file holds, without reading its data."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._npy import add_npy
from ._resolve import Paths, add_safetensors, open_all


@dataclass(frozen=True)
class TensorInfo:
    """One stored tensor: its shape, dtype, size in bytes, and the file that holds it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int
    file: str


def inspect(path: Paths) -> dict[str, TensorInfo]:
    """Tells what a file holds, from its header alone. Nothing is communicated.

    Args:
      path: a safetensors file, a folder or index of them, a list, a `.npy` or `.npz` file, or an
        fsspec URL of one.

    Returns:
      A dict from names to `TensorInfo`, in the order of the file. A `.npy` file holds `"array"`.

    Raises:
      StorageError: for a file that cannot be read or is malformed.

    >>> import hostmesh, numpy as np, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(os.path.join(folder, "x.npy"), np.zeros((2, 3)))
    ...     hostmesh.inspect(os.path.join(folder, "x.npy"))["array"].shape
    (2, 3)
    """
    first = path if isinstance(path, str | os.PathLike) else next(iter(path), "")
    is_npy = os.fspath(first).endswith((".npy", ".npz"))
    opened = open_all(path, add_npy if is_npy else add_safetensors)
    try:
        return {
            s.name: TensorInfo(
                s.shape[::-1] if s.reversed_axes else s.shape,
                s.dtype,
                math.prod(s.shape) * s.dtype.itemsize,
                opened.sources[s.source].name,
            )
            for s in opened.stored
        }
    finally:
        opened.close()
