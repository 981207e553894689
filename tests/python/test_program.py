"""The process of a command: its output, its errors and its signals, with a script in place of the program."""

import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from colossal import program
from colossal.error import Error


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Returns a function that makes a Python script the program."""

    def use(text):
        file = tmp_path / "program"
        file.write_text(f"#!{sys.executable}\nimport os, signal, sys, time\n{text}\n")
        file.chmod(0o755)
        monkeypatch.setattr(program, "path", lambda: file)

    return use


def test_output_errors_and_log_are_told_apart(script, capsys, caplog):
    caplog.set_level(logging.DEBUG, "colossal")
    script(
        "print(sys.argv[1:], flush=True)\n"
        "os.write(1, b'\\xe2'); os.write(1, b'\\x98\\x83')\n"  # one character in two writes
        "sys.stderr.write('12:00:00 W  careful\\nplain\\n12:00:01 I  rank 0  ready\\nlast')"
    )
    assert program.run(["a", "b c"]) == "['a', 'b c']\n\u2603"
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "careful"),
        ("INFO", "rank 0  ready"),
    ]
    assert capsys.readouterr() == ("", "plain\nlast\n")


@pytest.mark.parametrize(
    "line, wanted",
    [
        ("colossal: [data] no file", ("data", "no file")),
        ("colossal: [config] --a.b: unknown key `a.b`", ("config", "unknown key `a.b`")),
        ("colossal plan: --x is unknown", ("plan", "--x is unknown")),
        ("", ("program", "the program ended with status 3; the lines above tell why")),
    ],
)
def test_failures_raise_the_first_error(script, capsys, line, wanted):
    script(f"sys.stderr.write({line!r} + '\\ncolossal: [comm] a rank has ended\\n' * {bool(line)}); sys.exit(3)")
    with pytest.raises(Error) as caught:
        program.run([])
    assert (caught.value.component, caught.value.message) == wanted
    assert capsys.readouterr().err.strip() == ("colossal: [comm] a rank has ended" if line else "")


def test_killed_programs_are_errors(script):
    script("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(Error, match="ended with signal 9"):
        program.run([])


def test_messages_of_programs_that_succeed_are_shown(script, capsys):
    script("sys.stderr.write('colossal: [report] a picture is missing\\n')")
    program.run([])
    assert capsys.readouterr().err == "colossal: [report] a picture is missing\n"


def test_progress_in_a_notebook_is_one_line(script, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    script("sys.stderr.write('step  9/10  loss 1.25\\nstep 10/10  loss 1\\ndone\\n')")
    program.run([])
    assert sys.stderr.getvalue() == "\rstep  9/10  loss 1.25\rstep 10/10  loss 1   \ndone\n"


def test_ctrl_c_is_passed_on_and_the_second_one_too(script, tmp_path):
    script(
        "got = []\n"
        "signal.signal(signal.SIGINT, lambda *_: got.append(1))\n"
        f"open({str(tmp_path / 'ready')!r}, 'w').close()\n"
        "while len(got) < 1: time.sleep(0.01)\n"
        f"open({str(tmp_path / 'first')!r}, 'w').close()\n"
        "while len(got) < 2: time.sleep(0.01)\n"
        f"open({str(tmp_path / 'second')!r}, 'w').close()\n"
    )

    def press():
        for name in ("ready", "first"):
            while not (tmp_path / name).exists():
                pass
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        program.run([])
    thread.join()
    assert (tmp_path / "second").exists()


def test_ctrl_c_while_the_program_starts_is_passed_on(script, tmp_path, monkeypatch):
    script(
        "got = []\n"
        "signal.signal(signal.SIGINT, lambda *_: got.append(1))\n"
        f"open({str(tmp_path / 'ready')!r}, 'w').close()\n"
        "while len(got) < 1: time.sleep(0.01)\n"
        f"open({str(tmp_path / 'first')!r}, 'w').close()\n"
    )
    start = subprocess.Popen

    def start_and_press(*words, **options):
        process = start(*words, **options)
        while not (tmp_path / "ready").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(program.subprocess, "Popen", start_and_press)
    with pytest.raises(KeyboardInterrupt):
        program.run([])
    assert (tmp_path / "first").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_missing_programs_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(program, "__file__", str(tmp_path / "program.py"))
    with pytest.raises(Error, match=r"\[program\].*install the package again"):
        program.run(["help"])
