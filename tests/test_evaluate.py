"""Evaluation over uneven processes: the same as in one process, to the last example."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import hostmesh as hm


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels, and the weights of a least-squares classifier, which is not always right."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    wanted = np.eye(10)[labels[:200]]
    weights = np.linalg.lstsq(images[:200], wanted, rcond=None)[0]
    return images.astype(np.float32), labels.astype(np.int32), weights.astype(np.float32)


def metrics(weights: Any, batch: Any) -> Any:
    scores = batch["image"] @ weights
    guessed = scores.argmax(-1)
    return {
        "right": guessed == batch["label"],
        "confusion": jax.nn.one_hot(batch["label"] * 10 + guessed, 100, dtype=jnp.int32),
        "loss": -jax.nn.log_softmax(scores)[jnp.arange(len(guessed)), batch["label"]],
    }


def shares(total: int, processes: int) -> list[int]:
    """Uneven, with next to nothing and nothing on the last two of many."""
    if processes == 1:
        return [total]
    sizes = [total // (processes + 2) + 3 * p for p in range(processes)]
    if processes > 3:
        sizes[-2:] = [1, 0]
    sizes[0] += total - sum(sizes)
    return sizes


def check_digits() -> None:
    me, count = jax.process_index(), jax.process_count()
    images, labels, weights = digits()
    sizes = shares(len(images), count)
    first = sum(sizes[:me])
    rows = 32 * jax.local_device_count()

    def source() -> Any:
        for start in range(first, first + sizes[me], rows):
            part = slice(start, min(start + rows, first + sizes[me]))
            yield {"image": images[part], "label": labels[part]}

    mesh = Mesh(jax.devices(), "x")
    found = hm.evaluate(metrics, source(), weights, mesh=mesh, specs=P("x"))
    # In this process alone, without hostmesh.
    whole = jax.tree.map(np.asarray, metrics(weights, {"image": images, "label": labels}))
    assert found.count == len(images)
    assert found.sum["right"] == whole["right"].sum()
    assert 0.5 < found.mean["right"] < 1
    assert type(found.mean["right"]) is float
    np.testing.assert_array_equal(found.sum["confusion"], whole["confusion"].sum(0))
    assert found.sum["confusion"].dtype == np.int64
    np.testing.assert_allclose(found.sum["loss"], whole["loss"].astype(np.float64).sum(), rtol=1e-6)
    hm.assert_equal([found.sum, found.count])


@pytest.mark.multiprocess(processes=4, devices=2)
def test_accuracy_is_that_of_one_process() -> None:
    check_digits()


@pytest.mark.multiprocess(processes=3, devices=1)
def test_accuracy_is_that_of_one_process_on_three() -> None:
    check_digits()


@pytest.mark.multiprocess(processes=8, devices=1)
def test_accuracy_is_that_of_one_process_on_eight() -> None:
    check_digits()


def test_accuracy_alone() -> None:
    check_digits()


@pytest.mark.multiprocess(processes=4, devices=2)
def test_one_program_and_a_feeder_of_ones_own() -> None:
    me = jax.process_index()
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2).T.reshape(-1), "x")
    traced: list[int] = []

    def step(batch: Any) -> Any:
        traced.append(1)
        return batch

    for _ in range(2):
        feeder = hm.Feeder(
            [np.full(n, 2**30 + me) for n in (4, 4, 1 + me % 2)], mesh, P("x"), ends="pad"
        )
        found = hm.evaluate(step, feeder)
    assert len(traced) == 1
    real = [8 + 1 + p % 2 for p in range(4)]
    assert found.count == sum(real)
    expected = sum(n * (2**30 + p) for p, n in enumerate(real))
    assert found.sum == expected  # a batch's own sum is over 32 bits, and the program has no more
    found = hm.evaluate(
        lambda x: x, [np.full(4, -(2**31) + me)], mesh=mesh, specs=P("x"), check=None
    )
    assert found.sum == sum(4 * (p - 2**31) for p in range(4))
    with pytest.raises(hm.SpecError, match="ends='drop'"):
        hm.evaluate(step, hm.Feeder([], mesh, P("x")))


@pytest.mark.multiprocess(processes=4, devices=2)
def test_real_rows_alone_in_global_order() -> None:
    me = jax.process_index()
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2).T.reshape(-1), "x")
    ids = np.arange(4) + 4 * me
    feeder = hm.Feeder([ids, ids[:me]], mesh, P("x"), ends="pad")
    for batch, lengths in zip(feeder, ((4, 4, 4, 4), (0, 1, 2, 3)), strict=True):
        # Interleaved: the first device of each process comes first, then the second.
        expected = [
            4 * p + row for half in (0, 2) for p in range(4) for row in (half, half + 1)
            if row < lengths[p]
        ]  # fmt: skip
        tree = {"id": batch.data, "square": batch.data**2}
        found = hm.gather_valid(tree, batch.mask)
        assert found["id"].tolist() == expected
        assert found["square"].tolist() == [i * i for i in expected]
        found = hm.gather_valid(tree, batch.mask, to=2)
        assert (found is None) == (me != 2)
        assert me != 2 or found["id"].tolist() == expected


def test_metrics_that_cannot_be_summed() -> None:
    mesh = Mesh(jax.devices()[:1], "x")
    with pytest.raises(hm.ShapeError, match=r"metric \['mean'\]"):
        hm.evaluate(lambda x: {"mean": x.mean()}, [np.ones(2)], mesh=mesh, specs=P("x"))
    assert hm.evaluate(lambda x: x, [], mesh=mesh, specs=P("x")).count == 0
