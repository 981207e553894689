"""Folders of Hugging Face: the config of a module of transformers beside its weights, and adapters of peft."""
# mypy: disable-error-code="import-not-found"

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from . import module as modules
from .error import Error


def _is_a(module: torch.nn.Module, library: str, name: str) -> bool:
    return any(c.__name__ == name and c.__module__.split(".")[0] == library for c in type(module).__mro__)


def is_adapter(module: torch.nn.Module) -> bool:
    """Returns true for a model of peft, whose folder is that of an adapter."""
    return _is_a(module, "peft", "PeftModel")


def _has_config(module: Any) -> bool:
    return hasattr(getattr(module, "config", None), "save_pretrained")


def _state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns parameters and persistent buffers under all of their names, as `state_dict()` has them."""
    buffers = ((f"{prefix}.{name}".lstrip("."), buffer)
               for prefix, part in module.named_modules(remove_duplicate=False)
               for name, buffer in part.named_buffers(recurse=False) if name not in part._non_persistent_buffers_set)
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(buffers)}


def _shapes(module: torch.nn.Module) -> dict[str, torch.Size]:
    return {name.replace("_orig_mod.", ""): tensor.shape for name, tensor in _state(module).items()}


def require_complete(module: Any) -> None:
    """Errors ("model"): the class and the config of a module of transformers describe other tensors than it has, so
    that its folder would load with random values."""
    if not _has_config(module):
        return
    kind = type(module).__name__
    remedy = ("save it with its own method on rank 0 inside training.gathered(), or write training.named_tensors() "
              "under names of your own")
    if not _is_a(module, "transformers", "PreTrainedModel"):
        raise Error("model", f"save_pretrained() needs a model of transformers itself: got {kind} around one, whose "
                    f"config names other tensors; {remedy}")
    with torch.device("meta"):
        described = _shapes(type(module)(copy.deepcopy(module.config)))
    own = _shapes(module)
    lacking = [name for name, shape in described.items() if own.get(name) != shape]
    if lacking:
        shown = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if len(lacking) > 3 else "")
        raise Error("model", f"the tensors of a model must be those that {kind} and its config describe: got none of "
                    f"that shape for {shown}, because layers were replaced or wrapped; {remedy}")


def adapter_names(model: Any) -> dict[str, list[str]]:
    """Returns the names of the tensors that the folder of a model of peft holds, as far as it takes them unchanged: all
    names of each, by the first one, which `Training.named_tensors()` gives it."""
    from peft import get_peft_model_state_dict  # the model is of peft
    names = {name: torch.empty(shape, device="meta") for name, shape in _shapes(model).items()}
    taken = {
        id(tensor) for adapter in model.peft_config if not model.peft_config[adapter].is_prompt_learning
        for tensor in get_peft_model_state_dict(model, state_dict=dict(names), adapter_name=adapter).values()
    }
    first: dict[int, str] = {}
    found: dict[str, list[str]] = {}
    for name, tensor in _state(model).items():
        own = first.setdefault(id(tensor), name)
        if id(names[name]) in taken:
            found.setdefault(own, []).append(name)
    return found


def write_adapter(folder: str, model: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes the folder of a model of peft. `tensors`: values by the names of the model."""
    prompts = any(config.is_prompt_learning for config in model.peft_config.values())
    model.save_pretrained(Path(folder), **({} if prompts else {"state_dict": dict(tensors)}))


def write_config(folder: str, module: Any, dtype: torch.dtype) -> None:
    """Writes config.json and generation_config.json for weights of that dtype. A module that is not of transformers has
    none."""
    if not _has_config(module):
        return
    config = copy.deepcopy(module.config)
    config.architectures = [type(module).__name__]
    config.dtype = str(dtype).removeprefix("torch.")
    config.save_pretrained(Path(folder))
    if getattr(module, "generation_config", None) is not None:
        module.generation_config.save_pretrained(Path(folder))
