"""The ranks of a run."""

import logging
import weakref
from types import TracebackType
from typing import Optional

import torch

from . import _binding
from .error import Error
from .own_process import OwnProcess

_log = logging.getLogger("colossal")


class World:
    """All ranks of a run, as seen by one of them. Made by `launch()`; a context manager that closes it.

    A world stays open until it is closed, and at the latest until the interpreter exits. Trainings in it keep it alive.
    """

    def __init__(self, joined: _binding.World) -> None:
        self._held = [joined]
        self._own = OwnProcess("launch", "a world", "start the child before launch(), or with the method spawn")
        # At exit finalizers run in the reverse order of their creation, so trainings end before their world.
        self._close = weakref.finalize(self, _leave, self._held, self._own)

    @property
    def _joined(self) -> _binding.World:
        if not self._held:
            raise Error("launch", "a world must be open: got one that was closed; call launch() again")
        self._own.require()
        return self._held[0]

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        return self._joined.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._joined.size

    @property
    def local_rank(self) -> int:
        """The number of this rank among the ranks of its host."""
        return self._joined.local_rank

    @property
    def local_size(self) -> int:
        """The number of ranks of this host."""
        return self._joined.local_size

    @property
    def device(self) -> torch.device:
        """The device on which this rank computes."""
        return self._joined.device

    def barrier(self) -> None:
        """Returns after all ranks have called it."""
        self._joined.barrier()

    def mean(self, number: float) -> float:
        """Returns the mean of every rank's number, the same on all ranks. Collective."""
        return self._joined.mean(float(number))

    def close(self) -> None:
        """Leaves the run. Other members of a closed world raise `Error`. A second call does nothing, nor does one in a
        forked child."""
        if self._own.is_this:
            self._close()

    def __enter__(self) -> "World":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._held or not self._own.is_this:
            return "World(closed)" if not self._held else "World(of another process)"
        return f"World(rank={self.rank}, size={self.size}, device={str(self.device)!r})"


def _leave(held: list[_binding.World], own: OwnProcess) -> None:
    if own.is_this:  # a child is no rank of the run
        held.clear()


def launch(backend: str = "auto", device: str = "auto", timeout: float = 300, *, keep_memory: bool = True) -> World:
    """Joins the other ranks of the run. Collective among all ranks.

    The ranks are started by `colossal run`, torchrun, mpirun or srun; without a launcher the world has one rank.

    backend: transport between ranks: "shm", "gloo" or "nccl"; "auto" is nccl with one GPU per rank, shm on one host,
        else gloo.
    device: "cpu" or "cuda"; "auto" is cuda if there is a GPU that this build can use.
    timeout: seconds that ranks wait for one another, at the start and in each collective, before the run ends. Ctrl-C
        is answered when the wait is over.
    keep_memory: keeps freed memory of large CPU tensors for reuse by this process, which saves page faults, and lets
        Colossal count the memory of tensors. It exchanges torch's CPU allocator; False leaves torch's own.

    Several ranks of a host are bound to separate cores. Messages about late ranks go to the logger "colossal".
    Errors ("launch"): ranks that do not arrive, which the message names; a broken environment of a launcher.
    """
    return World(_binding.launch(backend, device, float(timeout), keep_memory, _log.warning))
