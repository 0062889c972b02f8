"""Trees as streams of bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hostmesh._packing import Stream


@st.composite
def strided(draw: st.DrawFn) -> np.ndarray:
    """An array of any order of axes, with steps, of 1 to 16 bytes an element."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(("u1", ">i2", "f4", "i8", "c16")))
    steps = [draw(st.sampled_from((1, 2, -1, -2))) for _ in shape]
    whole = [size * abs(step) for size, step in zip(shape, steps, strict=True)]
    order = draw(st.permutations(range(len(shape))))
    base = np.random.default_rng(0).integers(0, 256, (*whole, 16), np.uint8)
    array = base[..., : np.dtype(dtype).itemsize].copy().view(dtype)[..., 0]
    return array[tuple(slice(None, None, step) for step in steps)].transpose(order)


@given(st.lists(strided(), max_size=4), st.sampled_from((16, 32, 48, 1024)))
def test_a_stream_reads_and_writes_arrays_of_any_strides(arrays: list[np.ndarray], step: int):
    expected = b"".join(a.tobytes() + bytes(-a.nbytes % 16) for a in arrays)
    source = Stream(arrays)
    assert source.tobytes() == expected
    copies = [np.zeros_like(a) for a in arrays]  # of the same strides
    target = Stream(copies)
    assert source.nbytes == target.nbytes == len(expected)
    for start in range(0, source.nbytes, step):
        piece = np.zeros(min(step, source.nbytes - start), np.uint8)
        source.read(piece, start)
        assert piece.tobytes() == expected[start : start + step]
        target.write(piece, start)
    assert [a.tobytes() for a in copies] == [a.tobytes() for a in arrays]
