"""Runs that are killed in the middle of a step or of a save, and resumed on the same and on other numbers of ranks."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch

import colossal
import models
import ranks

STEPS, SAVED, KILLED, ROWS = 8, 4, 6, 6
CONFIG = {"optimizer.schedule": "constant", "optimizer.warmup_steps": 2, "precision.mode": "fp64", "parallel.zero": 3,
          "training.keep_last": 0}
EXACT = 1e-12  # as in test_equality.py
KILLS = {"step": (1, signal.SIGKILL), "save": (0, signal.SIGXFSZ)}  # rank and signal
PAUSE = 1  # seconds that the other rank waits for the dead one, many times a step

Losses = dict[str, list[float]]


class Interrupted(torch.nn.Module):
    """A module with dropout that may call a function in its forward."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.module = models.Plain()
        self.dropout = torch.nn.Dropout(dropout)
        self.event = lambda: None

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.event()
        return self.dropout(self.module(ids))


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_self_in_writing() -> None:
    """The kernel kills this process when a file gets longer than a page."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def trained(world: colossal.World, folder: str, save: bool = False, end: str = "") -> Losses:
    """Trains a module without and one with dropout to the last step, from the newest checkpoint in the folder. Returns
    the mean losses of the steps. `end`: where a rank is killed."""
    losses: Losses = {}
    for name, dropout in (("exact", 0.0), ("dropout", 0.5)):
        torch.manual_seed(3)
        module = Interrupted(dropout)
        training = colossal.initialize(world, module, CONFIG)
        torch.manual_seed(11 + world.rank)
        resumed = training.resume(f"{folder}/{name}")
        assert (0 if resumed is None else resumed.step) == training.steps_done
        losses[name] = []
        while training.steps_done < STEPS:
            rows = torch.Generator().manual_seed(training.steps_done)
            ids = torch.randint(models.WORDS, (ROWS, 9), generator=rows).chunk(world.size)[world.rank]
            is_last = end and world.rank == KILLS[end][0] and name == "dropout" and training.steps_done == KILLED
            if is_last and end == "step":
                module.event = kill_self
            training.zero_grad()
            training.backward(models.next_token(module(ids), ids))
            training.step()
            losses[name].append(training.mean(training.loss))
            if save and training.steps_done in (2, SAVED, KILLED + 1):
                if is_last and end == "save":
                    kill_self_in_writing()
                training.save(f"{folder}/{name}", extra=training.steps_done)
        training.close()
    return losses


def write_losses(world: colossal.World, folder: str, file: str) -> None:
    losses = trained(world, folder)
    if world.rank == 0:
        Path(file).write_text(json.dumps(losses))


def train_to_the_kill(world: colossal.World, folder: str, end: str) -> None:
    trained(world, folder, save=True, end=end)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """The losses of a run on two ranks."""
    folder = tmp_path_factory.mktemp("whole")
    return losses_on(2, folder)


def losses_on(size: int, folder: Path) -> Losses:
    ranks.run(write_losses, size, str(folder), str(folder / "losses.json"))
    losses: Losses = json.loads((folder / "losses.json").read_text())
    return losses


def killed_run(folder: Path, end: str) -> None:
    """Runs two ranks. One is killed in step 7, or in the save after it, and the other one a second later."""
    processes = ranks.begin(ranks.call_of(train_to_the_kill, str(folder), end), 2)
    rank, kill = KILLS[end]
    victim, other = processes[rank], processes[1 - rank]
    try:
        assert victim.wait(timeout=120) == -kill, victim.communicate()[0]
        with contextlib.suppress(subprocess.TimeoutExpired):
            other.wait(timeout=PAUSE)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert other.returncode != 0


def numbers_of(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


@pytest.mark.parametrize("end", ["step", "save"])
def test_killed_runs_resume(world: colossal.World, uninterrupted: Losses, end: str, tmp_path: Path) -> None:
    killed_run(tmp_path / "killed", end)
    saved = {name: numbers_of(tmp_path / "killed" / name) for name in ("exact", "dropout")}
    assert saved == {"exact": [2, SAVED, KILLED + 1], "dropout": [2, SAVED]}
    assert len(list((tmp_path / "killed" / "dropout").glob(".step-*"))) == (end == "save")
    # The module without dropout was trained first, beyond the others' last checkpoint.
    shutil.rmtree(tmp_path / "killed" / "exact" / f"step-{KILLED + 1:06}")

    again = losses_on(2, shutil.copytree(tmp_path / "killed", tmp_path / "two"))
    assert again == {name: losses[SAVED:] for name, losses in uninterrupted.items()}

    elsewhere = [trained(world, str(tmp_path / "killed"))]
    if end == "step":
        elsewhere.append(losses_on(3, shutil.copytree(tmp_path / "killed", tmp_path / "three")))
    for losses in elsewhere:
        assert len(losses["exact"]) == STEPS - SAVED
        for loss, right in zip(losses["exact"], uninterrupted["exact"][SAVED:]):
            assert abs(loss - right) <= EXACT * max(1, abs(right))
