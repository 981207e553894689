"""Functions that score answers: lines over a socket, with a script in place of the program."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from colossal import program
from colossal.error import Error
from colossal.run import train

PROGRAM = """
import json, os, signal, socket, sys, time
number = [int(word.split("=")[1]) for word in sys.argv if word.startswith("--reward-socket=")][0]
function = socket.socket(fileno=number)
lines = function.makefile("r")
def ask(*answers):
    for answer in answers:
        function.sendall((json.dumps(answer) + "\\n").encode())
    return [json.loads(lines.readline()) for answer in answers]
def fail(reply):
    sys.stderr.write("colossal: [reward] the function that scores answers failed: " + reply["error"] + "\\n")
    sys.exit(1)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Returns a function that makes a Python script the program."""

    def use(text):
        file = tmp_path / "program"
        file.write_text(f"#!{sys.executable}\n{PROGRAM}\n{text}\n")
        file.chmod(0o755)
        monkeypatch.setattr(program, "path", lambda: file)

    return use


@pytest.fixture
def config(tmp_path):
    return {"run.folder": str(tmp_path / "run")}


def replies(text):
    return [json.loads(line) for line in text.splitlines()]


ASK = "for reply in ask(*[{'id': str(i), 'prompt': 'q', 'completion': 'a' * i, 'answer': 'aa'} for i in range(4)]):"


def test_functions_score_answers_in_the_calling_thread(script, config, capsys):
    script(f"{ASK} print(json.dumps(reply))")
    threads, answers = set(), []

    def score(answer):
        threads.add(threading.current_thread())
        answers.append(answer)
        return len(answer["completion"])

    train(config, reward=score)
    assert answers[3] == {"id": "3", "prompt": "q", "completion": "aaa", "answer": "aa"}
    assert threads == {threading.current_thread()}
    assert replies(capsys.readouterr().out) == [{"id": str(i), "score": float(i)} for i in range(4)]


class Scalar:
    """A number as NumPy and torch have them."""

    def __float__(self):
        return 0.25


@pytest.mark.parametrize(
    "result, members",
    [
        (True, {"score": 1.0}),
        (3, {"score": 3.0}),
        (Scalar(), {"score": 0.25}),
        (None, {"score": None}),
        ({"score": None, "text": "no \u2603"}, {"score": None, "scores": None, "text": "no \u2603"}),
        ({"score": 1, "scores": {"x": Scalar()}}, {"score": 1.0, "scores": {"x": 0.25}, "text": None}),
    ],
)
def test_results_of_every_kind_become_lines(script, config, capsys, result, members):
    script("print(json.dumps(ask({'id': 'a'})[0]))")
    train(config, reward=lambda answer: result)
    assert replies(capsys.readouterr().out) == [{"id": "a", **members}]


@pytest.mark.parametrize(
    "result, message",
    [
        ("1", "must return a finite number, None or a dict: got '1'"),
        (float("nan"), "must return a finite number, None or a dict: got nan"),
        ({}, "must have score, and may have scores and text: got no key"),
        ({"score": 1, "reason": "x"}, "must have score, and may have scores and text: got reason, score"),
        ({"score": "high"}, "the score must be a finite number, or None for no score: got 'high'"),
        ({"score": 1, "scores": [1]}, "scores must be a dict of finite numbers: got [1]"),
        ({"score": 1, "scores": {"x": None}}, "scores must have finite numbers, x too: got None"),
        ({"score": 1, "text": 5}, "text must be a text: got 5"),
        ({"score": 1, "text": "x" * (1 << 20)}, "must fit into 1 MiB: got 1048"),
    ],
)
def test_other_results_are_errors(script, config, result, message):
    script("fail(ask({'id': 'a'})[0])")
    with pytest.raises(Error) as caught:
        train(config, reward=lambda answer: result)
    assert caught.value.component == "reward" and message in caught.value.message


def test_exceptions_end_the_run_and_are_raised(script, config, capsys):
    script(f"{ASK}\n  if 'error' in reply: fail(reply)")
    failure = KeyError("answer")
    cause = ValueError("first")
    failure.__cause__ = cause

    def score(answer):
        if answer["id"] == "1":
            raise failure
        return 0

    with pytest.raises(KeyError) as caught:
        train(config, reward=score)
    assert caught.value is failure and failure.__cause__ is cause
    assert "colossal: [reward] the function that scores answers failed: KeyError: 'answer'" in capsys.readouterr().err


def test_exceptions_that_the_program_accepts_are_not_raised(script, config, capsys):
    script(f"{ASK} print(json.dumps(reply))")
    train(config, reward=lambda answer: 1 / int(answer["id"]))
    assert replies(capsys.readouterr().out)[0] == {"id": "0", "error": "ZeroDivisionError: division by zero"}


def test_other_errors_of_the_program_are_its_own(script, config):
    script(f"{ASK} pass\nsys.stderr.write('colossal: [data] no file\\n'); sys.exit(1)")
    with pytest.raises(Error, match="no file"):
        train(config, reward=lambda answer: 1 / int(answer["id"]))


# Both ends send more than the socket holds before they read, and the program prints more than a pipe holds.
def test_neither_end_waits_for_the_other(script, config):
    script(
        "import threading\n"
        "texts = ['x' * 100_000] * 10\n"
        "asked = threading.Thread(target=lambda: [function.sendall((json.dumps({'id': 'a', 'completion': text}) +"
        " '\\n').encode()) for text in texts])\n"
        "asked.start()\n"
        "sys.stderr.write('y\\n' * 50_000)\n"
        "asked.join()\n"
        "assert all(json.loads(lines.readline())['text'] == text for text in texts)"
    )
    train(config, reward=lambda answer: {"score": 0, "text": answer["completion"]})


# The program ends its step after the first interrupt, so it needs all scores.
def test_ctrl_c_in_a_function_ends_the_step_first(script, config, capsys):
    script(
        "got = []\n"
        "signal.signal(signal.SIGINT, lambda *_: got.append(1))\n"
        f"{ASK} print(reply['score'], len(got))\n"
    )
    calls = []

    def score(answer):
        calls.append(answer["id"])
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return 1

    with pytest.raises(KeyboardInterrupt):
        train(config, reward=score)
    assert calls == ["0", "1", "1", "2", "3"]
    assert capsys.readouterr().out == "1.0 1\n" * 4


def test_a_second_ctrl_c_calls_no_function(script, config, tmp_path):
    first = tmp_path / "first"
    script(
        "def end(*_):\n"
        f"  if os.path.exists({str(first)!r}): os._exit(130)\n"
        f"  open({str(first)!r}, 'w').close()\n"
        "signal.signal(signal.SIGINT, end)\n"
        "ask({'id': 'a'})\n"
    )
    calls = []

    def score(answer):
        calls.append(1)
        while len(calls) == 2 and not first.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config, reward=score)
    assert len(calls) == 2


def test_programs_that_end_are_noticed(script, config):
    script("function.sendall(b'{\"id\": \"a\"}\\n' * 100)\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(Error, match="ended with signal 9"):
        train(config, reward=lambda answer: 1)


def test_rewards_must_be_functions(config):
    with pytest.raises(Error, match=r"^\[reward\] reward must be a function of one answer: got float$"):
        train(config, reward=0.5)


def test_descriptors_are_closed(script, config, monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    script(f"{ASK} pass")
    train(config, reward=lambda answer: 0)

    def fail(*words, **options):
        raise OSError("no process")

    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(OSError):
        train(config, reward=lambda answer: 0)
    assert len(os.listdir("/proc/self/fd")) == before


# With the program itself.
def test_objectives_without_answers_refuse_functions(config, tmp_path):
    (tmp_path / "text.txt").write_text("To be, or not to be, that is the question. " * 200)
    model = {"name": "llama-tiny", "layers": 1, "hidden": 32, "heads": 2, "kv_heads": 2, "positions": 32}
    data = {"path": tmp_path / "text.txt", "tokenizer": "bytes", "sequence": 32}
    with pytest.raises(Error, match="must be for a method that draws answers: got the objective next-token"):
        train(config | {"model": model, "data": data}, reward=lambda answer: 0)
