"""Trains and runs large transformers: ZeRO 0 to 3, host memory and disks as tiers, checkpoints for any number of ranks.

    world = colossal.launch()
    training = colossal.initialize(world, model, "train.toml", {"parallel.zero": 3})
    for batch in loader:
        training.zero_grad()
        training.backward(model(**batch).loss)
        training.step()

Importing this package changes nothing in the process and does not import torch. The first use of a name loads what it
needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .built_for import check as _check
from .error import Error

_check()  # before any module loads the binding

if TYPE_CHECKING:
    from .build import build_info, version
    from .checkpoint import load, read_progress, save
    from .commands import Folded, embed, evaluate, fold, plan, schedule
    from .drawer import Drawer, Picture
    from .empty import empty_parameters
    from .engine import Answer, Engine, LogProbabilities, Request, Sampling
    from .run import Run, train
    from .text import ChatTemplate, Tokenizer
    from .training import Resumed, StepResult, Training, initialize
    from .world import World, launch

__all__ = [
    "Answer",
    "ChatTemplate",
    "Drawer",
    "Engine",
    "Error",
    "Folded",
    "LogProbabilities",
    "Picture",
    "Request",
    "Resumed",
    "Run",
    "Sampling",
    "StepResult",
    "Tokenizer",
    "Training",
    "World",
    "build_info",
    "embed",
    "empty_parameters",
    "evaluate",
    "fold",
    "initialize",
    "launch",
    "load",
    "plan",
    "read_progress",
    "save",
    "schedule",
    "train",
    "version",
]

_MODULES = {
    "Answer": "engine",
    "Drawer": "drawer",
    "Picture": "drawer",
    "Engine": "engine",
    "LogProbabilities": "engine",
    "Request": "engine",
    "Sampling": "engine",
    "ChatTemplate": "text",
    "Tokenizer": "text",
    "load": "checkpoint",
    "read_progress": "checkpoint",
    "save": "checkpoint",
    "Run": "run",
    "train": "run",
    "embed": "commands",
    "evaluate": "commands",
    "fold": "commands",
    "Folded": "commands",
    "plan": "commands",
    "schedule": "commands",
    "build_info": "build",
    "version": "build",
    "empty_parameters": "empty",
    "Resumed": "training",
    "StepResult": "training",
    "Training": "training",
    "initialize": "training",
    "World": "world",
    "launch": "world",
}
"""The module of this package that defines each name."""


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{module}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
