"""Runs a function of a test on several ranks, each a process of its own.

    def train(world): ...                     # at the top of a test file
    def test_x(): ranks.run(train, 2)
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_LIMIT = 240  # seconds; far above the longest, so that a hang fails


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def variables(rank: int, size: int, port: int) -> dict[str, str]:
    """Returns the environment of a rank, as torchrun sets it."""
    return {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}


def begin(command: list[str], size: int) -> list["subprocess.Popen[str]"]:
    """Starts a command on `size` ranks, which the caller must wait for."""
    port = _free_port()
    return [
        subprocess.Popen(command, env=variables(rank, size, port), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True) for rank in range(size)
    ]


def end(processes: list["subprocess.Popen[str]"]) -> list[str]:
    """Waits for ranks and returns what each has printed. Kills those that hang."""
    try:
        return [process.communicate(timeout=_LIMIT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def start(command: list[str], size: int) -> list[str]:
    """Runs a command on `size` ranks and returns what each has printed. Fails if a rank fails."""
    processes = begin(command, size)
    printed = end(processes)
    states = [process.returncode for process in processes]
    assert not any(states), f"ranks ended with {states}:\n" + "\n".join(printed)
    return printed


def call_of(function: Callable[..., None], *arguments: object) -> list[str]:
    """Returns the command that calls function(world, *arguments) on a rank."""
    return [sys.executable, __file__, function.__module__, function.__name__, json.dumps(arguments)]


def run(function: Callable[..., None], size: int, *arguments: object) -> list[str]:
    """Calls function(world, *arguments) on `size` ranks. See start()."""
    return start(call_of(function, *arguments), size)


def _main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    module, function, arguments = sys.argv[1:]
    import torch

    import colossal
    torch.set_num_threads(1)
    with colossal.launch(timeout=60) as world:
        getattr(__import__(module), function)(world, *json.loads(arguments))


if __name__ == "__main__":
    _main()
