"""The strategy for Lightning, against the same steps with Colossal alone."""

from pathlib import Path

import pytest
import torch

import colossal

pytest.importorskip("pytorch_lightning", reason="Lightning is not installed")
from pytorch_lightning import LightningModule, Trainer  # noqa: E402

from colossal.integrations.lightning import ColossalStrategy  # noqa: E402

CONFIG = {"precision.mode": "fp64", "optimizer": {"warmup_steps": 0, "schedule.name": "constant"}, "parallel.zero": 3}
ROWS = torch.randn(12, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Net(LightningModule):

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(4, 3)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.layer(batch).square().mean()

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("held_out", self.layer(batch).square().mean())

    def test_step(self, batch: torch.Tensor, index: int) -> None:
        self.layer(batch)

    def predict_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.layer(batch)

    def configure_optimizers(self) -> None:
        return None


def fitted(world: colossal.World, folder: Path, steps: int, resume: object = None, rows: torch.Tensor = ROWS,
           **options: object) -> ColossalStrategy:
    """Trains Net for some steps of batches of two rows, in order."""
    strategy = ColossalStrategy(CONFIG, world=world)
    trainer = Trainer(strategy=strategy, accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
                      use_distributed_sampler=False, **options)
    loader = torch.utils.data.DataLoader(rows, batch_size=2)
    trainer.fit(Net(), loader, loader if options.get("limit_val_batches") else None, ckpt_path=resume)
    trainer.save_checkpoint(folder / f"{steps}.ckpt")
    return strategy


def expected(world: colossal.World, steps: int, accumulate: int = 1,
             rows: torch.Tensor = ROWS) -> dict[str, torch.Tensor]:
    net = Net()
    training = colossal.initialize(world, net, CONFIG, {"training.steps": steps, "training.accumulate": accumulate})
    for step in range(steps):
        training.zero_grad()
        for i in range(accumulate):
            begin = 2 * (step * accumulate + i) % len(rows)
            training.backward(net.layer(rows[begin:begin + 2]).square().mean())
        training.step()
    return dict(training.named_tensors())


def same(strategy: ColossalStrategy, tensors: dict[str, torch.Tensor]) -> bool:
    found = dict(strategy.training.named_tensors())
    return found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_steps_equal_those_of_a_loop(world: colossal.World, tmp_path: Path) -> None:
    assert same(fitted(world, tmp_path, 4), expected(world, 4))


def test_micro_batches_are_accumulated(world: colossal.World, tmp_path: Path) -> None:
    assert same(fitted(world, tmp_path, 3, accumulate_grad_batches=2), expected(world, 3, 2))


def test_validation_leaves_the_training_unchanged(world: colossal.World, tmp_path: Path) -> None:
    assert same(fitted(world, tmp_path, 4, limit_val_batches=2, val_check_interval=2), expected(world, 4))


def test_every_pass_without_backward_ends(world: colossal.World, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, net = ColossalStrategy(CONFIG, world=world), Net()
    trainer = Trainer(strategy=strategy, accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
                      use_distributed_sampler=False)
    loader = torch.utils.data.DataLoader(ROWS, batch_size=4)
    trainer.fit(net, loader)
    ended = []
    monkeypatch.setattr(strategy.training, "end_pass", lambda: ended.append(1))
    for run in (trainer.validate, trainer.test, trainer.predict):
        ended.clear()
        run(net, loader)
        assert len(ended) == 3, run


def test_a_checkpoint_continues(world: colossal.World, tmp_path: Path) -> None:
    rows = ROWS[:2]  # one batch, because Lightning begins a loader again
    fitted(world, tmp_path, 2, rows=rows)
    assert same(fitted(world, tmp_path, 4, tmp_path / "2.ckpt", rows), expected(world, 4, rows=rows))


def test_clipping_of_the_trainer_is_refused(world: colossal.World, tmp_path: Path) -> None:
    with pytest.raises(colossal.Error, match="gradient_clip_val .* set training.clip"):
        fitted(world, tmp_path, 1, gradient_clip_val=1.0)


def test_objects_of_rank_0_arrive(world: colossal.World) -> None:
    value = {"path": "runs/a", "step": 7}
    assert ColossalStrategy(CONFIG, world=world).broadcast(value) == value
