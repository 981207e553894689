"""Over many calls of generate() and many trainings a process keeps its resident memory, files and threads."""

import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path

import tiny_models
import torch

import colossal

WIDTH = 128
CALLS, TRAININGS = 1000, 200


def resident_bytes() -> int:
    """Returns the resident size of this process, without garbage and without memory that malloc() holds back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def growth(repeat: Callable[[int], object], warm_up: int, count: int) -> int:
    """Calls repeat(0), repeat(1) and so on. Returns the bytes by which `count` calls after those of the warm-up have
    grown this process. Fails if they leave files or threads."""

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    for index in range(warm_up):
        repeat(index)
    size, before = resident_bytes(), held()
    for index in range(warm_up, warm_up + count):
        repeat(index)
    grown = resident_bytes() - size
    assert held() == before, "open files and threads"
    return grown


def test_calls_of_generate_keep_memory(tmp_path: Path) -> None:
    prompts = [[5, 17, 200, 31], [9], list(range(40, 60))]
    sampling = colossal.Sampling(temperature=1, seed=1)
    with colossal.Engine(tiny_models.llama(tmp_path), kv_cache="256KiB") as engine:
        grown = growth(lambda _: engine.generate(prompts, sampling, max_tokens=4), 100, CALLS)
    # The cache becomes resident block by block. Besides, a call may keep a third of what its requests take, 1 KiB each.
    assert grown < (256 + CALLS) * 1024, f"{grown / CALLS:.0f} bytes per call"


def test_trainings_keep_memory(world: colossal.World, tmp_path: Path) -> None:
    tiers = {"memory.host": "4MiB", "memory.disk": str(tmp_path)}
    kinds: list[dict[str, object]] = [{}, {"parallel.zero": 3}, {**tiers}, {**tiers, "parallel.zero": 3}]

    def train(index: int) -> None:
        module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
        training = colossal.initialize(world, module, {"optimizer.schedule": "constant"}, kinds[index % len(kinds)])
        for _ in range(2):
            training.zero_grad()
            training.backward(module(torch.randn(4, WIDTH)).square().mean())
            training.step()

    grown = growth(train, 20, TRAININGS)
    weight = 4 * WIDTH * WIDTH  # bytes; a training has two, and a gradient and two states of each
    assert grown < TRAININGS * weight // 8, f"{grown / TRAININGS:.0f} bytes per training"
