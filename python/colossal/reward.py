"""The function that scores the answers of a run, at this end of the socket to the program that trains."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Mapping
from typing import Any

from .error import Error

Answer = dict[str, Any]
"""An answer: `id`, `prompt`, `completion`, and all other members of the line of the data."""

RewardFunction = Callable[[Answer], object]
"""Returns a number; None for no score; or a dict with `score`, and if wanted `scores` (named numbers) and `text`."""

_READ = 1 << 16  # bytes that are read at once
_MAX_LINE = 1 << 20  # bytes of a line that the program takes
_MAX_MESSAGE = 10_000  # characters of an exception's text


class Scoring:
    """Calls a function for each answer that the program sends, in this thread, and sends the scores back.

    The program has the other end of the socket. Neither end waits for the other: what does not fit into the socket is
    sent later. An exception of the function is sent as an error of its answer.
    """

    def __init__(self, function: RewardFunction) -> None:
        self._function = function
        self._socket, self._other = socket.socketpair()
        self._socket.setblocking(False)
        self._arrived = b""
        self._unsent = b""
        self._is_over = False
        self._failure: tuple[str, BaseException] | None = None  # the first one, which ends the run

    @property
    def words(self) -> list[str]:
        """The option of ``colossal train`` that names the other end."""
        return [f"--reward-socket={self.passed}"]

    @property
    def passed(self) -> int:
        """The descriptor that the program must inherit."""
        return self._other.fileno()

    def has_started(self) -> None:
        """Closes the other end in this process, after the program has inherited it."""
        self._other.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_open(self) -> bool:
        """False after the program has closed its end."""
        return not self._is_over

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent) and not self._is_over

    @property
    def has_answer(self) -> bool:
        """True if call() would call the function."""
        return not self._is_over and b"\n" in self._arrived

    def exchange(self) -> None:
        """Sends and receives as much as goes without waiting."""
        try:
            if self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._is_over = True
        try:
            data = self._socket.recv(_READ)
            self._arrived += data
            self._is_over = self._is_over or not data
        except BlockingIOError:
            pass
        except OSError:
            self._is_over = True

    def call(self) -> None:
        """Calls the function for the next answer, if there is one.

        Errors: KeyboardInterrupt, whose answer stays and is scored by the next call.
        """
        if not self.has_answer:
            return
        line, rest = self._arrived.split(b"\n", 1)
        answer = json.loads(line)
        name = answer["id"]
        try:
            reply = _line(name, _checked(self._function(answer)))
        except KeyboardInterrupt:
            raise
        except BaseException as failure:
            message = f"{type(failure).__name__}: {failure}"[:_MAX_MESSAGE]
            self._failure = self._failure or (message, failure)
            reply = _line(name, {"error": message})
        self._arrived = rest
        self._unsent += reply
        self.exchange()

    def cause_of(self, error: Error) -> BaseException | None:
        """Returns the exception of the function that `error` of the program reports; None = it has another reason."""
        if self._failure is None or error.component != "reward":
            return None
        message, failure = self._failure
        return failure if message.split("\n", 1)[0] in error.message else None

    def close(self) -> None:
        self._socket.close()
        self._other.close()


def _line(name: str, members: Mapping[str, object]) -> bytes:
    line = json.dumps({"id": name, **members}).encode() + b"\n"
    if len(line) > _MAX_LINE:
        raise Error("reward", f"what a function that scores returns must fit into 1 MiB: got {len(line)} bytes")
    return line


def _checked(result: object) -> dict[str, object]:
    """Returns what the function has returned as members of a line."""
    if result is None:
        return {"score": None}
    if not isinstance(result, Mapping):
        return {"score": _number(result, "a function that scores must return a finite number, None or a dict")}
    unknown = sorted(map(str, set(result) - {"score", "scores", "text"}))
    if unknown or "score" not in result:
        got = ", ".join(sorted(map(str, result))) or "no key"
        rule = "the dict of a function that scores must have score, and may have scores and text"
        raise Error("reward", f"{rule}: got {got}")
    score, scores, text = result["score"], result.get("scores"), result.get("text")
    if score is not None:
        score = _number(score, "the score must be a finite number, or None for no score")
    if scores is not None:
        if not isinstance(scores, Mapping):
            raise Error("reward", f"scores must be a dict of finite numbers: got {_shown(scores)}")
        scores = {
            str(name): _number(value, f"scores must have finite numbers, {name} too") for name, value in scores.items()
        }
    if text is not None and not isinstance(text, str):
        raise Error("reward", f"text must be a text: got {_shown(text)}")
    return {"score": score, "scores": scores, "text": text}


def _number(value: object, rule: str) -> float:
    """Returns any number as a float: an int, a bool, a scalar of NumPy, a tensor with one element."""
    number = float(value) if hasattr(value, "__float__") else math.nan
    if not math.isfinite(number):
        raise Error("reward", f"{rule}: got {_shown(value)}")
    return number


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
