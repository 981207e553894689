"""What training needs to know about a torch module, and what it refuses."""

import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Optional

import torch

from . import _binding
from .error import Error

_WRAPPERS = {
    "torch.nn.parallel.distributed": "DistributedDataParallel",
    "torch.nn.parallel.data_parallel": "DataParallel",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "FullyShardedDataParallel",
    "torch.distributed.fsdp._fully_shard._fully_shard": "FSDPModule",
    "deepspeed.runtime.engine": "DeepSpeedEngine",
}
"""Classes that distribute a module themselves, by the module that defines them."""


def named_parameters(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Returns the parameters by name, each once, in the order of registration. Names are those without
    `torch.compile()`."""
    return [(name.replace("_orig_mod.", ""), p) for name, p in module.named_parameters()]


def persistent_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the buffers that belong to the module's state. The others are constants, such as the frequencies of rotary
    embeddings, and keep their dtype."""
    for prefix, part in module.named_modules():
        for name, buffer in part.named_buffers(recurse=False):
            if name not in part._non_persistent_buffers_set:
                yield f"{prefix}.{name}".lstrip(".").replace("_orig_mod.", ""), buffer


def _tables(module: torch.nn.Module) -> list[torch.Tensor]:
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return [part.weight for part in module.modules() if isinstance(part, kinds)]


def tensors_of(module: torch.nn.Module) -> _binding.ModuleTensors:
    """Returns the parameters, buffers and embedding tables of a module for the binding."""
    return _binding.ModuleTensors(named_parameters(module), list(persistent_buffers(module)), _tables(module))


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module that `torch.compile()` was given, or the module itself."""
    inner = getattr(module, "_orig_mod", module)
    return inner if isinstance(inner, torch.nn.Module) else module


def matching(module: torch.nn.Module, patterns: Iterable[str]) -> list[str]:
    """Returns the names of the parameters that patterns name. Errors ("model"): a pattern that names none."""
    if isinstance(patterns, str):
        raise Error("model", f"missing must be a list of names: got the text {patterns!r}; write [{patterns!r}]")
    names = {name: id(p) for name, p in module.named_parameters(remove_duplicate=False)}
    first = {id(p): name for name, p in named_parameters(module)}
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = [p for name, p in names.items() if fnmatchcase(name.replace("_orig_mod.", ""), pattern)]
        if not matches:
            raise Error("model", f"missing must name parameters of the module: got {pattern!r}, which names none")
        found.update({first[p]: None for p in matches})
    return list(found)


def has_empty(module: torch.nn.Module) -> bool:
    """Returns true if a parameter has a shape and no memory."""
    return any(p.is_meta for p in module.parameters())


def is_compiled(module: torch.nn.Module) -> bool:
    """Returns true if `torch.compile()` or `Module.compile()` was called on the module or a part of it."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    optimized = getattr(frames, "OptimizedModule", ())
    return any(
        isinstance(part, optimized) or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules())


def refuse_wrappers(module: torch.nn.Module) -> None:
    """Errors ("model"): the module, or a part of it, is distributed by another library."""
    for path, part in module.named_modules():
        for defined_in, name in _WRAPPERS.items():
            kind = getattr(sys.modules.get(defined_in), name, None)
            if kind is not None and isinstance(part, kind):
                raise Error("model", f"the module must not be distributed by another library: got {name} at "
                            f"`{path or 'the module itself'}`; pass the module without it, parallel.zero shards it")


def _refuse_parameter(name: str, parameter: torch.Tensor) -> None:
    kind = type(parameter.data).__name__
    if isinstance(parameter, torch.nn.UninitializedParameter):
        raise Error("model", f"parameters must have a shape: got the lazy parameter {name}; run a forward pass first")
    if kind == "DTensor":
        raise Error("model", f"parameters must be tensors of this rank alone: got the DTensor {name}; pass the module "
                    "before it is distributed, parallel.zero shards it")
    if parameter.is_quantized or not (parameter.is_floating_point() or parameter.is_complex()):
        raise Error("model", f"parameters must be floating-point: got {name} of {parameter.dtype}, which is quantized "
                    "or an integer; dequantize it, or register it as a buffer")
    if type(parameter.data) is not torch.Tensor:
        raise Error("model", f"parameters must be plain tensors: got {name} of the class {kind}, whose memory is that "
                    "of another library; convert it to a torch.nn.Parameter")


def refuse_parameters(parameters: list[tuple[str, torch.nn.Parameter]]) -> None:
    """Errors ("model"): a parameter that is quantized, distributed or not a plain tensor; a hook that
    `register_post_accumulate_grad_hook()` put on a trained one. The message names it."""
    for name, parameter in parameters:
        _refuse_parameter(name, parameter)
        if parameter.requires_grad and _hooks(parameter):
            raise _hook_error(name)


def _hooks(parameter: torch.Tensor) -> Optional[dict[int, object]]:
    hooks: Optional[dict[int, object]] = parameter._post_accumulate_grad_hooks
    return hooks


def _hook_error(name: str) -> Error:
    return Error("model", "a trained parameter must have no hook of register_post_accumulate_grad_hook, because "
                 f"autograd has one slot for it, which training uses: got one on {name}; use register_hook, and "
                 "initialize again")


class Unchanged:
    """Checks that the parameters of a module stay as `initialize()` left them."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = [(f"{prefix}.{name}".lstrip("."), part._parameters, name, p, _properties(p), _hooks(p))
                            for prefix, part in unwrapped(module).named_modules()
                            for name, p in part._parameters.items() if p is not None]

    def require(self) -> None:
        """Errors ("model"): a parameter whose requires_grad, dtype, device or shape has changed, that got a hook or was
        replaced. Cost: a microsecond per parameter."""
        for path, owner, name, p, before, hooks in self._parameters:
            found = owner.get(name)  # another object after Module.to("meta"), for example
            now = None if found is None else _properties(found)
            if now != before:
                raise _change_error(path, before, now)
            if found is not p:
                raise _replacement_error(path)
            # A hook that was removed again has taken the slot of training, too.
            if p.requires_grad and (_hooks(p) is not hooks or hooks):
                raise _hook_error(path)


    def require_same(self) -> None:
        """Errors ("model"): a parameter that was replaced."""
        for path, owner, name, p, _, _ in self._parameters:
            if owner.get(name) is not p:
                raise _replacement_error(path)


class Buffers:
    """The persistent buffers of a module, which may bind another tensor to the name of one."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._known = [(f"{prefix}.{name}".lstrip("."), part._buffers, name, buffer)
                       for prefix, part in unwrapped(module).named_modules()
                       for name, buffer in part.named_buffers(recurse=False)
                       if name not in part._non_persistent_buffers_set]

    def take(self) -> None:
        """Copies values of other tensors into those of `initialize()`. Errors ("model"): another shape."""
        for path, owner, name, buffer in self._known:
            found = owner.get(name)
            if found is buffer:
                continue
            if found is None or found.shape != buffer.shape:
                got = "none" if found is None else list(found.shape)
                raise Error("model", f"a persistent buffer must keep its shape: got {got} instead of "
                            f"{list(buffer.shape)} for {path}; initialize again, or register it with persistent=False")
            with torch.no_grad():
                buffer.copy_(found)

    def restore(self) -> None:
        """Binds the tensors of `initialize()` again."""
        for _, owner, name, buffer in self._known:
            owner[name] = buffer


def _replacement_error(path: str) -> Error:
    return Error("model", f"parameters must stay those that initialize() got: got another one at {path}; initialize "
                 "again, or write the values into the old one: load_state_dict() without assign, or copy_()")


def _properties(parameter: torch.Tensor) -> tuple[object, ...]:
    return parameter.requires_grad, parameter.dtype, parameter.device, parameter.shape


def _change_error(path: str, before: tuple[object, ...], now: Optional[tuple[object, ...]]) -> Error:
    if now is None:
        return Error("model", f"parameters must stay in the module: got none at {path}; initialize again without it")
    what, was, got = next(z for z in zip(("requires_grad", "dtype", "device", "shape"), before, now) if z[1] != z[2])
    return Error("model", f"{what} of a parameter must stay as it was at initialize(): got {got} instead of {was} for "
                 f"{path}; change it before initialize()")
