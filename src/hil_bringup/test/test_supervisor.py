"""The supervisor with dummy processes: restarts, stopping, and nothing left behind."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hil_bringup.console import Console
from hil_bringup.graph import Respawn
from hil_bringup.supervisor import Limits, Process, Supervisor, exit_code

GENEROUS = 30.0
SOURCE = str(Path(__file__).resolve().parents[1])


def wait_until(condition: Callable[[], bool], what: str) -> None:
    pause, end = threading.Event(), time.monotonic() + GENEROUS
    while not condition():
        assert time.monotonic() < end, f"waited {GENEROUS} s for {what}"
        pause.wait(0.01)


def python(name: str, code: str, **options: object) -> Process:
    command = (sys.executable, "-S", "-u", "-c", textwrap.dedent(code))
    return Process(name, command, **options)  # type: ignore[arg-type]


class Run:
    """A supervisor with its output."""

    def __init__(self, folder: Path, processes: Sequence[Process], **options: object) -> None:
        self.lines: list[tuple[str, str]] = []
        self._reactions: list[tuple[str, int, Callable[[Supervisor], None]]] = []
        self._folder, self._processes, self._options = folder, processes, options

    def on(self, text: str, reaction: Callable[[Supervisor], None], times: int = 1) -> None:
        """React when the text has come so many times."""
        self._reactions.append((text, times, reaction))

    def go(self) -> int:
        async def run() -> int:
            options = {"stop_order": [], "limits": Limits(GENEROUS, GENEROUS), **self._options}
            self.supervisor = Supervisor(
                self._processes, environment=os.environ, folder=self._folder, show=self._show,
                **options,
            )  # type: ignore[arg-type]  # fmt: skip
            return await asyncio.wait_for(self.supervisor.run(), 2 * GENEROUS)

        return asyncio.run(run())

    def _show(self, name: str, line: str) -> None:
        self.lines.append((name, line))
        for text, times, reaction in self._reactions:
            if text in line and sum(text in each for _, each in self.lines) == times:
                reaction(self.supervisor)

    def said(self, name: str = "") -> str:
        return "\n".join(line for who, line in self.lines if who == name)


SLEEP = "import time; print('ready'); time.sleep(1000)"


def test_output_is_shown_and_kept(tmp_path: Path) -> None:
    run = Run(tmp_path, [python("a", "print('one'); print('two')", respawn=Respawn("never"))])
    assert run.go() == 0
    assert run.said("a") == "one\ntwo"
    log = (tmp_path / "a.log").read_text()
    assert "one\n" in log
    assert "ended with exit code 0" in log


def test_failed_process_is_restarted_with_growing_delay_until_the_limit(tmp_path: Path) -> None:
    policy = Respawn(delay=0.01, limit=3)
    run = Run(tmp_path, [python("a", "print('begun'); raise SystemExit(7)", respawn=policy)])
    assert run.go() == 7
    assert run.said("a").count("begun") == 4
    said = run.said()
    assert "a ended with exit code 7; starting it again in 0.0 s" in said
    assert "3 restarts in 60 s did not help; the graph ends" in said
    assert "| begun" in said, "the last lines of what died are shown"


def test_crash_report_says_what_a_person_needs(tmp_path: Path) -> None:
    code = """
    import faulthandler, os, signal
    faulthandler.enable()
    def in_the_depths():
        os.kill(os.getpid(), signal.SIGSEGV)
    print('before the end')
    in_the_depths()
    """
    run = Run(tmp_path, [python("a", code, respawn=Respawn("never"))])
    run.go()
    (path,) = tmp_path.glob("crash-a-*.txt")
    assert f"crash report: {path}" in run.said()
    text = path.read_text()
    assert text.startswith("a was ended by SIGSEGV\n")
    for expected in ("before the end", "in in_the_depths", "the graph ends", "Python 3."):
        assert expected in text


def test_every_crash_has_its_own_report_without_older_output(tmp_path: Path) -> None:
    code = "import os; print(f'I am {os.getpid()}'); raise SystemExit(1)"
    run = Run(tmp_path, [python("a", code, respawn=Respawn(delay=0.01, limit=2))])
    run.go()
    texts = [path.read_text() for path in tmp_path.glob("crash-a-*.txt")]
    assert len(texts) == 3
    assert all(len(re.findall(r"^I am \d", text, re.M)) == 1 for text in texts)


def test_no_crash_report_of_what_was_stopped_or_ended_well(tmp_path: Path) -> None:
    clean = python("b", "print('done')", respawn=Respawn("never"), required=False)
    run = Run(tmp_path, [python("a", SLEEP), clean])
    run.on("goes on without it", lambda s: s.stop())
    run.go()
    assert not list(tmp_path.glob("crash-*"))


def test_delays_double_up_to_the_longest(tmp_path: Path) -> None:
    policy = Respawn(delay=0.1, longest_delay=0.3, limit=3)
    run = Run(tmp_path, [python("a", "raise SystemExit(1)", respawn=policy)])
    run.go()
    delays = [line.rsplit("in ", 1)[1] for _, line in run.lines if "starting it again" in line]
    assert delays == ["0.1 s", "0.2 s", "0.3 s"]


def test_clean_end_is_final_under_on_failure_and_restarted_under_always(tmp_path: Path) -> None:
    code = "print('begun')"
    run = Run(tmp_path, [python("a", code)])
    assert run.go() == 0
    assert run.said("a") == "begun"
    run = Run(tmp_path, [python("a", code, respawn=Respawn("always", delay=0.01, limit=2))])
    run.go()
    assert run.said("a").count("begun") == 3


def test_wrong_configuration_is_not_tried_again(tmp_path: Path) -> None:
    run = Run(tmp_path, [python("a", "raise SystemExit(2)", respawn=Respawn("always"))])
    assert run.go() == 2
    assert "starting it again" not in run.said()


def test_exit_code_says_which_signal(tmp_path: Path) -> None:
    code = "import os; os.kill(os.getpid(), 9)"
    run = Run(tmp_path, [python("a", code, respawn=Respawn("never"))])
    assert run.go() == 128 + 9
    assert "a was ended by SIGKILL; the graph ends" in run.said()
    assert exit_code(-15) == 143


def test_death_of_what_is_not_required_does_not_end_the_graph(tmp_path: Path) -> None:
    optional = python("b", "raise SystemExit(5)", respawn=Respawn("never"), required=False)
    run = Run(tmp_path, [python("a", SLEEP), optional])
    run.on("goes on without it", lambda s: s.stop())
    assert run.go() == 0


def test_missing_program_ends_the_graph(tmp_path: Path) -> None:
    run = Run(tmp_path, [Process("a", ("/nowhere/at/all",)), python("b", SLEEP)])
    assert run.go() == 1
    assert "a does not start" in run.said()


def test_stopping_follows_the_order(tmp_path: Path) -> None:
    code = """
        import signal, sys
        def end(*_): print("stopping"); sys.exit(0)
        signal.signal(signal.SIGINT, end)
        print("ready")
        while True: signal.pause()
    """
    run = Run(tmp_path, [python(n, code) for n in "abc"], stop_order=[["c"], ["a"], ["b"]])
    run.on("ready", lambda s: s.stop(), times=3)
    assert run.go() == 0
    assert [who for who, line in run.lines if line == "stopping" and who] == ["c", "a", "b"]


def test_deaf_process_is_killed_after_the_limits(tmp_path: Path) -> None:
    code = """
        import signal, time
        for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
        print("ready")
        time.sleep(1000)
    """
    run = Run(tmp_path, [python("a", code)], limits=Limits(0.1, 0.1))
    run.on("ready", lambda s: s.stop())
    assert run.go() == 0
    assert "a: not ended 0 s after SIGINT" in run.said()
    assert "a: not ended 0 s after SIGTERM" in run.said()


def test_second_and_third_stop_do_not_wait(tmp_path: Path) -> None:
    code = """
        import signal, time
        for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
        print("ready")
        time.sleep(1000)
    """
    run = Run(tmp_path, [python("a", code)], limits=Limits(1000.0, 1000.0))
    run.on("ready", lambda s: [s.stop(), s.stop(), s.stop()])
    assert run.go() == 0


def test_what_a_process_has_started_ends_with_it(tmp_path: Path) -> None:
    code = """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
        print("child", child.pid)
    """
    run = Run(tmp_path, [python("a", code)])
    assert run.go() == 0
    pid = int(run.said("a").split()[1])
    wait_until(lambda: not running(pid), "the grandchild to end")


def test_very_long_lines_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    code = """
        import sys
        sys.stdout.write("x" * 3_000_000 + "\\n"); sys.stdout.flush()
        sys.stdout.buffer.write(b"\\xff\\xfe\\n")
        print("end")
    """
    run = Run(tmp_path, [python("a", code)])
    assert run.go() == 0
    assert run.said("a").endswith("end")


SUPERVISE = """
    import asyncio, os, sys
    from pathlib import Path
    from hil_bringup.supervisor import Process, Supervisor
    code = sys.argv[2]
    processes = [Process(n, (sys.executable, "-S", "-u", "-c", code)) for n in ("a", "b")]
    async def run():
        show = lambda name, line: print(name, line, flush=True)
        return await Supervisor(processes, [], os.environ, Path(sys.argv[1]), show).run()
    sys.exit(asyncio.run(run()))
"""
CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
try:
    print("pids", os.getpid(), child.pid)
    time.sleep(1000)
finally:
    print("closed")
"""


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """A supervisor in a process of its own, and the pids of all that it has started."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SUPERVISE), str(tmp_path), CHILD],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert process.stdout is not None
    pids: list[int] = []
    while len(pids) < 4:
        line = process.stdout.readline()
        assert line, "the supervisor ended"
        if " pids " in line:
            pids += [int(word) for word in line.split()[2:]]
    yield process, pids
    process.kill()
    process.wait()
    process.stdout.close()
    for pid in pids:
        if running(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stop_signal_leaves_nothing(
    supervised: tuple["subprocess.Popen[str]", list[int]], number: signal.Signals
) -> None:
    process, pids = supervised
    process.send_signal(number)
    output, _ = process.communicate(timeout=GENEROUS)
    assert process.returncode == 0
    assert output.count("closed") == 2, "both had time to close"
    for pid in pids:
        wait_until(lambda pid=pid: not running(pid), f"{pid} to end")  # type: ignore[misc]


def test_killed_supervisor_leaves_nothing(
    supervised: tuple["subprocess.Popen[str]", list[int]],
) -> None:
    process, pids = supervised
    process.kill()
    process.wait(GENEROUS)
    for pid in pids:
        wait_until(lambda pid=pid: not running(pid), f"{pid} to end")  # type: ignore[misc]


class Terminal:
    """A stream that is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing to do."""


def test_console_prefixes_and_colours() -> None:
    stream = Terminal()
    console = Console(["actor", "learner"], stream)  # type: ignore[arg-type]
    console.show("actor", "[WARN] late")
    console.show("learner", "[INFO] trains")
    assert "actor   | " in stream.text
    assert "\x1b[33m[WARN] late\x1b[0m" in stream.text
    assert "trains" in stream.text
    assert "[INFO]" not in stream.text


def test_quiet_console_shows_errors_and_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(["actor"], sys.stdout, quiet=True)
    console.show("actor", "[INFO] fine")
    console.show("actor", "[ERROR] broken")
    console.show("", "stopping")
    assert capsys.readouterr().out == "actor | [ERROR] broken\nhil   | stopping\n"
