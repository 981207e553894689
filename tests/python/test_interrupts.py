"""Ctrl-C while a call of the compiled part waits for another rank: the call ends first, and the script goes on."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Optional, TypeVar

import pytest
import torch

import colossal
import ranks

CONFIG = {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0, "parallel.zero": 3}
Result = TypeVar("Result")


def module() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def interrupted(world: colossal.World, file: Path, call: Callable[[], Result]) -> Optional[Result]:
    """Makes a collective call. Rank 1 joins it after rank 0, which is in the call, has received Ctrl-C. Returns the
    result on rank 1."""
    if world.rank == 1:
        while not file.exists():
            time.sleep(0.01)
        return call()

    def interrupt() -> None:
        time.sleep(0.2)  # the main thread gets into the call
        os.kill(os.getpid(), signal.SIGINT)
        file.touch()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        call()
    return None


def step(training: colossal.Training, backward: Callable[[torch.Tensor], object],
         update: Callable[[], object]) -> None:
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(training.steps_done + 10 * training.world.rank))
    training.zero_grad()
    loss = training.module(rows).square().mean()
    backward(loss)
    update()


def values(training: colossal.Training) -> dict[str, torch.Tensor]:
    return dict(training.named_tensors())


def assert_same(training: colossal.Training, right: dict[str, torch.Tensor]) -> None:
    assert all(torch.equal(value, right[name]) for name, value in training.named_tensors())


def interrupt_steps(world: colossal.World, folder: str) -> None:
    files = (Path(folder) / str(i) for i in range(100))
    plain = colossal.initialize(world, module(), CONFIG)
    training = colossal.initialize(world, module(), CONFIG)
    for _ in range(2):
        step(plain, plain.backward, plain.step)
        step(training, lambda loss: interrupted(world, next(files), lambda: training.backward(loss)),
             lambda: interrupted(world, next(files), training.step))
    interrupted(world, next(files), world.barrier)
    interrupted(world, next(files), lambda: training.mean(1))
    assert training.steps_done == 2
    assert_same(training, values(plain))
    interrupted(world, next(files), lambda: training.save(f"{folder}/run", extra="x"))

    for resume in (True, False):
        again = colossal.initialize(world, module(), CONFIG)
        if resume:
            resumed = again.resume(f"{folder}/run")
            assert resumed is not None and (resumed.step, resumed.extra) == (2, "x")
        else:
            interrupted(world, next(files), lambda: again.resume(f"{folder}/run"))
        step(again, again.backward, again.step)
        if resume:
            step(training, training.backward, training.step)
        assert_same(again, values(training))


def test_ctrl_c_in_steps_and_checkpoints(tmp_path: Path) -> None:
    ranks.run(interrupt_steps, 2, str(tmp_path))


def interrupt_initialize(world: colossal.World, folder: str) -> None:
    right = module().state_dict()
    ways: list[dict[str, object]] = [{"weights": right}, {"init": copy_from(right)}, {}]
    for number, way in enumerate(ways):
        with colossal.empty_parameters():
            empty = module()
        if world.rank == 1:
            with pytest.raises(colossal.Error):
                interrupted(world, Path(folder) / str(number), lambda: colossal.initialize(world, empty, CONFIG, **way))
        else:
            interrupted(world, Path(folder) / str(number), lambda: colossal.initialize(world, empty, CONFIG, **way))
        assert all(p.is_meta for p in empty.parameters())
        training = colossal.initialize(world, empty, CONFIG, **way)
        if way:
            assert_same(training, right)
        training.close()
    # A module with values keeps them under ZeRO 0, as after the end of a training.
    changes = {"parallel.zero": 0}
    whole = module()
    started = interrupted(world, Path(folder) / "whole", lambda: colossal.initialize(world, whole, CONFIG, changes))
    if started is not None:
        started.close()
    assert_same(colossal.initialize(world, whole, CONFIG, changes), right)


def copy_from(state: dict[str, torch.Tensor]) -> Callable[[torch.nn.Module], None]:
    def init(part: torch.nn.Module) -> None:
        if isinstance(part, torch.nn.Linear) and not part.weight.is_meta:
            name = "0" if part.in_features == 4 else "2"
            part.weight.copy_(state[f"{name}.weight"])
            part.bias.copy_(state[f"{name}.bias"])
    return init


def test_ctrl_c_in_initialize(tmp_path: Path) -> None:
    ranks.run(interrupt_initialize, 2, str(tmp_path))
