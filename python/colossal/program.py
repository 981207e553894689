"""Runs the compiled program of this package as a process of its own. What it prints becomes output of Python."""

from __future__ import annotations

import codecs
import ctypes
import logging
import os
import pathlib
import re
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from .error import Error

if TYPE_CHECKING:
    from .reward import Scoring

_POLL = 0.1  # seconds between two calls of `poll`
_LEVELS = {"D": logging.DEBUG, "I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR}
_LOG = re.compile(r"\d\d:\d\d:\d\d ([DIWE])  (.*)")
_ERROR = re.compile(r"colossal: \[([^\]]+)\] (.*)")
_MISUSE = re.compile(r"colossal ([a-z-]+): (.*)")
_PROGRESS = re.compile(r"step +\d+/\d+ ")
_PR_SET_PDEATHSIG = 1


def path() -> pathlib.Path:
    """Returns the path of the program. Errors ("program"): the package has none."""
    program = pathlib.Path(__file__).with_name("colossal")
    if not program.exists():
        raise Error("program", f"the package must hold the program: got no {program}; install the package again")
    return program


def run(words: Sequence[str]) -> str:
    """Runs a command to its end and returns what it printed on standard output.

    Errors: `colossal.Error` with the command's message. Ctrl-C ends the command and raises KeyboardInterrupt.
    """
    shown: list[str] = []
    with Process(words, shown.append) as process:
        process.wait()
    return "".join(shown)


def without_flag(message: str) -> str:
    """Returns the message about a key without the flag that set it, because the caller gave no flag."""
    return re.sub(r"^--[\w.]+: (?=.*`)", "", message)


class Process:
    """A command that runs. At the end of a ``with`` block that raises, it is interrupted and waited for.

    Standard output goes to `on_output`. The log goes to ``logging.getLogger("colossal")``, and the rest of standard
    error to `sys.stderr`. If this process dies, the command is told to stop, as by Ctrl-C. `scoring` scores answers of
    the command until its end, also after an interrupt, because the command first ends its step.
    """

    def __init__(
        self, words: Sequence[str], on_output: Callable[[str], object], scoring: Scoring | None = None
    ) -> None:
        self._words = words
        self._on_output = on_output
        self._scoring = scoring
        self._messages = _Messages()

    def __enter__(self) -> Process:
        # A Ctrl-C while the command starts waits until it can be passed on.
        early: list[tuple[int, FrameType | None]] = []
        before = signal.getsignal(signal.SIGINT)
        waits = callable(before) and threading.current_thread() is threading.main_thread()
        if waits:
            signal.signal(signal.SIGINT, lambda number, frame: early.append((number, frame)))
        try:
            self._process = self._start()
        except BaseException:
            if waits:
                signal.signal(signal.SIGINT, before)
            raise
        try:
            if waits:
                signal.signal(signal.SIGINT, before)
            for number, frame in early:
                before(number, frame)  # type: ignore[operator, misc]
        except BaseException:
            self._stop()
            raise
        return self

    def _start(self) -> subprocess.Popen[bytes]:
        set_death_signal, parent = ctypes.CDLL(None).prctl, os.getpid()

        def follow_parent() -> None:
            set_death_signal(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before the call
                os.kill(os.getpid(), signal.SIGTERM)

        # A session of its own: Ctrl-C in a terminal reaches this process alone, which passes it on once.
        process = subprocess.Popen(
            [path(), *self._words, *(self._scoring.words if self._scoring else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=follow_parent,
            pass_fds=[self._scoring.passed] if self._scoring else [],
        )
        if self._scoring:
            self._scoring.has_started()
        return process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stop()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def wait(self, poll: Callable[[], object] = lambda: None) -> None:
        """Passes output on until the command ends. Calls `poll` ten times a second, and once after the end.

        Errors: `colossal.Error` with the command's message if it fails.
        """
        self._pass_on(poll)
        status = self._process.wait()
        poll()
        self._messages.finish(status)

    def _pass_on(self, poll: Callable[[], object]) -> None:
        assert self._process.stdout is not None and self._process.stderr is not None
        output = codecs.getincrementaldecoder("utf-8")("replace")
        streams = {self._process.stdout.fileno(), self._process.stderr.fileno()}
        scoring = self._scoring
        while streams:
            with selectors.DefaultSelector() as selector:
                for stream in streams:
                    selector.register(stream, selectors.EVENT_READ)
                if scoring and scoring.is_open:
                    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if scoring.has_unsent else 0)
                    selector.register(scoring.fileno(), events)
                ready = [key.fd for key, _ in selector.select(0 if scoring and scoring.has_answer else _POLL)]
            for stream in streams.intersection(ready):
                data = os.read(stream, 1 << 16)
                if not data:
                    streams.discard(stream)
                elif stream == self._process.stdout.fileno():
                    self._on_output(output.decode(data))
                else:
                    self._messages.add(data)
            if scoring:
                if scoring.fileno() in ready:
                    scoring.exchange()
                scoring.call()
            poll()

    def _stop(self) -> None:
        """Interrupts the command and waits for its end. A second Ctrl-C meanwhile ends the command at once."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._pass_on(lambda: None)
            self._process.wait()
        except KeyboardInterrupt:
            self._scoring = None  # a function that hangs must not be called again
            self._process.send_signal(signal.SIGINT)
            self._pass_on(lambda: None)
            self._process.wait()
        self._messages.finish(0)


class _Messages:
    """What a command writes to standard error, line by line."""

    def __init__(self) -> None:
        self._rest = b""
        self._error: tuple[str, str] | None = None  # the first one, which is the cause
        self._is_live = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._width = 0  # of the open progress line

    def add(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line.decode(errors="replace"))

    def finish(self, status: int) -> None:
        """Ends the output. Errors: that of the command, if `status` is not 0."""
        if self._rest:
            self._line(self._rest.decode(errors="replace"))
            self._rest = b""
        self._end_progress()
        error, self._error = self._error, None
        if status != 0 and error is None:
            name = f"signal {-status}" if status < 0 else f"status {status}"
            error = ("program", f"the program ended with {name}; the lines above tell why")
        if status != 0 and error is not None:
            raise Error(*error)
        if error is not None:
            sys.stderr.write(f"colossal: [{error[0]}] {error[1]}\n")

    def _line(self, line: str) -> None:
        if found := _LOG.fullmatch(line):
            self._end_progress()
            logging.getLogger("colossal").log(_LEVELS[found[1]], found[2])
        elif self._error is None and (found := _ERROR.fullmatch(line) or _MISUSE.fullmatch(line)):
            self._error = (found[1], without_flag(found[2]))
        elif self._is_live and _PROGRESS.match(line):
            sys.stderr.write("\r" + line.ljust(self._width))  # one line that updates itself
            sys.stderr.flush()
            self._width = len(line)
        else:
            self._end_progress()
            sys.stderr.write(line + "\n")

    def _end_progress(self) -> None:
        if self._width:
            sys.stderr.write("\n")
            self._width = 0
