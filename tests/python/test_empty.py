"""Modules whose parameters have no memory until initialize() fills them."""

from pathlib import Path

import pytest
import torch

import colossal
import models
import ranks

CONFIG = {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0, "precision.mode": "fp32"}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.b.weight = self.a.weight
        shared = torch.nn.Parameter(torch.ones(4))
        shared.note = "kept"  # type: ignore[attr-defined]
        self.first, self.second = shared, shared

    def reset_parameters(self) -> None:
        torch.nn.init.constant_(self.first, 2)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.norm(self.b(self.a(given))) * self.first * self.second


def empty_net() -> Net:
    with colossal.empty_parameters():
        return Net()


def test_parameters_have_shapes_and_no_memory() -> None:
    net = empty_net()
    assert all(p.is_meta for p in net.parameters()) and not any(b.is_meta for b in net.buffers())
    assert net.b.weight is net.a.weight and net.first is net.second
    assert net.first.note == "kept"  # type: ignore[attr-defined]
    assert [n for n, _ in net.named_parameters()] == [n for n, _ in Net().named_parameters()]
    assert not Net().first.is_meta, "modules that are made afterwards have memory"


def step(training: colossal.Training, net: torch.nn.Module) -> None:
    training.zero_grad()
    training.backward(net(torch.randn(8, 4)).square().mean())
    training.step()


def filled(world: colossal.World, folder: str) -> None:
    """Values come from reset_parameters(), init or weights, under every kind of sharding."""
    layouts: list[dict[str, object]] = [{"parallel.zero": 0}, {"parallel.zero": 3}, {"memory.disk": folder}]
    torch.manual_seed(7)
    right = Net()
    for changes in layouts:
        net = empty_net()
        training = colossal.initialize(world, net, CONFIG, changes)
        assert net.b.weight is net.a.weight and net.first is net.second
        assert net.first.note == "kept"  # type: ignore[attr-defined]
        values = dict(training.named_tensors())
        assert values["a.weight"].abs().max() <= 0.5 and values["a.weight"].std() > 0.1
        assert (values["first"] == 2).all() and (values["norm.weight"] == 1).all()
        step(training, net)

        net = empty_net()
        weights = {name.replace("a.weight", "b.weight"): p.detach() for name, p in right.named_parameters()}
        training = colossal.initialize(world, net, CONFIG, changes, weights=weights)
        for name, value in training.named_tensors():
            assert torch.equal(value, right.state_dict()[name]), name
        step(training, net)

        net, called = empty_net(), []

        def init(part: torch.nn.Module) -> None:
            called.append(type(part).__name__)
            if isinstance(part, torch.nn.Linear):
                torch.nn.init.constant_(part.weight, 3)
                torch.nn.init.zeros_(part.bias)
            if isinstance(part, torch.nn.BatchNorm1d):
                part.reset_parameters()
            if isinstance(part, Net):
                torch.nn.init.constant_(part.first, 5)
                torch.nn.init.constant_(part.b.bias, 6)

        training = colossal.initialize(world, net, CONFIG, changes, init=init)
        values = dict(training.named_tensors())
        assert (values["a.weight"] == 3).all() and (values["a.bias"] == 0).all() and (values["first"] == 5).all()
        assert (values["b.bias"] == 6).all(), "a submodule around it has the last word, as in Module.apply()"
        assert called.count("Net") == 4
        training.close()


def test_values_come_from_reset_weights_or_init(world: colossal.World, tmp_path: Path) -> None:
    filled(world, str(tmp_path))


def test_values_are_the_same_on_two_ranks(tmp_path: Path) -> None:
    ranks.run(filled, 2, str(tmp_path))


@pytest.mark.parametrize("change, message", [
    (lambda w: w.pop("a.bias"), "a.bias"),
    (lambda w: w.update({"a.bias": torch.zeros(5)}), "a.bias"),
    (lambda w: w.update({"c.bias": torch.zeros(5)}), "c.bias"),
])
def test_wrong_weights_are_refused(world: colossal.World, change, message: str) -> None:  # type: ignore[no-untyped-def]
    weights = {name: p.detach() for name, p in Net().named_parameters()}
    change(weights)
    net = empty_net()
    with pytest.raises(colossal.Error, match=message):
        colossal.initialize(world, net, CONFIG, weights=weights)
    assert net.a.weight.is_meta and net.b.weight is net.a.weight


def test_weights_must_have_every_parameter(world: colossal.World, tmp_path: Path) -> None:
    """Of modules with memory, too, whose parameters had kept random values."""
    from safetensors.torch import save_file
    net = Net()
    save_file({"a.weight": torch.ones(4, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(colossal.Error) as error:
        colossal.initialize(world, net, CONFIG, weights=tmp_path)
    names = ("a.bias", "b.bias", "norm.weight", "norm.bias", "first", "`missing`")
    assert all(name in str(error.value) for name in names)
    for missing, message in ((["c.*"], "got 'c.*', which names none"), ("a.bias", "must be a list of names")):
        with pytest.raises(colossal.Error, match=message.replace("*", r"\*")):
            colossal.initialize(world, net, CONFIG, weights=tmp_path, missing=missing)
    with pytest.raises(colossal.Error, match="missing goes with weights: got a.bias"):
        colossal.initialize(world, net, CONFIG, missing=["a.bias"])
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    training = colossal.initialize(world, net, CONFIG, weights=tmp_path, missing=["*.bias", "norm.*", "second"])
    for name, value in training.named_tensors():
        if name in before:
            assert torch.equal(value, torch.ones(4, 4) if name == "a.weight" else before[name]), name
    with colossal.empty_parameters():
        empty = Net()
    with pytest.raises(colossal.Error, match=r"a\.bias +\[4\] +-"):
        colossal.initialize(world, empty, CONFIG, weights=tmp_path, missing=["*"])


def test_prefix_of_a_wrapper_is_named(world: colossal.World) -> None:
    for prefix, wrapper in (("module.", "DistributedDataParallel"), ("_orig_mod.", "torch.compile")):
        weights = {prefix + name: p.detach() for name, p in Net().named_parameters()}
        with pytest.raises(colossal.Error) as error:
            colossal.initialize(world, Net(), CONFIG, weights=weights)
        assert f"all names there begin with `{prefix}`, which {wrapper}" in str(error.value)


def test_wrong_inits_are_refused(world: colossal.World) -> None:
    with pytest.raises(colossal.Error, match=r"\[model\] init must set every element of a parameter: got NaN"):
        colossal.initialize(world, empty_net(), CONFIG, init=lambda part: None)
    with pytest.raises(ZeroDivisionError):
        colossal.initialize(world, empty_net(), CONFIG, init=lambda part: 1 / 0)
    with pytest.raises(colossal.Error, match="either weights or init"):
        colossal.initialize(world, empty_net(), CONFIG, init=lambda part: None, weights={})
    with colossal.empty_parameters():
        bare = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(3))])
    with pytest.raises(colossal.Error, match=r"\[model\].*reset_parameters\(\).*ParameterList"):
        colossal.initialize(world, bare, CONFIG)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_modules_of_transformers_are_filled(world: colossal.World, name: str, tmp_path: Path) -> None:
    right = models.CASES[name]()
    right.module.save_pretrained(tmp_path)
    with colossal.empty_parameters():
        empty = models.CASES[name]()
    training = colossal.initialize(world, empty.module, CONFIG, {"memory.host": "64MiB"}, weights=tmp_path)
    ids = models.tokens(2)
    with training.evaluate(), torch.no_grad():
        assert torch.equal(empty.loss(empty.module, ids), right.loss(right.module.eval(), ids))
    with colossal.empty_parameters():
        empty = models.CASES[name]()
    training = colossal.initialize(world, empty.module, CONFIG, init=empty.module._init_weights)
    expected = dict(right.module.named_parameters())
    for key, value in training.named_tensors():
        spread, right_spread = value.std(), expected[key].std()
        assert torch.isnan(spread) or abs(spread - right_spread) <= 0.5 * right_spread, key
