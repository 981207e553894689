"""Training of the library's own architectures, in every layout."""

from __future__ import annotations

import html
import json
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from . import _binding, program
from .config import Source, flatten
from .error import Error
from .reward import RewardFunction, Scoring

Record = dict[str, Any]
"""A line of metrics.jsonl: `step`, `loss`, `learning_rate` and other metrics by name."""


class Run:
    """A training run on disk. In a notebook it shows the run's report."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(folder)

    @property
    def metrics(self) -> list[Record]:
        """The records of all steps, as they are in metrics.jsonl now."""
        return _parsed((self.folder / "metrics.jsonl").read_bytes())

    def rollouts(self, step: int) -> list[Record]:
        """The answers that the model drew in a step of a run that learns from them, as `colossal rollouts` prints them.

        There is a dict for each answer, in the order of prompts (`group`) and answers (`number`). Its keys include
        `prompt` and `completion` as texts, `score` and `scores` (`score` is None without one), the `text` of verifiers,
        `ids`, `log_probabilities` and `line`, the line of the data.

        Errors: `colossal.Error` with the command's message, such as for a step that was not kept.
        """
        words = ["rollouts", os.fspath(self.folder), f"--step={step}", "--json"]
        return _parsed(program.run(words).encode())

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str | None:
        report = self.folder / "report.html"
        if not report.is_file():
            return None
        page = html.escape(report.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 720px; border: 0"></iframe>'


def train(
    config: Source,
    changes: Mapping[str, object] = {},
    *,
    resume: bool = False,
    overwrite: bool = False,
    accept_changed_model: bool = False,
    on_step: Callable[[Record], object] | None = None,
    reward: RewardFunction | None = None,
) -> Run:
    """Trains the model that a config describes, as `colossal train` does, and returns its run.

    `config` is the path of a TOML file, or a mapping with dotted or nested keys; `changes` are laid over it. The
    program of this package trains in processes of its own: one per rank of ``[parallel]`` on this host or, under a
    launcher (torchrun, mpirun, srun, `colossal run`), the rank that this process is. `on_step` gets each new record of
    metrics.jsonl in this thread, a tenth of a second after it is written; under a launcher, on every rank.

    Ctrl-C, or an exception of `on_step`, saves a checkpoint, ends the run and is raised; call train() with `resume` to
    go on. A second Ctrl-C ends the run at once. `accept_changed_model` lets a resumed run change keys that change what
    the weights compute, such as ``model.rope_theta``.

    `reward` scores the answers of a run that learns from them, in this thread while the program draws others; its score
    joins those of ``[reward]``. It gets a dict with `id`, `prompt`, `completion` and the other members of the line of
    the data. It returns a number, None for no score, or a dict: `score`, and if wanted `scores` (named numbers, which
    become metrics) and `text`. Under a launcher the function of rank 0 is called; all ranks must give one.
    With ``reward.on_fault = "error"`` its exception ends the run and is raised; call train() with `resume` to go on. An
    interrupted run still ends its step, so the function may be called after Ctrl-C.

    Errors: `colossal.Error` with the command's message.
    """
    if reward is not None and not callable(reward):
        raise Error("reward", f"reward must be a function of one answer: got {type(reward).__name__}")
    words = command_of(config, changes)
    try:
        run = Run(_binding.run_folder(words[0], words[1:]))
    except Error as error:
        raise Error(error.component, program.without_flag(error.message)) from None
    words += ["--resume"] * resume + ["--overwrite"] * overwrite
    words += ["--accept-changed-model"] * accept_changed_model
    records = _NewRecords(run.folder / "metrics.jsonl")

    def poll() -> None:
        if on_step is not None:
            for record in records.take():
                on_step(record)

    scoring = Scoring(reward) if reward is not None else None
    failure: BaseException | None = None
    try:
        with program.Process(["train", *words], sys.stdout.write, scoring) as process:
            process.wait(poll)
    except Error as error:
        failure = scoring.cause_of(error) if scoring else None
        if failure is None:
            raise
        sys.stderr.write(f"colossal: {error}\n")  # it names the answer
    finally:
        if scoring:
            scoring.close()
    if failure is not None:
        raise failure
    return run


def command_of(config: Source, changes: Mapping[str, object]) -> list[str]:
    """Returns a config as words of a command: the path of a file, then flags.

    Errors ("config"): those of `colossal.config.flatten`; the command reports all others.
    """
    is_mapping = isinstance(config, Mapping)
    values = {**(flatten(config) if isinstance(config, Mapping) else {}), **flatten(changes)}
    words = [os.devnull if is_mapping else os.fspath(config)]  # type: ignore[arg-type]
    for key, value in values.items():
        words.append(f"--{key}={value if isinstance(value, str) else json.dumps(value)}")
    return words


class _NewRecords:
    """The records that a run appends to its metrics.jsonl from now on.

    A run first empties the file or, to resume, replaces it by its first lines. So the lines that are the same as before
    are old, until the first other one.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._old = self._read(0)
        self._seen = self._state()
        self._taken: int | None = None  # bytes; None = no new record yet

    def take(self) -> list[Record]:
        state = self._state()
        if state is None or state == self._seen:
            return []
        self._seen = state
        data = self._read(self._taken or 0)
        begin = 0 if self._taken is not None else _common_lines(self._old, data)
        end = data.rfind(b"\n") + 1
        if end <= begin:
            return []
        self._taken = (self._taken or 0) + end
        return _parsed(data[begin:end])

    def _state(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self, begin: int) -> bytes:
        try:
            with open(self._path, "rb") as file:
                file.seek(begin)
                return file.read()
        except FileNotFoundError:
            return b""


def _parsed(lines: bytes) -> list[Record]:
    return [json.loads(line) for line in lines.splitlines() if line.endswith(b"}")]


def _common_lines(old: bytes, new: bytes) -> int:
    """Returns the number of bytes of the first whole lines that both have."""
    common = 0
    for before, after in zip(old.splitlines(keepends=True), new.splitlines(keepends=True)):
        if before != after or not after.endswith(b"\n"):
            break
        common += len(after)
    return common
