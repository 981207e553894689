"""Values that a script writes into parameters after initialize() are kept, or refused by name."""

import copy
from collections.abc import Callable

import pytest
import torch

import colossal
import ranks

CONFIG = {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0, "optimizer.learning_rate": 1e-3,
          "optimizer.weight_decay": 0}
LAYOUTS: list[dict[str, object]] = [
    {}, {"parallel.zero": 1}, {"parallel.zero": 2}, {"parallel.zero": 3}, {"memory.host": "64MiB"},
    {"parallel.zero": 1, "memory.host": "64MiB"}, {"parallel.zero": 3, "memory.host": "64MiB"},
    {"parallel.zero": 3, "parallel.max_gathered_mib": 64}, {"parallel.zero": 3, "parallel.compress": "int8"},
    {"parallel.zero": 2, "parallel.compress": "int8"}]
MODES = ["fp32", "bf16", "fp16"]


def network() -> torch.nn.Module:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(8, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))


def step(training: colossal.Training) -> None:
    training.zero_grad()
    generator = torch.Generator().manual_seed(training.steps_done)
    x = torch.randn(4, 8, generator=generator)
    training.backward(training.module(training.input(x)).float().square().mean())
    training.step()


Write = Callable[[torch.nn.Module, dict[str, torch.Tensor]], object]


def each(write: Callable[[torch.Tensor, torch.Tensor], object]) -> Write:
    """Returns a function that calls write(parameter, new value) for each parameter, without gradients."""

    def all_of_them(module: torch.nn.Module, new: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, p in module.named_parameters():
                write(p, new[name].to(p.dtype))

    return all_of_them


def set_data(p: torch.Tensor, value: torch.Tensor) -> None:
    p.data = value


def rows(p: torch.Tensor, value: torch.Tensor) -> None:
    for index in range(len(p)):
        p[index] = value[index]


def in_inference_mode(module: torch.nn.Module, new: dict[str, torch.Tensor]) -> None:
    with torch.inference_mode():
        for name, p in module.named_parameters():
            p.data.copy_(new[name])


def as_vector(module: torch.nn.Module, new: dict[str, torch.Tensor]) -> None:
    dtype = next(module.parameters()).dtype
    torch.nn.utils.vector_to_parameters(torch.cat([v.flatten() for v in new.values()]).to(dtype), module.parameters())


def foreach(module: torch.nn.Module, new: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        torch._foreach_copy_(list(module.parameters()), list(new.values()))


WAYS: dict[str, Write] = {
    "load_state_dict": lambda module, new: module.load_state_dict(new),
    "copy_": each(lambda p, value: p.copy_(value)),
    "p.data.copy_": each(lambda p, value: p.data.copy_(value)),
    "p.data": each(set_data),
    "p.set_": each(lambda p, value: p.set_(value)),
    "rows": each(rows),
    "out": each(lambda p, value: torch.mul(value, 1, out=p.detach())),
    "inference mode": in_inference_mode,
    "vector_to_parameters": as_vector,
    "foreach": foreach,
}


def deviation(training: colossal.Training, new: dict[str, torch.Tensor]) -> float:
    return max(float((value.float() - new[name]).abs().max()) for name, value in training.named_tensors())


def kept(world: colossal.World) -> None:
    """Values are read back, and the step after that starts from them. A step of Adam moves an element by its rate."""
    for layout in LAYOUTS:
        for mode in MODES:
            module = network()
            training = colossal.initialize(world, module, CONFIG, {**layout, "precision.mode": mode})
            step(training)
            ways = WAYS if mode == "bf16" else {way: WAYS[way] for way in ("load_state_dict", "p.data.copy_", "p.data")}
            for number, (way, write) in enumerate(ways.items()):
                case = f"{way} {layout} {mode}"
                sign = (-1)**number / 64  # every dtype holds it, and fp16 does not overflow
                new = {name: torch.full_like(v, sign, dtype=torch.float32) for name, v in training.named_tensors()}
                write(module, new)
                if number % 3 == 0:
                    assert deviation(training, new) <= (1e-3 if "parallel.compress" in layout else 0), case
                step(training)
                assert 0 < deviation(training, new) < 0.02, case
            training.close()


def test_written_values_are_kept(world: colossal.World) -> None:
    kept(world)


def test_written_values_are_kept_on_two_ranks() -> None:
    ranks.run(kept, 2)


def gathered(world: colossal.World) -> None:
    """Writes by address are kept if the ranks agree."""
    for layout in LAYOUTS:
        module = network()
        training = colossal.initialize(world, module, CONFIG, {**layout, "precision.mode": "fp32"})
        step(training)
        new = {name: value.clone() for name, value in training.named_tensors()}
        new["2.bias"][1] = 7
        with training.gathered(module[2].bias):
            module[2].bias.detach().numpy()[1] = 7
        exact = "parallel.compress" not in layout  # a compressed gather rounds what the parameter shows
        assert deviation(training, new) < (1e-30 if exact else 0.01), layout
        step(training)
        assert abs(dict(training.named_tensors())["2.bias"][1] - 7) < 0.02, layout
        with pytest.raises(ZeroDivisionError), training.gathered():
            1 / 0
        if world.size > 1 and layout.get("parallel.zero") == 3:
            before = dict(training.named_tensors())
            with pytest.raises(colossal.Error, match="must be the same on all ranks"), training.gathered():
                if world.rank == 0:
                    module[0].bias.detach().numpy()[2] = 9
            assert deviation(training, before) == 0
        step(training)
        training.close()


def test_values_written_inside_gathered_are_kept(world: colossal.World) -> None:
    gathered(world)
    ranks.run(gathered, 2)


def untouched(world: colossal.World) -> None:
    """Exact values stay where nothing was written, also beside written elements and after a swap and back."""
    for layout in LAYOUTS:
        def train(writes: bool) -> dict[str, torch.Tensor]:
            module = network()
            training = colossal.initialize(world, module, CONFIG, {**layout, "precision.mode": "bf16"})
            for _ in range(3):
                step(training)
                if writes and "parallel.compress" not in layout:
                    with torch.no_grad():
                        usual = [p.clone() for p in module.parameters()]
                        for p in module.parameters():
                            p.zero_()
                        for p, value in zip(module.parameters(), usual):
                            p.copy_(value)
                        module[2].bias[0] = 1.0
                with torch.no_grad():
                    module[2].bias[0] = 1.0
            return dict(training.named_tensors())

        for (name, with_writes), without in zip(train(True).items(), train(False).values()):
            assert torch.equal(with_writes, without), f"{layout}: {name}"


def test_other_values_stay_exact(world: colossal.World) -> None:
    untouched(world)
    ranks.run(untouched, 2)


@pytest.mark.parametrize("layout", [{}, {"parallel.zero": 3}])
def test_replaced_parameters_are_refused_by_readers(world: colossal.World, layout: dict[str, object]) -> None:
    module = network()
    training = colossal.initialize(world, module, CONFIG, layout)
    module.load_state_dict(copy.deepcopy(network().state_dict()), assign=True)
    with pytest.raises(colossal.Error, match="got another one at 0.weight.*load_state_dict.. without assign"):
        dict(training.named_tensors())
    module = network()
    training = colossal.initialize(world, module, CONFIG, layout)
    module[0].weight.data = torch.zeros(3, 5)
    with pytest.raises(colossal.Error, match=r"a parameter must keep its shape.*got \[3, 5\].*\[40, 8\].*0.weight"):
        dict(training.named_tensors())


class Average(torch.nn.Module):
    """Binds a new tensor to its buffer in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.5 * self.mean + x.detach().mean(0)
        return self.layer(x - self.mean)


def test_buffers_that_forward_binds_again_are_saved(world: colossal.World, tmp_path: object) -> None:
    module = Average()
    training = colossal.initialize(world, module, CONFIG)
    for _ in range(2):
        training.zero_grad()
        training.backward(module(torch.ones(3, 4)).square().mean())
        training.step()
    assert dict(training.named_tensors())["mean"].tolist() == [1.5] * 4
    training.save(str(tmp_path))
    module(torch.ones(3, 4))
    training.resume(str(tmp_path))
    assert module.mean.tolist() == [1.5] * 4
