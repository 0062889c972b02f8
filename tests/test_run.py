"""The launcher, on real processes that need no JAX; what JAX does in them is test_initialize's."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from hostmesh import _lines, _outcome, _run
from hostmesh._cluster import free_port

PREAMBLE = """
import os, signal, subprocess, sys, time
from pathlib import Path
me = int(os.environ["HOSTMESH_PROCESS"])
here = Path(os.environ["HERE"])

def note(pid):
    (here / f"{me}-{pid}.new").write_text(str(pid))
    (here / f"{me}-{pid}.new").rename(here / f"{me}-{pid}.pid")

def wait_for(count):
    while len(list(here.glob("*.pid"))) < count:
        time.sleep(0.01)

def report():
    Path(os.environ["HOSTMESH_FAILURES"]).write_text(f"{me}\\n")
    (here / "reported.pid").write_text(str(os.getpid()))

note(os.getpid())
"""


def run(tmp_path: Path, program: str, devices=(1, 1, 1), **options):
    """Runs a program in processes that leave their numbers; returns the result and the output."""
    (tmp_path / "program.py").write_text(PREAMBLE + textwrap.dedent(program))
    output = io.BytesIO()
    command = [sys.executable, str(tmp_path / "program.py"), "--an", "argument"]
    options.setdefault("environment", {"HERE": str(tmp_path)})
    result = _run.run(command, devices, output=output, **options)
    assert [pid for pid in pids(tmp_path) if is_alive(pid)] == []
    return result, output.getvalue()


def pids(tmp_path: Path) -> list[int]:
    return [int(path.read_text()) for path in tmp_path.glob("*.pid")]


def is_alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return state.stdout.strip()[:1] not in ("", "Z")  # who reaps an orphan is not the launcher's


def until(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.01)


def signals_once(tmp_path: Path, count: int, *numbers: int) -> threading.Thread:
    """Sends signals to this process, as a terminal would, once `count` processes are up."""

    def send() -> None:
        until(lambda: len(pids(tmp_path)) >= count)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(0.2)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.fixture(autouse=True)
def interrupts_are_not_ignored():
    # They are where the tests run as a shell's background job, and the launcher keeps to that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_each_process_has_its_place_and_runs_as_under_python(tmp_path: Path):
    program = """
    names = ["PROCESSES", "PROCESS", "DEVICES"]
    print(*[os.environ["HOSTMESH_" + n] for n in names], os.environ["JAX_NUM_CPU_DEVICES"])
    print(__name__, sys.argv[1:], sys.argv[0] == __file__, os.environ["HOSTMESH_COORDINATOR"])
    """
    port = free_port()
    result, output = run(tmp_path, program, devices=(2, 2, 1, 1), port=port)
    lines = output.decode().splitlines()
    for process, devices in enumerate((2, 2, 1, 1)):
        assert [line[4:] for line in lines if line.startswith(f"[{process}] ")] == [
            f"4 {process} {devices} {devices}",
            f"__main__ ['--an', 'argument'] True 127.0.0.1:{port}",
        ]
    assert result.status == 0
    assert result.first_failure is None
    assert [(e.process, e.status, e.stopped) for e in result.exits] == [
        (p, 0, False) for p in range(4)
    ]
    assert _outcome.summary(result) == ""


def test_output_survives(tmp_path: Path):
    program = """
    if me == 1:
        out = sys.stdout.buffer
        out.write(b"\\xff\\xfe\\n\\n" + b"x" * 2_000_000 + b"\\n")
        print("to stderr", file=sys.stderr)
        out.write(b"no newline at the end")
    """
    _, output = run(tmp_path, program, devices=(1, 1))
    expected = [b"\xff\xfe", b"", b"x" * 2_000_000, b"to stderr", b"no newline at the end"]
    assert output == b"".join(b"[1] " + line + b"\n" for line in expected)


def test_output_comes_while_the_program_runs(tmp_path: Path):
    program = """
    print("here")
    until = time.monotonic() + 30
    while not (here / "seen").exists() and time.monotonic() < until:
        time.sleep(0.01)
    sys.exit(not (here / "seen").exists())
    """

    class Output(io.BytesIO):
        def write(self, text) -> int:
            if b"here" in text:
                (tmp_path / "seen").touch()
            return len(text)

    (tmp_path / "program.py").write_text(PREAMBLE + textwrap.dedent(program))
    command = [sys.executable, str(tmp_path / "program.py")]
    env = {"HERE": str(tmp_path)}
    assert _run.run(command, [1], output=Output(), environment=env).status == 0


def test_lines_of_every_jax_run_are_shown_on_request_only(tmp_path: Path):
    gloo = (
        "[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3"
    )
    mixed = gloo.replace("Rank 0", "Rank [Gloo] Rank 0")
    program = f"print({gloo!r}); print({mixed!r}); print('kept: [Gloo] Rank')"
    assert run(tmp_path, program, devices=(1,))[1].decode() == "[0] kept: [Gloo] Rank\n"
    shown = run(tmp_path, program, devices=(1,), verbose=True)[1].decode()
    assert shown.splitlines() == [f"[0] {gloo}", f"[0] {mixed}", "[0] kept: [Gloo] Rank"]


def test_a_line_is_kept_where_such_a_line_comes_before_its_newline(tmp_path: Path):
    """`print` writes the newline on its own where the output is not buffered."""
    gloo = (
        "[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3"
    )
    program = f"print('86 86', end=''); print({gloo!r}); print(); print('end')"
    assert run(tmp_path, program, devices=(1,))[1].decode() == "[0] 86 86\n[0] end\n"


def test_what_was_torn_from_such_a_line_is_not_shown_either(tmp_path: Path):
    gloo = (
        "[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3"
    )
    touching = (
        "[Gloo] Rank [Gloo] Rank 75 is connected to  is connected to 7 peer ranks.  peer ranks. "
    )
    lines = ["", gloo[:-1] + gloo, "3", "shown", "3", gloo + gloo, "", "", gloo[:-1], "8 3", "end"]
    program = f"for line in {[*lines, '3', touching, '7', '6']}: print(line)"
    shown = run(tmp_path, program, devices=(1,))[1].decode().splitlines()
    assert [line[4:] for line in shown] == ["", "shown", "3", "", "8 3", "end", "6"]


def test_last_lines_end_with_the_programs_own_error_where_jax_aborts_it_then(tmp_path: Path):
    error = ["Traceback (most recent call last):", "ValueError: bad luck"]
    abort = [
        "E1202 22:27:33.19  136 coordination_service_agent.cc:289] Polled an error",
        "F1202 22:27:33.19  136 client.h:80] Terminating process because the JAX distributed",
        "Fatal Python error: Aborted",
    ]
    for printed, kept in ((error + abort, error), (abort, abort)):
        program = f"for line in {printed}: print(line)\nsys.exit(1)"
        result, output = run(tmp_path, program, devices=(1,))
        assert result.exits[0].last_lines == tuple(kept)
        assert output.decode().splitlines() == [f"[0] {line}" for line in printed]


def test_the_first_failure_in_time_is_blamed_and_not_those_that_follow(tmp_path: Path):
    program = """
    if me == 2:
        wait_for(5)
        try:
            while True:  # process 3 is there
                os.kill(int(next(here.glob("3-*.pid")).read_text()), 0)
                time.sleep(0.01)
        except ProcessLookupError:
            pass
        print("a last word", file=sys.stderr)
        sys.exit(7)
    if me == 0:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
        (here / "ready.pid").write_text(str(os.getpid()))
    if me == 3:
        sys.exit(0)
    time.sleep(60)
    """
    result, _ = run(tmp_path, program, devices=(1, 1, 1, 1))
    assert result.first_failure == result.exits[2]
    assert result.status == 7
    assert [e.status for e in result.exits] == [9, 128 + signal.SIGTERM, 7, 0]
    assert [e.stopped for e in result.exits] == [True, True, False, False]
    assert result.exits[2].last_lines == ("a last word",)
    text = _outcome.summary(result)
    assert re.match(
        r"hostmesh run: process 2 of 4 failed first: exit status 7 after \d+\.\d s", text
    )
    assert text.endswith(
        "  a last word\nended before: 3: exit status 0\nended then: 0: exit status 9, 1: SIGTERM"
    )


def test_who_reports_an_error_first_is_blamed_though_another_ends_before(tmp_path: Path):
    program = """
    if me == 0:
        report()
        time.sleep(1)  # as an interpreter with much to tear down
        print("my fault")
        sys.exit(1)
    wait_for(3)
    sys.exit(8)
    """
    result, _ = run(tmp_path, program, devices=(1, 1))
    assert result.first_failure == result.exits[0]
    assert (result.status, result.exits[1].status) == (1, 8)
    assert [e.stopped for e in result.exits] == [False, True]
    assert result.exits[0].last_lines == ("my fault",)


def test_who_raised_has_the_status_of_that_though_jax_aborts_it_then(tmp_path: Path):
    program = """
    if me == 1:
        report()
        os.abort()
    time.sleep(60)
    """
    result, _ = run(tmp_path, program, devices=(1, 1))
    assert result.first_failure == result.exits[1]
    assert result.status == result.exits[1].status == 1


def test_who_is_killed_is_blamed_though_another_reports_an_error(tmp_path: Path):
    program = """
    if me == 0:
        report()
        time.sleep(60)
    wait_for(3)
    os.kill(os.getpid(), signal.SIGSEGV)
    """
    result, _ = run(tmp_path, program, devices=(1, 1))
    assert result.first_failure == result.exits[1]
    assert result.status == 128 + signal.SIGSEGV


def test_a_process_that_is_killed_has_the_status_of_a_shell(tmp_path: Path):
    killer = threading.Thread(
        target=lambda: (
            until(lambda: len(pids(tmp_path)) == 2),
            os.kill(int(next(tmp_path.glob("1-*.pid")).read_text()), signal.SIGKILL),
        )
    )
    killer.start()
    result, _ = run(tmp_path, "time.sleep(60)", devices=(1, 1))
    killer.join()
    assert result.status == 128 + 9
    assert result.first_failure == result.exits[1]
    assert "process 1 of 2 failed first: SIGKILL after" in _outcome.summary(result)
    assert "(it printed nothing)" in _outcome.summary(result)


def test_who_does_not_end_when_asked_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_run, "GRACE", 0.5)
    program = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (here / f"deaf{me}").touch()
    while len(list(here.glob("deaf*"))) < 2:
        time.sleep(0.01)
    time.sleep(60 if me else 0)
    sys.exit(1)
    """
    result, _ = run(tmp_path, program, devices=(1, 1))
    assert [e.status for e in result.exits] == [1, 128 + signal.SIGKILL]


@pytest.mark.parametrize("status", [0, 4])
def test_the_children_of_the_processes_end_too(tmp_path: Path, status: int):
    program = f"""
    child = subprocess.Popen([sys.executable, "-c", "import time; print('up'); time.sleep(600)"])
    note(child.pid)
    wait_for(4)
    sys.exit({status})
    """
    result, _ = run(tmp_path, program, devices=(1, 1))  # which asserts that none is left
    assert len(pids(tmp_path)) == 4
    assert result.status == status


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_ends_the_run(tmp_path: Path, number: signal.Signals):
    program = f"""
    def handle(*_):
        print("got it")
        sys.exit(3)
    signal.signal({int(number)}, handle)
    (here / f"{{me}}.pid").write_text(str(os.getpid()))
    time.sleep(60)
    """
    sender = signals_once(tmp_path, 4, number)
    result, output = run(tmp_path, program, devices=(1, 1))
    sender.join()
    assert sorted(output.splitlines()) == [b"[0] got it", b"[1] got it"]
    assert result.status == 128 + number
    assert result.first_failure is None
    assert _outcome.summary(result).startswith(f"hostmesh run: stopped by {number.name}\n")


def test_a_second_interrupt_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_run, "GRACE", 50.0)
    program = """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    (here / f"{me}.pid").write_text(str(os.getpid()))
    time.sleep(600)
    """
    sender = signals_once(tmp_path, 4, signal.SIGINT, signal.SIGINT)
    result, _ = run(tmp_path, program, devices=(1, 1))
    sender.join()
    assert [e.status for e in result.exits] == [128 + signal.SIGKILL] * 2
    assert result.status == 128 + signal.SIGINT
    assert result.seconds < 50.0


def test_a_user_signal_is_passed_on_and_ends_nothing(tmp_path: Path):
    program = """
    signal.signal(signal.SIGUSR1, lambda *_: (here / f"{me}.got").touch())
    (here / f"{me}.pid").write_text(str(os.getpid()))
    while not (here / f"{me}.got").exists():
        time.sleep(0.01)
    """
    sender = signals_once(tmp_path, 4, signal.SIGUSR1)
    result, _ = run(tmp_path, program, devices=(1, 1))
    sender.join()
    assert result.status == 0


def test_handlers_of_the_caller_are_back_afterwards(tmp_path: Path):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run(tmp_path, "", devices=(1,))
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_launcher_that_is_killed_leaves_nobody(tmp_path: Path):
    (tmp_path / "program.py").write_text(
        PREAMBLE
        + textwrap.dedent("""
        note(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
        time.sleep(600)
        """)
    )
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from hostmesh import _run; _run.run([sys.executable, sys.argv[1]], [1, 1])",
            str(tmp_path / "program.py"),
        ],
        env={**os.environ, "HERE": str(tmp_path)},
    )
    until(lambda: len(pids(tmp_path)) == 4, seconds=60.0)
    launcher.kill()
    launcher.wait()
    until(lambda: not any(map(is_alive, pids(tmp_path))))


def test_at_the_time_out_each_process_shows_its_stacks(tmp_path: Path):
    program = """
    import resource

    os.chdir(here)  # to which a core would go
    limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))

    def stuck_here():
        print(f"{me} waits")
        time.sleep(60)
    if me < 2:
        stuck_here()
    """
    result, output = run(tmp_path, program, timeout=5.0)
    assert result.status == 124
    assert result.first_failure is None
    assert [e.status for e in result.exits] == [128 + signal.SIGABRT] * 2 + [0]
    stacks = output.decode().partition("Fatal Python error")[2].splitlines()
    assert [line[:3] for line in stacks[1:]] == sorted(line[:3] for line in stacks[1:])
    for process in (0, 1):
        assert sum(line.startswith(f"[{process}]") and "stuck_here" in line for line in stacks) == 1
    assert not any(line.startswith("[2]") for line in stacks)
    assert list(tmp_path.glob("core*")) == []
    assert re.match(r"hostmesh run: stopped at the time-out, after \d", _outcome.summary(result))


def test_one_whose_python_is_over_is_named_at_the_time_out(tmp_path: Path):
    program = """
    if me == 1:
        import atexit, ctypes
        libc = ctypes.CDLL(None)
        libc.__cxa_atexit(ctypes.cast(libc.pause, ctypes.c_void_p), None, None)  # at C's end
    """
    result, output = run(tmp_path, program, devices=(1, 1), timeout=5.0)
    assert (result.status, result.exits[0].status) == (124, 0)
    assert output.decode().splitlines()[-1].startswith("[1] (no Python stack: ")


def test_it_is_told_once_that_others_run_while_one_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(_run, "LINGER", 0.1)
    program = """
    if me < 2:
        while not (here / "told").exists():
            time.sleep(0.01)
    """
    told: list[str] = []

    def listen(text, **_):
        told.append(text)
        (tmp_path / "told").touch()

    monkeypatch.setattr(_run, "print", listen, raising=False)
    result, _ = run(tmp_path, program, timeout=60.0)
    assert result.status == 0
    assert [re.sub(r"\d+ s ago", "N s ago", text) for text in told] == [
        "hostmesh run: process 2 ended N s ago, processes 0-1 still run"
    ]


@pytest.mark.parametrize("status", [75, -9])
def test_a_watchdog_that_ended_the_processes_has_said_why(tmp_path: Path, status: int):
    program = f"""
    if me == 1:
        (Path(os.environ["HOSTMESH_NOTES"]) / "why").write_text("watchdog: process 0 of 2 sleeps")
        os.kill(os.getpid(), 9) if {status} < 0 else sys.exit({status})
    time.sleep(60)
    """
    result, _ = run(tmp_path, program, devices=(1, 1))
    assert result.status == 75
    ended = {75: "exit status 75", -9: "SIGKILL"}[status]
    assert re.fullmatch(
        r"hostmesh run: ended by the watchdog, after \S+ s:\n  process 0 of 2 sleeps\n"
        rf"ended before: 1: {ended}\nended then: 0: SIGTERM",
        _outcome.summary(result),
    )


def test_the_blamed_one_that_does_not_end_does_not_give_the_status_of_its_killing(tmp_path: Path):
    program = """
    if me == 0:
        report()
        time.sleep(60)
    wait_for(3)
    sys.exit(8)
    """
    result, _ = run(tmp_path, program, devices=(1, 1), grace=0.5)
    assert (result.status, result.first_failure) == (8, result.exits[0])
    assert "failed first: SIGKILL, as it did not end, after" in _outcome.summary(result)


def test_witnesses_know_whom_the_launcher_ends(tmp_path: Path):
    program = """
    if me:
        from hostmesh._watch import _witness
        kept = _witness.Witness(0, str(here / f"first{me}"), str(here / f"own{me}"), me)
        kept.know(f"{me} ended, last seen {_witness.AGO}7{_witness.AGO} s before\\n", "")
        time.sleep(0.5)  # for it to read that
        note(kept._process.pid)
    if me == 1:
        wait_for(5)
        os.kill(os.getpid(), 9)
    time.sleep(60)
    """
    (tmp_path / "program.py").write_text(PREAMBLE + textwrap.dedent(program))
    output = io.BytesIO()
    command = [sys.executable, str(tmp_path / "program.py")]
    _run.run(command, [1, 1, 1], output=output, environment={"HERE": str(tmp_path)})
    told = re.fullmatch(r"\[1\] 1 ended, last seen (\S+) s before\n", output.getvalue().decode())
    assert told
    assert float(told[1]) >= 7.4  # the witness heard of it half a second before, at least


def test_colour_is_for_terminals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "program.py").write_text("print('hello')")
    command = [sys.executable, str(tmp_path / "program.py")]

    def shown() -> bytes:
        reader, writer = os.openpty()
        with open(writer, "wb") as terminal:
            _run.run(command, [1], output=terminal)
        text = os.read(reader, 1000)
        os.close(reader)
        return text

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert shown() == b"\x1b[31m[0]\x1b[0m hello\r\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown() == b"[0] hello\r\n"


def test_nobody_reads_the_output(tmp_path: Path):
    (tmp_path / "program.py").write_text(PREAMBLE + "while time.sleep(0.01) is None: print('line')")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb", buffering=0) as output:
        command = [sys.executable, str(tmp_path / "program.py")]
        env = {"HERE": str(tmp_path)}
        result = _run.run(command, [1, 1], output=output, environment=env)
    assert result.status == 128 + signal.SIGPIPE
    assert [e.status for e in result.exits] == [128 + signal.SIGTERM] * 2
    assert not any(map(is_alive, pids(tmp_path)))


def test_a_command_that_cannot_be_started_is_an_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        _run.run([str(tmp_path / "nowhere")], [1, 1])


def test_the_numbers_of_many_processes_line_up():
    assert list(_lines.prefixes(11, False))[::10] == [b"[ 0] ", b"[10] "]
