"""Multi-process tests on one machine: as functions (`run`) and in pytest (`hostmesh_pytest`).

    @pytest.mark.multiprocess(processes=4, devices=2)
    def test_something(mesh, tmp_path): ...

The test runs in every process of a local cluster: real processes, joined by `jax.distributed`,
with CPU devices. The mark's options are `processes`, `devices` (a number for each process, or a
list with one for each), `timeout` in seconds and `env`, extra environment variables. Clusters stay
warm between tests of the same shape.

Each process has a pytest session of its own, which collects the test's file and runs the test as
pytest does: fixtures, parametrization, `skipif`, `xfail`, `monkeypatch`, `capsys` and rewritten
assertions work there, with the cluster's devices. Two things differ. `tmp_path` is one directory,
shared by all processes of the test. And every fixture, whatever its scope, ends with the test;
then JAX's settings, the environment and the working directory are put back. (With hypothesis, all
processes must draw the same examples: `@settings(derandomize=True, database=None)`.)

A test fails if it fails in any process, skips if it skips in all, and is an expected failure if
it is one in any and fails in none. The report shows each distinct traceback once, with the
processes that had it; when a process dies, its signal; when one does not end in time, where each
waiting process is. After either, the next test gets a new cluster. `--pdb` is off for these tests.

`--hostmesh-strict` is for ordinary tests in one process with several devices: it fails each read
of an array that no host would hold whole if the devices belonged to several (`_strict.py`).
"""

from .._faults import FaultError as FaultError
from .._faults import fault as fault
from ._doctests import run_doctests as run_doctests
from ._run import run as run
