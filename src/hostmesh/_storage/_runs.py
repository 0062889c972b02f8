"""Where the elements of a part of a tensor lie in its file: runs of bytes. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ._boxes import offset_of, run_of, strides_of
from ._shares import Piece, Tensor


def runs(tensor: Tensor, piece: Piece) -> tuple[int, npt.NDArray[np.int64]]:
    """The length of each run of a piece in bytes, and where they begin in the file, ascending.

    >>> tensor = Tensor((3, 4), itemsize=2, file=0, start=100, boxes=())
    >>> length, starts = runs(tensor, Piece(0, ((0, 2), (1, 3))))
    >>> length, starts.tolist()
    (4, [102, 110])
    """
    place, itemsize = piece.place, tensor.itemsize
    length = run_of(tensor.shape, itemsize, place)
    first = tensor.start + offset_of(tensor.shape, itemsize, place)
    starts = np.array([first], np.int64)
    # From the innermost axis that is not within a run to the outermost.
    inner = itemsize
    for (a, b), step in zip(
        reversed(place), reversed(strides_of(tensor.shape, itemsize)), strict=True
    ):
        if inner < length:
            inner *= b - a
        else:
            starts = (np.arange(b - a, dtype=np.int64)[:, None] * step + starts).reshape(-1)
    return length, starts
