"""Where the elements of a part of a tensor lie in its file: runs of bytes. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ._shares import Piece, Tensor, offset_of, run_length, size_of


def runs(tensor: Tensor, piece: Piece) -> tuple[int, npt.NDArray[np.int64]]:
    """The length of each run of a piece in bytes, and where they begin in the file, ascending.

    >>> tensor = Tensor((3, 4), itemsize=2, file=0, start=100, boxes=())
    >>> length, starts = runs(tensor, Piece(0, ((0, 2), (1, 3))))
    >>> length, starts.tolist()
    (4, [102, 110])
    """
    place = piece.place
    length = run_length(tensor.shape, place)
    starts = np.array([offset_of(tensor.shape, place)], np.int64)
    count = size_of(place) // length
    stride = 1
    # From the innermost axis that is not within a run to the outermost.
    strides: list[tuple[int, int]] = []
    for size, (start, stop) in zip(reversed(tensor.shape), reversed(place), strict=True):
        strides.append((stop - start, stride))
        stride *= size
    inner = 1
    outer: list[tuple[int, int]] = []
    for taken, step in strides:
        if inner < length:
            inner *= taken
        elif taken > 1:
            outer.append((taken, step))
    for taken, step in outer:
        starts = (np.arange(taken, dtype=np.int64)[:, None] * step + starts).reshape(-1)
    assert len(starts) == count
    return length * tensor.itemsize, tensor.start + starts * tensor.itemsize
