"""A strategy for the Trainer of Lightning, which trains with Colossal.

    strategy = ColossalStrategy("train.toml", {"parallel.zero": 3})
    Trainer(strategy=strategy, accelerator="cpu", max_steps=100).fit(module, loader)

Start the script by itself, or its ranks with `colossal run --ranks N -- python script.py`. `configure_optimizers()` of
the module must return None: `[optimizer]` of the config has the optimizer and its schedule.
"""
# mypy: disable-error-code="import-not-found, misc"
# Types are checked where Lightning is missing, too: its classes are Any there.

import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Optional

import torch
from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import ParallelStrategy

import colossal

_STATE = "lightning.ckpt"  # what Lightning itself keeps, beside the folder step-N of a checkpoint
_BYTES = 4  # of an object in one number: such integers are exact in a mean over any number of ranks


class _Optimizer(torch.optim.Optimizer):
    """The optimizer that Lightning calls: its steps are those of the training."""

    def __init__(self, training: colossal.Training) -> None:
        super().__init__(list(training.module.parameters()), {"lr": 0.0})
        self._training = training

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._training.zero_grad()

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        result = closure() if closure is not None else None
        self.param_groups[0]["lr"] = self._training.step().learning_rate  # for callbacks that log it
        return result


class ColossalStrategy(ParallelStrategy):
    """Trains a LightningModule under ZeRO 0 to 3, with the memory, precision and optimizer of a config.

    config, changes: as for `colossal.initialize()`. `training.accumulate` is that of the Trainer, and `training.steps`
    its `max_steps`, unless they are given.
    world: from `colossal.launch()`, which is called without arguments if it is None.

    Checkpoints are folders, which load on any number of ranks. Hooks of the module that change the state dict of a
    checkpoint get an empty one. Errors ("lightning"): options of the Trainer that the config has instead.
    """

    def __init__(self, config: str | Path | Mapping[str, object], changes: Mapping[str, object] = {},
                 world: Optional[colossal.World] = None) -> None:
        super().__init__()
        self._config = config
        self._changes = changes
        self.world = world or colossal.launch()
        self._training: Optional[colossal.Training] = None
        setattr(rank_zero_only, "rank", self.world.rank)  # of what Lightning logs and saves once

    @property
    def training(self) -> colossal.Training:
        """The training, during and after `fit()`."""
        if self._training is None:
            raise colossal.Error("lightning", "a training begins with Trainer.fit(): got none yet; call fit() first")
        return self._training

    # The ranks

    @property
    def root_device(self) -> torch.device:
        return self.world.device

    @property
    def global_rank(self) -> int:
        return self.world.rank

    @property
    def local_rank(self) -> int:
        return self.world.local_rank

    @property
    def world_size(self) -> int:
        return self.world.size

    @property
    def is_global_zero(self) -> bool:
        return self.world.rank == 0

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        return {"num_replicas": self.world.size, "rank": self.world.rank}

    def barrier(self, name: Optional[str] = None) -> None:
        self.world.barrier()

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        means = [self.world.mean(value) for value in tensor.detach().double().flatten().tolist()]
        total = self.world.size if str(reduce_op).lower().endswith("sum") else 1
        return (torch.tensor(means, dtype=torch.float64) * total).view(tensor.shape).to(tensor)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        agreed = self.world.mean(float(decision))
        return agreed == 1 if all else agreed > 0

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Returns the object of rank `src`. It must be small: each number of the exchange carries four bytes."""
        mine = self.world.rank == src
        data = pickle.dumps(obj) if mine else b""
        size = self._from(len(data), mine)
        parts = [self._from(int.from_bytes(data[i:i + _BYTES], "big"), mine) for i in range(0, size, _BYTES)]
        whole = b"".join(part.to_bytes(min(_BYTES, size - i * _BYTES), "big") for i, part in enumerate(parts))
        return obj if mine else pickle.loads(whole)

    def _from(self, number: int, mine: bool) -> int:
        return round(self.world.mean(float(number if mine else 0)) * self.world.size)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        return torch.stack([self.broadcast(tensor.detach().cpu(), rank) for rank in range(self.world.size)]).to(tensor)

    # The training

    def _module(self) -> LightningModule:
        assert self.lightning_module is not None  # Lightning connects it before it calls a strategy
        return self.lightning_module

    def model_to_device(self) -> None:
        if self._training is None:
            self._module().to(self.root_device)

    def setup(self, trainer: Trainer) -> None:
        module = self._module()
        if trainer.training:
            if trainer.gradient_clip_val:
                raise colossal.Error("lightning", "gradient_clip_val of the Trainer must be None: got "
                                     f"{trainer.gradient_clip_val}; set training.clip in the config")
            given = {"training.accumulate": trainer.accumulate_grad_batches}
            if trainer.max_steps > 0:
                given["training.steps"] = trainer.max_steps
            self._training = colossal.initialize(self.world, module, self._config, {**given, **self._changes})
        super().setup(trainer)

    def setup_optimizers(self, trainer: Trainer) -> None:
        if self._module().configure_optimizers() is not None:
            raise colossal.Error("lightning", "configure_optimizers() must return None: got an optimizer; set "
                                 "optimizer.name and optimizer.schedule.name in the config")
        self.optimizers = [_Optimizer(self.training)]
        self.lr_scheduler_configs: list[Any] = []

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        # Lightning has divided the loss by the number of micro-batches, and so does the training.
        self.training.backward(closure_loss * self._module().trainer.accumulate_grad_batches)
        return closure_loss

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        return optimizer.step(closure)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._after_pass(super().validation_step(*args, **kwargs))

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._after_pass(super().test_step(*args, **kwargs))

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._after_pass(super().predict_step(*args, **kwargs))

    def _after_pass(self, result: Any) -> Any:
        if self._training is not None:
            self._training.end_pass()
        return result

    # Checkpoints

    restore_checkpoint_after_setup = True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return {}

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return {}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        self.training.save(filepath)
        if self.is_global_zero:
            torch.save(checkpoint, Path(filepath) / _STATE)
        self.barrier()

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: Optional[bool] = None) -> dict[str, Any]:
        self.training.resume(checkpoint_path)
        state: dict[str, Any] = torch.load(Path(checkpoint_path) / _STATE, weights_only=bool(weights_only))
        return state

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Nothing: `load_checkpoint()` has restored the parameters."""

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Nothing: `load_checkpoint()` has restored the states."""

    def remove_checkpoint(self, filepath: str | Path) -> None:
        if self.is_global_zero:
            shutil.rmtree(filepath, ignore_errors=True)
