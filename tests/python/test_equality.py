"""After ten steps in fp64, losses and weights of modules equal those of torch's own loop."""

import copy
import math
from pathlib import Path

import pytest
import torch

import colossal
import ranks
from models import CASES, DIFFUSERS, Case

STEPS = 10
ROWS = 4
RATE, DECAY, EPSILON = 3e-3, 0.1, 1e-8
MUON_EPSILON = 1e-3

# fp64 has a rounding error of 1.1e-16. Ten steps of sums over some hundred elements stay far below 1e-12; weights whose
# gradient is zero but for rounding are divided by its own size, so their error is up to rate * 1e-16 / epsilon.
EXACT, ROUNDED = 1e-12, 1e-10


class Muon(torch.optim.Optimizer):
    """The formula of optimizer.name = "muon" for matrices."""

    def __init__(self, matrices: list[torch.Tensor]) -> None:
        super().__init__(matrices, {})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            g = p.grad.flatten(1)
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(g))
            momentum.lerp_(g, 0.05)
            x = g.lerp(momentum, 0.95)
            x = x.T if x.shape[0] > x.shape[1] else x
            x = x / x.norm().clamp(min=1e-7)
            for _ in range(5):
                a = x @ x.T
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            x = x.T if g.shape[0] > g.shape[1] else x
            scale = 0.2 * math.sqrt(max(g.shape))
            p.sub_(RATE * (scale * x.reshape(p.shape) + DECAY * p))


def optimizers(module: torch.nn.Module, name: str) -> list[torch.optim.Optimizer]:
    tables = [part.weight for part in module.modules() if isinstance(part, torch.nn.Embedding)]
    parameters = list(module.parameters())
    matrices = [p for p in parameters if p.dim() >= 2 and not any(p is table for table in tables)]
    by_muon = matrices if name == "muon" else []
    others = [p for p in parameters if not any(p is m for m in by_muon)]
    adamw = torch.optim.AdamW([{"params": [p for p in others if p.dim() >= 2], "weight_decay": DECAY},
                               {"params": [p for p in others if p.dim() < 2], "weight_decay": 0}], lr=RATE,
                              betas=(0.9, 0.95), eps=MUON_EPSILON if name == "muon" else EPSILON)
    return [adamw, Muon(by_muon)] if by_muon else [adamw]


def torch_run(case: Case, batches: list[torch.Tensor], optimizer: str) -> tuple[list[float], torch.nn.Module]:
    """Returns the losses of torch's own loop over whole batches, and the module after it."""
    module = copy.deepcopy(case.module).double()
    steps = optimizers(module, optimizer)
    losses = []
    for batch in batches:
        module.zero_grad()
        loss = case.loss(module, batch)
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in module.parameters() if p.grad is not None]).norm()
        for p in module.parameters():
            if p.grad is not None:
                p.grad *= min(1, 1 / norm)
        for step in steps:
            step.step()
        losses.append(loss.item())
    return losses, module


def config_of(optimizer: str, zero: int, tier: str, folder: str) -> dict[str, object]:
    tiers = {"none": {}, "host": {"memory.host": "64MiB"}, "disk": {"memory.disk": folder}}
    return {"precision.mode": "fp64", "parallel.zero": zero, **tiers[tier],
            "optimizer": {"name": optimizer, "learning_rate": RATE, "weight_decay": DECAY, "warmup_steps": 0,
                          "schedule": "constant", "epsilon": MUON_EPSILON if optimizer == "muon" else EPSILON}}


def compare(world: colossal.World, case: Case, batches: list[torch.Tensor],
            expected: tuple[list[float], torch.nn.Module], config: dict[str, object], what: str) -> None:
    module = copy.deepcopy(case.module)
    training = colossal.initialize(world, module, config)
    rows = slice(world.rank * ROWS // world.size, (world.rank + 1) * ROWS // world.size)
    losses = []
    for batch in batches:
        training.zero_grad()
        training.backward(case.loss(module, batch[rows]))
        training.step()
        losses.append(training.mean(training.loss))
    for step, (loss, right) in enumerate(zip(losses, expected[0])):
        assert abs(loss - right) <= EXACT * max(1, abs(right)), f"{what}: loss of step {step}: {loss} for {right}"
    for (name, p), right in zip(module.named_parameters(), expected[1].parameters()):
        error = (p.detach() - right).abs().max().item()
        is_rounding = right.grad is None or right.grad.abs().max() < 1e-15
        assert error <= (ROUNDED if is_rounding else EXACT), f"{what}: {name} differs by {error}"
    training.close()


def layouts(name: str) -> list[tuple[int, str]]:
    if name == "plain":
        return [(zero, tier) for zero in range(4) for tier in ("none", "host", "disk")]
    if name in DIFFUSERS:
        return [(3, "disk")]
    return [(0, "none"), (1, "none"), (2, "none"), (3, "none"), (0, "host"), (3, "disk")]


def equal_torch(world: colossal.World, name: str, folder: str) -> None:
    """Trains the module under every layout and optimizer."""
    torch.manual_seed(1)
    case = CASES[name]()
    batches = [case.batch(ROWS) for _ in range(STEPS)]
    for optimizer in ("adamw",) if name in DIFFUSERS else ("adamw", "muon"):
        expected = torch_run(case, batches, optimizer)
        for zero, tier in layouts(name):
            what = f"{name} on {world.size} ranks, {optimizer}, zero {zero}, {tier}"
            compare(world, case, batches, expected, config_of(optimizer, zero, tier, folder), what)


@pytest.mark.parametrize("name", CASES)
def test_one_rank_equals_torch(world: colossal.World, name: str, tmp_path: Path) -> None:
    equal_torch(world, name, str(tmp_path))


def equal_torch_for_all(world: colossal.World, folder: str) -> None:
    for name in CASES:
        equal_torch(world, name, folder)


def test_two_ranks_equal_torch(tmp_path: Path) -> None:
    ranks.run(equal_torch_for_all, 2, str(tmp_path))
