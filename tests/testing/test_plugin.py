"""The pytest plugin, on suites of its own."""

import re
import signal
import subprocess
import sys
import time

import pytest

TIMEOUT = 200  # of a whole suite; each of its tests has its own


@pytest.fixture
def suite(pytester):
    """Writes a suite of tests and runs pytest on it, at most `TIMEOUT` seconds."""

    def run(source, *args):
        pytester.makepyfile(test_it=source)
        return pytester.runpytest_subprocess(*args, timeout=TIMEOUT)

    return run


def gone(pid):
    """Whether a process has ended (as a zombie, at most)."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def wait_until_gone(pids, seconds=10):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(map(gone, pids)):
        time.sleep(0.05)
    return all(map(gone, pids))


def test_each_kind_of_failure_is_told_and_the_next_test_passes(suite, pytester):
    result = suite(
        """
        import os, pathlib, signal, time
        import jax, pytest

        pytestmark = pytest.mark.multiprocess(processes=3, devices=1, timeout=2)
        HERE = pathlib.Path(__file__).parent

        @pytest.fixture(autouse=True)
        def pid():
            (HERE / f"{os.getpid()}.pid").touch()

        def total():
            mesh = jax.make_mesh((3,), ("x",))
            ones = jax.jit(lambda: jax.numpy.ones(3), out_shardings=jax.NamedSharding(mesh, jax.P("x")))
            return float(jax.jit(lambda a: a.sum())(ones()))

        def test_assertion_in_one():
            print("seen by", jax.process_index())
            rows = jax.process_index()
            assert rows != 1

        def test_after_assertion():
            assert total() == 3

        def test_exception_in_two():
            if jax.process_index() != 1:
                raise ValueError(f"process {jax.process_index()} of {object()} is wrong")

        def test_after_exception():
            assert total() == 3

        def test_hang():
            if jax.process_index() != 2:
                total()

        def test_after_hang():
            assert total() == 3

        def test_kill():
            if jax.process_index() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            total()

        def test_after_kill():
            assert total() == 3

        def test_exception_in_one_while_others_wait():
            if jax.process_index() == 0:
                raise KeyError("first")
            total()
        """,
        "-v",
        "--durations=0",
        "-Werror",
    )
    result.assert_outcomes(passed=4, failed=5)
    sections = re.split(r"^_+ (test_\w+) _+$", result.stdout.str(), flags=re.MULTILINE)
    told = dict(zip(sections[1::2], sections[2::2], strict=True))

    text = told["test_assertion_in_one"]
    assert "process 1: assert 1 != 1\n" in text
    assert ">       assert rows != 1\n" in text
    assert "stdout and stderr of processes 0, 1, 2 ---" not in text.partition("seen by 0")[2]

    text = told["test_exception_in_two"]
    assert text.count(">           raise ValueError") == 1
    assert "processes 0, 2: ValueError: process 0 of <object object" in text

    text = told["test_hang"]
    assert "processes 0, 1 had not ended after 2 s, at:\n" in text
    assert re.search(r'test_it.py", line \d+, in test_hang\n    total\(\)\n', text)
    assert "had not ended" not in told["test_kill"]

    assert "process 1 died: SIGKILL (signal 9); the others were stopped\n" in told["test_kill"]

    text = told["test_exception_in_one_while_others_wait"]
    assert 0 < text.index("process 0: KeyError: 'first'") < text.index("processes 1, 2 had not")

    lines = re.findall(r"^([\d.]+)s call +test_it.py::(test_\w+)", result.stdout.str(), re.M)
    seconds = {name: float(number) for number, name in lines}
    for name in ("hang", "kill", "exception_in_two", "exception_in_one_while_others_wait"):
        assert seconds[f"test_{name}"] < 15
    pids = [int(path.stem) for path in pytester.path.glob("*.pid")]
    assert len(pids) == 9  # three clusters
    assert wait_until_gone(pids)


def test_fixtures_parameters_and_marks_work_in_the_processes(suite, pytester):
    pytester.makeini(
        """
        [pytest]
        hostmesh_timeout = 7
        filterwarnings = error
            ignore:known
        """
    )
    pytester.makeconftest(
        """
        import pytest

        def pytest_addoption(parser):
            parser.addoption("--word")

        @pytest.fixture(scope="session")
        def word(request):
            return request.config.getoption("word")
        """
    )
    result = suite(
        """
        import os, sys, warnings
        import jax, pytest

        pytestmark = pytest.mark.multiprocess(processes=2, devices=[2, 2])

        @pytest.fixture(scope="module")
        def mesh():
            return jax.make_mesh((4,), ("x",))

        @pytest.mark.parametrize("make", [lambda: 1, lambda: 2], ids=["one", "two"])
        def test_parameters(make, mesh, word):
            assert make() in (1, 2) and mesh.size == 4 and word == "hello"

        def test_tmp_path_is_shared(tmp_path):
            from jax.experimental.multihost_utils import sync_global_devices
            assert not list(tmp_path.iterdir()) or jax.process_index() == 1
            if jax.process_index() == 0:
                (tmp_path / "file").touch()
            sync_global_devices("written")
            assert [path.name for path in tmp_path.iterdir()] == ["file"]

        def test_changes(monkeypatch, capsys, mesh):
            monkeypatch.setenv("HM_A", "1")
            os.environ["HM_B"] = "2"
            jax.config.update("jax_enable_x64", True)
            print("text")
            assert capsys.readouterr().out == "text\\n"

        def test_changes_are_undone():
            assert "HM_A" not in os.environ and "HM_B" not in os.environ
            assert not jax.config.jax_enable_x64

        class TestClass:
            def test_method(self, request):
                assert request.node.name == "test_method"
                assert request.config.getini("hostmesh_timeout") == "7"

        @pytest.mark.multiprocess(processes=1, devices=2, env={"HM_EXTRA": "x"})
        def test_closest_mark_counts():
            assert jax.process_count() == 1 and os.environ["HM_EXTRA"] == "x"

        @pytest.mark.skipif(jax.device_count() == 4, reason="four devices")
        def test_conditions_see_the_cluster():
            assert False

        @pytest.mark.skip(reason="never")
        def test_skipped_without_a_cluster():
            assert False

        def test_skip_in_one():
            if jax.process_index() == 0:
                pytest.skip("not here")

        @pytest.mark.xfail(raises=ValueError, strict=True)
        def test_expected_in_one():
            if jax.process_index() == 1:
                raise ValueError

        def test_expected_from_inside():
            pytest.xfail("not yet")

        def test_fail_from_inside():
            pytest.fail("clear word")

        @pytest.fixture
        def broken():
            raise RuntimeError("no fixture")

        def test_broken_fixture(broken):
            pass

        def test_breakpoint():
            breakpoint()

        def test_exit():
            pytest.exit("enough")

        def test_warning():
            warnings.warn("unknown")

        @pytest.mark.filterwarnings("default:seen")
        def test_seen_warning():
            warnings.warn("seen")
        """,
        "--word=hello",
        "-ra",
    )
    result.assert_outcomes(passed=9, skipped=2, xfailed=2, failed=5, warnings=1)
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED * test_it.py:*: four devices",
            "processes 0, 1: Failed: clear word",
            "processes 0, 1 in setup: RuntimeError: no fixture",
            "processes 0, 1: RuntimeError: breakpoint(): a process of a multiprocess test has no*",
            "_pytest.outcomes.Exit: enough",
            "processes 0, 1: UserWarning: unknown",
            "*test_it.py:*: UserWarning: seen",
        ]
    )


PLAIN = """
    import jax, pytest

    @pytest.mark.multiprocess(processes=2, devices=1)
    @pytest.mark.parametrize("n", range(4))
    def test_many(n):
        assert n != 1 or jax.process_index() == 0

    def test_plain():
        assert True
"""


def test_selection_and_stopping(suite):
    result = suite(PLAIN, "-k", "many and not 0", "-x", "--pdb")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(["hostmesh: --pdb is off for the 3 multiprocess tests*"])
    result.stdout.no_fnmatch_line("*(Pdb)*")


def test_processes_come_to_their_own_end_after_the_last_test(suite, pytester):
    result = suite(
        """
        import atexit, os, pathlib
        import pytest

        @pytest.mark.multiprocess(processes=2, devices=1)
        def test_one():
            atexit.register(pathlib.Path(__file__).with_name(f"{os.getpid()}.end").touch)
        """
    )
    result.assert_outcomes(passed=1)
    assert len(list(pytester.path.glob("*.end"))) == 2


def test_under_xdist(suite):
    result = suite(PLAIN, "-n2", "-ra")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["_* test_many[[]1] _*", "process 1: assert*"])


@pytest.mark.parametrize(
    ("mark", "told"),
    [
        (
            "(4)",
            "*test_it.py::test_it: multiprocess(4): the options are processes, devices, timeout, env*",
        ),
        ("(process=4)", "*test_it.py::test_it: multiprocess(process): the options are processes*"),
        ("(processes=2, devices=[1])", "*given: processes=2, devices=[[]1]*"),
        ("(timeout='long')", "*test_it.py::test_it: could not convert string to float*"),
    ],
)
def test_wrong_options_are_told_on_collection(pytester, mark, told):
    pytester.makepyfile(
        test_it=f"import pytest\n@pytest.mark.multiprocess{mark}\ndef test_it(): pass"
    )
    result = pytester.runpytest_inprocess("--collect-only")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([told])


def test_a_suite_without_the_mark_loads_nothing(suite, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others load NumPy
    suite(
        """
        import sys

        def test_plain():
            assert "hostmesh_pytest" in sys.modules
            assert not {"hostmesh", "jax", "numpy"} & set(sys.modules)
        """,
        *("-p", "hostmesh_pytest"),
    ).assert_outcomes(passed=1)


SLEEP = """
    import os, pathlib, time
    import pytest

    @pytest.mark.multiprocess(processes=2, devices=1)
    def test_sleep():
        (pathlib.Path(__file__).parent / f"{os.getpid()}.pid").touch()
        time.sleep(50)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_pytest(pytester, number):
    pytester.makepyfile(SLEEP)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        stdout=subprocess.DEVNULL,
        cwd=pytester.path,
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and len(pids := list(pytester.path.glob("*.pid"))) < 2:
            time.sleep(0.1)
        assert len(pids) == 2
        process.send_signal(number)
        assert process.wait(20) == (-signal.SIGKILL if number == signal.SIGKILL else 2)
    finally:
        process.kill()
        process.wait()
    assert wait_until_gone(int(path.stem) for path in pids)
