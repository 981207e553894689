"""Training of a torch module, which stays as it is."""

import json
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch

from . import _binding, config as configs, module as modules, pretrained
from .empty import Filling, Init, Weights
from .error import Error
from .own_process import OwnProcess
from .world import World, _log

StepResult = _binding.StepResult
Path = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Resumed:
    """The checkpoint that `Training.resume()` has found."""

    step: int
    """The number of finished steps."""
    extra: Any
    """The value that `Training.save()` was given."""
    changes: str = ""
    """The keys of the config that changed how the training continues, with both values."""


class Training:
    """One rank's replica of a module in training. Made by `initialize()`. A step:

        training.zero_grad()
        for batch in micro_batches:                       # training.accumulate of them, this rank's rows
            training.backward(loss_of(model(training.input(batch))))
        training.step()

    All ranks must call the same operators on parameters in the same order. Do not use an optimizer of torch,
    `loss.backward()` or `model.zero_grad()`. Values that a script writes into parameters are kept, in place
    (`load_state_dict()`, `copy_()`, `torch.nn.init`) or as `parameter.data`; all ranks must write the same ones. Under
    ZeRO 3 and with tiers of [memory] the memory of a parameter exists only while an operator uses it: code that reads
    or writes memory directly needs `gathered()`. After the training has ended, parameters keep their values, except in
    these two cases.

    A training stays alive until nothing refers to it or it is closed, at the latest until the interpreter exits. Ctrl-C
    raises KeyboardInterrupt once the call in progress returns. The call has then done its work on all ranks, and its
    result is lost: the script may go on.
    """

    def __init__(self, world: World, module: torch.nn.Module, native: _binding.Training, settings: _binding.Config,
                 unchanged: modules.Unchanged) -> None:
        self.world = world
        self.module = module
        self._held = [native]
        self._own = OwnProcess("training", "a training", "start workers before initialize(), or pass them tensors only")
        self._unchanged = unchanged
        self._buffers = modules.Buffers(module)
        self._close = weakref.finalize(self, _end, self._held, self._own, _without_weight_cache(settings))

    @property
    def _native(self) -> _binding.Training:
        if not self._held:
            raise Error("training", "a training must be open: got one that was closed; call initialize() again")
        self._own.require()
        return self._held[0]

    @property
    def steps_done(self) -> int:
        """The number of finished steps, those before a resume included."""
        return self._native.steps_done

    @property
    def loss(self) -> float:
        """This rank's loss of the last `step()`: the weighted mean of those given to `backward()`. See `mean()`."""
        return self._native.loss

    def input(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor on the run's device, with floating-point values in the compute dtype."""
        return self._native.input(tensor)

    def zero_grad(self) -> None:
        """Clears gradients and the count of micro-batches. Call it before the first `backward()` of a step. The first
        forward pass may precede it."""
        self._native.zero_grad()

    def backward(self, loss: torch.Tensor, weight: float = 1.0) -> None:
        """Runs backward from the loss of a micro-batch, a scalar. Collective.

        Gradients are those of sum(weight * loss) / sum(weight) over all ranks and micro-batches of the step. With the
        number of tokens as weight, uneven batches have the right mean.

        Errors ("training"): a loss that is no scalar or has no gradient; more calls than `training.accumulate`.
        ("model"): a parameter that was replaced, whose requires_grad, dtype, device or shape has changed, or that got a
        hook of `register_post_accumulate_grad_hook()`.
        """
        self._unchanged.require()
        self._native.backward(loss, float(weight))

    def step(self) -> StepResult:
        """Clips gradients, updates parameters and counts the step. Returns `learning_rate`, `gradient_norm` (before
        clipping) and `skipped` (True if gradients overflowed in fp16). Collective.

        Errors ("training"): fewer calls of `backward()` than `training.accumulate`; gradients that are not finite.
        """
        self._unchanged.require()
        return self._native.step()

    def mean(self, number: float) -> float:
        """Returns the mean of every rank's number, the same on all ranks. Collective."""
        return self._native.mean(float(number))

    def end_pass(self) -> None:
        """Releases gathered parameters. Call it after a forward pass without a backward pass; `evaluate()` does."""
        self._native.end_pass()

    @contextmanager
    def evaluate(self) -> Iterator[None]:
        """Evaluation mode without gradients inside. Afterwards every submodule has the mode from before, and gathered
        parameters are released. Collective."""
        modes = [(part, part.training) for part in self.module.modules()]
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for part, mode in modes:
                part.training = mode
            self.end_pass()

    @contextmanager
    def gathered(self, *parameters: torch.Tensor) -> Iterator[None]:
        """Parameters (default: all) are whole inside, for code that reads or writes their memory directly: `numpy()`,
        `data_ptr()`, kernels of your own. Collective.

        Values that are written inside are kept unless an exception leaves the block. `step()` and `resume()` must be
        called outside. Errors ("training"): a tensor that is no parameter of the module; ranks that wrote different
        values.
        """
        scope = self._native.gathered(list(parameters))
        try:
            yield
        except BaseException:
            del scope
            raise
        scope.end()

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields name and value of each parameter and then of each persistent buffer, whole, on the CPU, one at a time.
        Values are exact: those of master weights, if there are any, and rank 0's of buffers. Collective: every rank
        must iterate equally far."""
        self._prepare_to_read()
        tensors = self._native.named_tensors()
        while (found := tensors.next()) is not None:
            yield found
            self._own.require()

    def save(self, folder: Path, extra: object = None) -> None:
        """Saves folder/step-<steps_done>, a checkpoint that loads on any number of ranks, under any ZeRO stage. The
        `training.keep_last` newest are kept. Collective.

        It holds parameters (master weights, if there are any), persistent buffers (those of rank 0), optimizer states
        and the state of torch's random generators on every rank. `extra` is a value of JSON, for example the epoch;
        that of rank 0 is saved. Errors ("run"): another run is writing to the folder.
        """
        try:
            text = json.dumps(extra, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise Error("checkpoint", f"extra must be a value of JSON: got {type(extra).__name__}: {error}") from None
        self._prepare_to_read()
        self._native.save(os.fspath(folder), text)

    def resume(self, folder: Path) -> Optional["Resumed"]:
        """Continues from the newest checkpoint in `folder`. Returns its step and the `extra` of `save()`, or None if
        the folder holds none. Collective. With the number of ranks that saved it, torch's random generators continue,
        too. A config that changes the training is accepted with a warning (`Resumed.changes`). Errors ("checkpoint"):
        a damaged or incomplete checkpoint, or one of another module or optimizer."""
        self._prepare_to_read()
        self._buffers.restore()
        found = self._native.resume(os.fspath(folder))
        if found is None:
            return None
        step, extra, changes = found
        if changes and self.world.rank == 0:
            _log.warning("the training continues differently than it began: " + changes)
        return Resumed(step, json.loads(extra), changes)

    def record(self, folder: Path) -> None:
        """Writes what `colossal train` writes to its run folder, from the next `step()` on: `metrics.jsonl`, the config
        and TensorBoard events. `colossal report FOLDER` makes a report of them. Collective.

        Call it after `resume()`. A training that continues keeps the rows up to its step; another one starts the files
        anew. Errors ("run"): the folder has a checkpoint from which the training does not continue.
        """
        self._native.record(os.fspath(folder), type(modules.unwrapped(self.module)).__name__, list(sys.argv))

    def note(self, **values: float) -> None:
        """Adds values to the record of the last step, for example `eval_loss`. Call it on every rank, with the same
        names, before the next `zero_grad()`; rank 0's values count. Does nothing without `record()`."""
        for name, value in values.items():
            self._native.note(name, float(value))

    def save_pretrained(self, folder: Path, dtype: Optional[torch.dtype] = None) -> None:
        """Writes a folder of Hugging Face: the weights and, for a module of transformers, its config. For a model of
        peft it is the folder of its adapters. Floating-point values are written in `dtype`, by default the compute
        dtype. Collective. A rank holds one whole tensor at a time, and rank 0 the adapters.

        Errors ("model"): a module whose config describes other tensors than it has, for example one around a model of
        transformers; its folder would load with random values.
        """
        self._prepare_to_read()
        path, inner = os.fspath(folder), modules.unwrapped(self.module)
        dtype = dtype or next(self.module.parameters()).dtype
        if pretrained.is_adapter(inner):
            names = pretrained.adapter_names(inner)
            values = {alias: value.to(dtype) if value.is_floating_point() else value
                      for name, value in self.named_tensors() if self.world.rank == 0
                      for alias in names.get(name, [])}
            with self.gathered(*(p for p in inner.parameters() if p.requires_grad)):  # for prompts, which it computes
                self._write_on_first(path, lambda: pretrained.write_adapter(path, inner, values))
            return
        pretrained.require_complete(inner)
        self._native.save_pretrained(path, dtype)
        self._write_on_first(path, lambda: pretrained.write_config(path, inner, dtype))

    def _write_on_first(self, folder: str, write: Callable[[], None]) -> None:
        """Calls write() on rank 0. All ranks raise an error if it fails."""
        failure: Optional[Exception] = None
        if self.world.rank == 0:
            try:
                write()
            except Exception as error:  # the other ranks learn of it below
                failure = error
        failed = self.mean(0.0 if failure is None else 1.0)
        if failure is not None:
            raise failure
        if failed > 0:
            raise Error("checkpoint", f"rank 0 must be able to write to {folder}: got an error there, which it reports")

    def _prepare_to_read(self) -> None:
        self._unchanged.require_same()
        self._buffers.take()

    def close(self) -> None:
        """Ends the training. Under ZeRO 3 and with tiers parameters lose their values. A second call does nothing, nor
        does one in a forked child."""
        if self._own.is_this:
            self._close()


def _end(held: list[_binding.Training], own: OwnProcess, restore_cache: Callable[[], None]) -> None:
    if own.is_this:
        held.clear()
        restore_cache()


def _releases_parameters(settings: _binding.Config) -> bool:
    return settings.zero == 3 or settings.has_tiers


class _WeightCache:
    """torch.autocast's cache of cast weights, which all trainings of the process share. It would keep the weights of a
    model whole, so it is off while a training needs that."""

    _lock = threading.RLock()  # a finalizer may run in the middle of a call
    _trainings = 0
    _was_enabled = True

    @classmethod
    def begin_without(cls) -> None:
        with cls._lock:
            if cls._trainings == 0:
                cls._was_enabled = torch.is_autocast_cache_enabled()
            cls._trainings += 1
            torch.set_autocast_cache_enabled(False)

    @classmethod
    def end_without(cls) -> None:
        """Ends one begin_without(). The last one restores the cache."""
        with cls._lock:
            cls._trainings -= 1
            if cls._trainings == 0:
                torch.set_autocast_cache_enabled(cls._was_enabled)


def _without_weight_cache(settings: _binding.Config) -> Callable[[], None]:
    """Switches the cache off if parameters are released. Returns a function that ends this, to be called once."""
    if not _releases_parameters(settings):
        return lambda: None
    _WeightCache.begin_without()
    return _WeightCache.end_without


def initialize(world: World, module: torch.nn.Module, config: configs.Source,
               changes: Mapping[str, object] = {}, *, first_pass: Optional[Callable[[], object]] = None,
               weights: Optional[Weights] = None, init: Optional[Init] = None, missing: Iterable[str] = ()) -> Training:
    """Prepares a module for training, without changing it. Collective among all ranks, each with the same module.

    config: the path of a TOML file, or a mapping with dotted or nested keys. `colossal help config` lists the keys.
        Read are [parallel] data and zero, [precision], [memory], [optimizer] and [training].
    changes: a mapping over it.
    first_pass: runs forward once. Parameters are then packed in the order of their first use, otherwise in that of
        their registration.
    weights: values by name: a folder of Hugging Face, a file of safetensors, or a mapping of tensors.
    missing: names or patterns (`classifier.*`) of parameters that weights may lack: they keep their values.
    init: function that sets the parameters of a submodule in place. It is called for each submodule that has some, and
        then for those around it, as by `Module.apply()`; parameters of other submodules are on meta meanwhile.

    Parameters that `empty_parameters()` left without memory get values from weights, from init, or, without both, from
    the `reset_parameters()` of their submodule, one chunk after another, so that the module never exists whole.

    Parameters and buffers start with rank 0's values and move to the device of `world`. Floating-point parameters and
    persistent buffers get the compute dtype of [precision] mode. `parallel.data` defaults to `world.size`.

    Ctrl-C raises KeyboardInterrupt. Empty parameters then stay empty, and other ranks may raise `Error`; other
    parameters are as after `Training.close()`.

    Errors ("config"): unknown keys, wrong types, values out of range. ("training"): no `training.steps`, unless the
    schedule is constant. ("model"): a module of DDP, FSDP or DeepSpeed; DTensors and quantized parameters; hooks of
    `register_post_accumulate_grad_hook()` on trained parameters; `torch.compile()` under ZeRO 3 or with tiers.
    Weights of other tensors than the module's, with a table of all.
    ("parallel"), ("precision"), ("memory"): axes and modes that need layers of this library.
    """
    settings, notices = configs.read(config, changes, world.size)
    for notice in notices:
        _log.warning(notice)
    modules.refuse_wrappers(module)
    parameters = modules.named_parameters(module)
    modules.refuse_parameters(parameters)
    if _releases_parameters(settings) and modules.is_compiled(module):
        raise Error("model", "a module must not be compiled under parallel.zero = 3 or with tiers of [memory], because "
                    "compiled code reads the memory of parameters that are released: got torch.compile(); leave it "
                    "out, or set parallel.zero = 2 without [memory]")
    if weights is not None and init is not None:
        raise Error("model", "initialize() takes either weights or init: got both; leave one of them out")
    lacking = modules.matching(module, missing)
    if lacking and weights is None:
        raise Error("model", f"missing goes with weights: got {', '.join(lacking)} without them; leave it out")
    module._apply(  # type: ignore[no-untyped-call]
        lambda tensor: tensor if tensor.is_meta else tensor.to(world.device))
    filling = Filling(module, weights, init, lacking) if weights is not None or modules.has_empty(module) else None
    try:
        with nullcontext() if filling is None else filling.noting_interrupts():
            native = _binding.Training(world._joined, modules.tensors_of(module), settings, first_pass,
                                       None if filling is None else filling.native)
    except Error as error:
        if filling is None or filling.failure is None:
            raise
        raise filling.failure from error  # an exception of init, or of Ctrl-C, on the rank that has it
    if filling is not None:
        filling.finish()
    return Training(world, module, native, settings, modules.Unchanged(module))
