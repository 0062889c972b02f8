"""Fixtures for all tests."""

import os

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def _names_as_asked_for(request: pytest.FixtureRequest) -> None:
    """A test of `apis.both` really runs on the names that it says."""
    if "public" in request.fixturenames:
        from hostmesh import _jax

        everywhere = os.environ.get("HOSTMESH_PUBLIC_API", "0") not in ("", "0")
        assert (request.getfixturevalue("public") or everywhere) == _jax.PUBLIC_API


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`HOSTMESH_TEST_HOSTS=2` has all multiprocess tests run over two hosts; see test_hosts."""
    if hosts := int(os.environ.get("HOSTMESH_TEST_HOSTS", "0")):
        for item in items:
            if (mark := item.get_closest_marker("multiprocess")) and "hosts" not in mark.kwargs:
                over = pytest.mark.multiprocess(*mark.args, **{**mark.kwargs, "hosts": hosts})
                item.add_marker(over, append=False)
