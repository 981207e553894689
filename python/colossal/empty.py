"""Modules larger than memory: parameters without memory, and their first values."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Optional, Union

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from . import _binding, module as modules
from .error import Error

Weights = Union[str, "os.PathLike[str]", Mapping[str, torch.Tensor]]
Init = Callable[[torch.nn.Module], object]
_KEPT = "_colossal_empty"


def _emptied(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    empty = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
    empty.__dict__.update(parameter.__dict__)
    return empty


@contextmanager
def empty_parameters() -> Iterator[None]:
    """Modules that are made inside have parameters with a shape and without memory, on torch's device meta. Buffers are
    real. Ties between parameters are kept. `initialize()` fills the parameters.

        with colossal.empty_parameters():
            model = transformers.GPT2LMHeadModel(config)
        training = colossal.initialize(world, model, "train.toml", init=model._init_weights)
    """

    def empty(_: torch.nn.Module, name: str, parameter: Optional[torch.nn.Parameter]) -> Optional[torch.nn.Parameter]:
        if parameter is None or parameter.is_meta:
            return None  # stays as it is
        known: Optional[torch.nn.Parameter] = parameter.__dict__.get(_KEPT)  # it was registered under another name
        if known is None:
            known = _emptied(parameter)
            parameter.__dict__[_KEPT] = known
        return known

    hook = register_module_parameter_registration_hook(empty)  # type: ignore[arg-type]  # its stub lacks the result
    try:
        yield
    finally:
        hook.remove()


class Filling:
    """Gives parameters that are on meta their memory and values during `initialize()`."""

    def __init__(self, module: torch.nn.Module, weights: Optional[Weights], init: Optional[Init],
                 missing: list[str]) -> None:
        module = modules.unwrapped(module)
        self._slots = [(part._parameters, name, p) for part in module.modules()
                       for name, p in part._parameters.items() if p is not None]
        self._parameters = [p for _, p in modules.named_parameters(module)]
        self._names = {id(p): name for name, p in modules.named_parameters(module)}
        self._made: dict[int, torch.nn.Parameter] = {}
        self._init = init
        self.failure: Optional[BaseException] = None
        self._owners = self._find_owners(module) if weights is None else []
        source = os.fspath(weights) if isinstance(weights, (str, os.PathLike)) else weights
        self.native = _binding.FirstValues(
            self._replace, source if source is None or isinstance(source, str) else dict(source),
            f"{getattr(module, 'base_model_prefix', '') or ''}.".lstrip("."),
            {name: self._names[id(p)] for name, p in module.named_parameters(remove_duplicate=False)
             if name != self._names[id(p)]},
            missing, [name for name, _ in module.named_buffers()],
            self._fill if weights is None else None,
            [(path, [self._names[id(p)] for _, p in own]) for path, own, _ in self._owners])

    def _find_owners(self, module: torch.nn.Module) -> list[
            tuple[str, list[tuple[str, torch.nn.Parameter]], list[torch.nn.Module]]]:
        """Returns the submodules that own parameters on meta: path, parameters, and the submodule with those around it,
        the innermost first."""
        parts = dict(module.named_modules())
        owners = []
        for path, part in parts.items():
            own = [(name, p) for name, p in part._parameters.items() if p is not None and p.is_meta]
            if not own:
                continue
            pieces = path.split(".") if path else []
            around = [parts[".".join(pieces[:depth])] for depth in range(len(pieces), -1, -1)]
            if self._init is None and not hasattr(part, "reset_parameters"):
                raise Error("model", "a submodule whose parameters are on meta must have reset_parameters() if neither "
                            f"weights nor init is given: got {type(part).__name__} at `{path}`; give weights or init")
            owners.append((path or type(part).__name__, own, around))
        return owners

    def _replace(self, index: int, empty: torch.Tensor) -> torch.Tensor:
        old = self._parameters[index]
        new = torch.nn.Parameter(empty, requires_grad=old.requires_grad)
        new.__dict__.update(old.__dict__)
        self._made[id(old)] = new
        return new

    def _fill(self, index: int, values: list[torch.Tensor]) -> None:
        """Calls init for one submodule and for those around it, as Module.apply() does. Other parameters are on meta
        during the calls, so that they keep their values."""
        _, own, around = self._owners[index]
        mine = {id(p): torch.nn.Parameter(value, requires_grad=p.requires_grad) for (_, p), value in zip(own, values)}
        for slots, name, p in self._slots:
            slots[name] = mine[id(p)] if id(p) in mine else p if p.is_meta else _emptied(p)
        try:
            with torch.no_grad():
                if self._init is None:
                    around[0].reset_parameters()  # type: ignore[operator]
                else:
                    for part in around:
                        self._init(part)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            for slots, name, p in self._slots:
                slots[name] = p

    @contextmanager
    def noting_interrupts(self) -> Iterator[None]:
        """Keeps what Ctrl-C raises inside as the failure. Python may raise it before the first line of a function that
        the compiled part calls, where the function cannot catch it."""
        usual = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(usual):
            yield
            return

        def note(number: int, frame: Optional[FrameType]) -> None:
            try:
                usual(number, frame)
            except BaseException as error:
                self.failure = error
                raise

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)

    def finish(self) -> None:
        """Puts the parameters that were made into the module, under every name."""
        for slots, name, p in self._slots:
            slots[name] = self._made.get(id(p), p)
