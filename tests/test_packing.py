"""Trees as streams of bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hostmesh._kinds import kind_of
from hostmesh._stream import Landing, Stream, joined


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


@given(
    st.lists(
        st.sampled_from((np.arange(4.0), np.arange(16.0).reshape(4, 4).T, np.zeros((0, 2)))),
        max_size=9,
    ),
    st.sampled_from((16, 48, 240, 1024)),
    st.sampled_from((0, 16, 32)),
)
def test_a_stream_of_arrays_of_one_dtype_is_read_from_anywhere(
    arrays: list[np.ndarray], step: int, past: int
):
    expected = b"".join(a.tobytes() for a in arrays)
    source = Stream(arrays)
    for start in range(0, source.nbytes, step):
        piece = np.full(min(step, source.nbytes - start) + past, 7, np.uint8)
        source.read(piece, start)
        read = expected[start : start + len(piece)]
        assert piece.tobytes() == read + b"\7" * (len(piece) - len(read))


@given(
    st.lists(
        st.tuples(
            st.sampled_from((np.uint8, np.int16, np.float32, np.complex128)),
            st.lists(st.integers(0, 5), max_size=3).map(tuple),
            st.integers(1, 4),
        ),
        max_size=4,
    ),
    st.sampled_from((None, 1, 3)),
    st.sampled_from((16, 32, 48, 1024)),
)
def test_new_arrays_take_the_streams_of_all_rows_at_once(
    runs: list[tuple[type, tuple[int, ...], int]], rows: int | None, step: int
):
    kinds = [kind_of(np.dtype(dtype), shape) for dtype, shape, count in runs for _ in range(count)]
    draw = np.random.default_rng(0)
    sent = [  # by row
        [draw.integers(0, 256, k.nbytes, np.uint8).view(k.numpy).reshape(k.shape) for k in kinds]
        for _ in range(rows or 1)
    ]
    streams = np.array([np.frombuffer(joined(arrays), np.uint8) for arrays in sent])
    landing = Landing(kinds, rows)
    assert landing.nbytes == streams.shape[1]
    for start in range(0, landing.nbytes, step):
        landing.write(streams[:, start : start + step], start)
    expected = sent[0] if rows is None else [np.stack(arrays) for arrays in zip(*sent, strict=True)]
    for array, right in zip(landing.arrays, expected, strict=True):
        assert (array.shape, array.dtype) == (right.shape, right.dtype)
        assert array.tobytes() == right.tobytes()
        assert array.flags.c_contiguous
