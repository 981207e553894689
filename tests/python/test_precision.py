"""Ten steps in fp32, bf16 and fp16 equal those of torch's own loop, up to rounding errors that are counted here.

Every step of torch's loop starts from the weights of the training; each side has its own moments. Forward and backward
then run the same operators on the same numbers, so the loss and the gradients of a rank are the same bits. Two sources
of error are left. u and W are unit roundoffs, of the compute dtype and of fp32: half the distance from 1 to the next
number.

- The sum of the gradients of two ranks is rounded once to the compute dtype: a relative error of u.
- The training updates in fp32, with an error of W per operation. Torch's loop updates in fp64.

Bounds add up these errors to first order, element by element. `HIGHER` is room for products of errors, each below 1 %.
"""

import copy
from dataclasses import dataclass, field

import pytest
import torch

import colossal
import ranks
from models import CASES, Case

STEPS, ROWS = 10, 4
DECAY, MOMENTUM, BETAS, EPSILON = 0.1, 0.9, (0.9, 0.95), 1e-8
RATES = {"adamw": 3e-3, "sgd": 0.1}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LOSS_SCALE = 1024  # of fp16; gradients of these modules stay below 64, so none overflows
W = torch.finfo(torch.float32).eps / 2
RUN = 1024  # squares of gradients are summed in fp32 over at most so many elements, and these sums in fp64
HIGHER = 1.01

Tensors = dict[str, torch.Tensor]


@dataclass
class Bound:
    """Bounds of the error of weights after a step. `magnitude` is what the first moment would be with the magnitudes of
    all gradients, so no cancellation hides an error. `gradient` is the relative error of a gradient."""

    optimizer: str
    gradient: float
    magnitude: Tensors = field(default_factory=dict)

    def of(self, step: int, name: str, p: torch.Tensor, g: torch.Tensor, v: torch.Tensor, decay: float) -> torch.Tensor:
        """Returns the bound for a parameter of the value p before step number `step`, with gradient g and second
        moment v."""
        before = self.magnitude.get(name, torch.zeros_like(g))
        rate = RATES[self.optimizer]
        if self.optimizer == "sgd":
            # g + decay p, momentum b and their sum: 4 roundings a step. rate b and p - rate b: 3, with that of rate.
            self.magnitude[name] = MOMENTUM * before + g.abs() + decay * p.abs()
            return HIGHER * (W * p.abs() + rate * self.magnitude[name] * (self.gradient + (4 * step + 3) * W))
        # m: 4 roundings a step. v: 4 a step, and twice the gradient's error; the root halves both. The denominator
        # adds 4, the quotient and its product with the rate 4, the difference 1. p decay: 3, with the difference.
        self.magnitude[name] = BETAS[0] * before + (1 - BETAS[0]) * g.abs()
        ratio = self.magnitude[name] / (1 - BETAS[0]**step) / ((v / (1 - BETAS[1]**step)).sqrt() + EPSILON)
        return HIGHER * (3 * W * p.abs() + rate * ratio * (2 * self.gradient + (4 * step + 2 * step + 9) * W))


class TorchLoop:
    """Torch's loop over all ranks' rows: a module in the compute dtype, weights and moments in fp64."""

    def __init__(self, case: Case, dtype: torch.dtype, optimizer: str, addresses: dict[str, int]) -> None:
        self.case = case
        self.module = copy.deepcopy(case.module).to(dtype)
        self.scale = LOSS_SCALE if dtype == torch.float16 else 1
        for name, p in self.module.named_parameters():
            p.data = _at_address(p.data, addresses[name])
        self.weights = {name: p.detach().double() for name, p in self.module.named_parameters()}
        groups = [{"params": [p], "weight_decay": self.decay(p)} for p in self.weights.values()]
        rate = RATES[optimizer]
        self.optimizer = (torch.optim.SGD(groups, rate, MOMENTUM) if optimizer == "sgd" else
                          torch.optim.AdamW(groups, rate, BETAS, EPSILON))

    @staticmethod
    def decay(p: torch.Tensor) -> float:
        return DECAY if p.dim() >= 2 else 0

    def start_from(self, weights: Tensors) -> None:
        with torch.no_grad():
            for name, p in self.module.named_parameters():
                self.weights[name].copy_(weights[name])
                p.copy_(weights[name])

    def backward(self, batch: torch.Tensor, size: int) -> list[float]:
        """Sets the gradients of the mean over the ranks, and returns each rank's loss."""
        losses, sums = [], {name: torch.zeros_like(p) for name, p in self.weights.items()}
        for rows in batch.split(ROWS // size):
            self.module.zero_grad()
            loss = self.case.loss(self.module, rows)
            loss.float().backward(torch.tensor(self.scale / size))
            losses.append(loss.item())
            for name, p in self.module.named_parameters():
                sums[name] += p.grad.double() / self.scale
        for name, p in self.weights.items():
            p.grad = sums[name]
        return losses

    def norm(self) -> float:
        return float(torch.stack([p.grad.norm() for p in self.weights.values()]).norm())

    def step(self, factor: float) -> None:
        for p in self.weights.values():
            p.grad *= factor
        self.optimizer.step()


def _at_address(value: torch.Tensor, address: int) -> torch.Tensor:
    """Returns a copy of the tensor whose place in a cache line is that of the address. Matrix libraries may choose
    another order of sums for another place."""
    line = 64
    memory = torch.empty(value.nbytes + 2 * line, dtype=torch.uint8)
    first = (address - memory.data_ptr()) % line
    placed = memory[first:first + value.nbytes].view(value.dtype).view(value.shape)
    return placed.copy_(value)


def addresses_of(training: colossal.Training) -> dict[str, int]:
    with training.gathered():
        return {name: p.data_ptr() for name, p in training.module.named_parameters()}


def compare(world: colossal.World, case: Case, batches: list[torch.Tensor], mode: str, optimizer: str, zero: int,
            what: str) -> None:
    own = {"momentum": MOMENTUM} if optimizer == "sgd" else {"epsilon": EPSILON, "betas": list(BETAS)}
    clip = 0 if optimizer == "sgd" else 1  # a step of AdamW, or one that is clipped, hides a factor of all gradients
    scale = {"precision.loss_scale": LOSS_SCALE} if mode == "fp16" else {}
    training = colossal.initialize(world, copy.deepcopy(case.module), {
        "precision.mode": mode, **scale, "parallel.zero": zero, "training.clip": clip,
        "optimizer": {"name": optimizer, "learning_rate": RATES[optimizer], "weight_decay": DECAY, "warmup_steps": 0,
                      "schedule": "constant", **own}})
    dtype = DTYPES[mode]
    loop = TorchLoop(case, dtype, optimizer, addresses_of(training))
    summed = torch.finfo(dtype).eps / 2 if world.size > 1 else 0
    bound = Bound(optimizer, summed + 3 * W)  # its factor is rounded, and the product
    mine = slice(world.rank * ROWS // world.size, (world.rank + 1) * ROWS // world.size)
    for step, batch in enumerate(batches, 1):
        weights = {name: value.double() for name, value in training.named_tensors()}
        loop.start_from(weights)
        losses = loop.backward(batch, world.size)
        training.zero_grad()
        training.backward(case.loss(training.module, batch[mine]))
        result = training.step()
        assert training.loss == losses[world.rank], f"{what}: loss of step {step}: {training.loss} for {losses}"
        norm = loop.norm()
        error = HIGHER * (summed + RUN / 2 * W) * norm  # the root halves the error of the squares
        assert abs(result.gradient_norm - norm) <= error, f"{what}: norm of step {step}: {result} for {norm}"
        loop.step(min(1, clip / result.gradient_norm) if clip else 1)
        for name, value in training.named_tensors():
            right = loop.weights[name]
            v = loop.optimizer.state[right].get("exp_avg_sq", right)
            limit = bound.of(step, name, weights[name], right.grad, v, loop.decay(right))
            excess = ((value - right).abs() / limit.clamp(min=1e-300)).max().item()
            assert excess <= 1, f"{what}: {name} differs in step {step} by {excess} times its bound"
    training.close()


def equal_torch(world: colossal.World, mode: str) -> None:
    for name in ("plain", "gpt2"):
        torch.manual_seed(1)
        case = CASES[name]()
        batches = [case.batch(ROWS) for _ in range(STEPS)]
        for optimizer in RATES:
            for zero in (0, 3):
                what = f"{name} in {mode} on {world.size} ranks, {optimizer}, zero {zero}"
                compare(world, case, batches, mode, optimizer, zero, what)


@pytest.mark.parametrize("mode", DTYPES)
def test_one_rank_equals_torch(world: colossal.World, mode: str) -> None:
    equal_torch(world, mode)


def equal_torch_in_all(world: colossal.World) -> None:
    for mode in DTYPES:
        equal_torch(world, mode)


def test_two_ranks_equal_torch() -> None:
    ranks.run(equal_torch_in_all, 2)
