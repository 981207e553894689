"""The config of a module of transformers, beside its weights in a folder."""

import copy
from pathlib import Path
from typing import Any

import torch


def write_config(folder: str, module: Any, dtype: torch.dtype) -> None:
    """Writes config.json and generation_config.json for weights of that dtype. A module that is not of transformers has
    none."""
    if not hasattr(getattr(module, "config", None), "save_pretrained"):
        return
    config = copy.deepcopy(module.config)
    config.architectures = [type(module).__name__]
    config.dtype = str(dtype).removeprefix("torch.")
    config.save_pretrained(Path(folder))
    if getattr(module, "generation_config", None) is not None:
        module.generation_config.save_pretrained(Path(folder))
