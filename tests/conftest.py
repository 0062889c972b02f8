"""Fixtures for all tests."""

import os

import pytest

pytest_plugins = ["pytester"]

PUBLIC_API = os.environ.get("HOSTMESH_PUBLIC_API", "") not in ("", "0")


@pytest.fixture(autouse=True)
def _names_as_asked_for(request: pytest.FixtureRequest) -> None:
    """A test of `apis.both` really runs on the names that it says."""
    if "public" in request.fixturenames:
        from hostmesh import _jax

        assert request.getfixturevalue("public") == _jax.PUBLIC_API


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`HOSTMESH_TEST_HOSTS=2` has all multiprocess tests run over two hosts; see test_hosts.

    `HOSTMESH_PUBLIC_API=1` leaves out what needs private names of JAX.
    """
    if PUBLIC_API:
        left_out = pytest.mark.skip(reason="HOSTMESH_PUBLIC_API: JAX has no public way to this")
        twin = pytest.mark.skip(reason="HOSTMESH_PUBLIC_API: the same as its twin on public names")
        for item in items:
            if item.get_closest_marker("private_names"):
                item.add_marker(left_out)
            elif getattr(item, "callspec", None) and item.callspec.params.get("public") is False:
                item.add_marker(twin)
    if hosts := int(os.environ.get("HOSTMESH_TEST_HOSTS", "0")):
        for item in items:
            if (mark := item.get_closest_marker("multiprocess")) and "hosts" not in mark.kwargs:
                over = pytest.mark.multiprocess(*mark.args, **{**mark.kwargs, "hosts": hosts})
                item.add_marker(over, append=False)
