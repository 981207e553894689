"""What modules of Python do and those of C++ do not: each works or is refused by name."""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import colossal
import models
import ranks

CONFIG = {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0, "optimizer.learning_rate": 1e-2,
          "optimizer.weight_decay": 0, "optimizer.epsilon": 1e-3, "training.clip": 0, "precision.mode": "fp64"}
RELEASING = [{"parallel.zero": 3}, {"memory.host": "64MiB"}]
LAYOUTS = [{"parallel.zero": zero} for zero in range(4)] + [{"memory.host": "64MiB"}]

Loss = Callable[[torch.nn.Module], torch.Tensor]


def adamw(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), 1e-2, betas=(0.9, 0.95), eps=1e-3, weight_decay=0)


def equals_torch(world: colossal.World, module: torch.nn.Module, loss: Loss, changes: dict[str, object],
                 right: torch.nn.Module | None = None) -> None:
    """Compares three steps with those of torch. Every rank computes the same loss, so the mean is that of one rank."""
    right = (right or copy.deepcopy(module)).double()
    optimizer = adamw(right)
    training = colossal.initialize(world, module, CONFIG, changes)
    for step in range(3):
        training.zero_grad()
        torch.manual_seed(step)
        training.backward(loss(module))
        training.step()
        optimizer.zero_grad()
        torch.manual_seed(step)
        loss(right).backward()
        optimizer.step()
    others = {**dict(right.named_parameters()), **dict(right.named_buffers())}
    values = {**dict(module.named_buffers()), **dict(training.named_tensors())}
    assert values.keys() == others.keys()
    for name, value in values.items():
        assert (value - others[name]).abs().max() < 1e-12, f"{changes}: {name}"
    training.close()


def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 32, dtype=torch.float64).view(8, 4)


def network() -> torch.nn.Sequential:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh(),
                               torch.nn.Linear(8, 3))


def squares(module: torch.nn.Module) -> torch.Tensor:
    return module(x()).square().mean()


def with_hooks() -> tuple[torch.nn.Module, Loss]:
    """Forward hooks change outputs, backward hooks gradients."""
    module = network()
    module[0].register_forward_hook(lambda part, inputs, output: output * 2)
    module[2].register_forward_pre_hook(lambda part, inputs: (inputs[0] + part.weight.mean(),))
    module[2].register_full_backward_hook(lambda part, before, after: (before[0] * 3,))
    module[4].weight.register_hook(lambda gradient: gradient * 0.5)
    return module, squares


class Recomputed(torch.nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = network(), reentrant
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        half = self.inner[:2](given)
        return checkpoint(lambda h: self.drop(self.inner[2:](h)), half, use_reentrant=self.reentrant)


class Repeated(torch.nn.Module):
    """Parameters that get several gradients in one pass: a block that is used twice, a weight that two blocks and the
    head share, a checkpoint inside of another one."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        torch.manual_seed(3)
        self.first, self.block = torch.nn.Linear(4, 8), torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
        self.tied, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.tied.weight = self.block[0].weight
        self.scale = torch.nn.Parameter(torch.full((8,), 0.5))

    def again(self, function: Callable[[torch.Tensor], torch.Tensor], h: torch.Tensor) -> torch.Tensor:
        return checkpoint(function, h, use_reentrant=self.reentrant)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        h = self.first(given) * self.scale
        for _ in range(2):
            h = h + self.again(self.block, h)
        h = self.again(lambda outer: self.tied(self.again(lambda inner: self.block(inner) * self.scale, outer)), h)
        return self.head(h) @ self.block[0].weight


def with_batch_norm() -> tuple[torch.nn.Module, Loss]:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)), squares


def with_frozen() -> tuple[torch.nn.Module, Loss]:
    module = network()
    module[2].requires_grad_(False)
    return module, squares


class Unused(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = network(), torch.nn.Linear(4, 4)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.used(given)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(given)))


WORKING: dict[str, Callable[[], tuple[torch.nn.Module, Loss]]] = {
    "hooks": with_hooks,
    "checkpoint": lambda: (Recomputed(False), squares),
    "reentrant checkpoint": lambda: (Recomputed(True), squares),
    "repeated": lambda: (Repeated(False), squares),
    "repeated in reentrant checkpoints": lambda: (Repeated(True), squares),
    "buffers": with_batch_norm,
    "frozen": with_frozen,
    "unused": lambda: (Unused(), squares),
    "tied": lambda: (Tied(), squares),
}


def works_everywhere(world: colossal.World) -> None:
    for name, make in WORKING.items():
        for changes in LAYOUTS:
            module, loss = make()
            right = make()[0]
            right.load_state_dict(module.state_dict())
            equals_torch(world, module, loss, changes, right)


def test_modules_train_as_in_torch(world: colossal.World) -> None:
    works_everywhere(world)


def test_modules_train_as_in_torch_on_two_ranks() -> None:
    ranks.run(works_everywhere, 2)


@pytest.mark.parametrize("changes", LAYOUTS)
def test_lora_trains_adapters_alone(world: colossal.World, changes: dict[str, object]) -> None:
    peft = pytest.importorskip("peft")
    case = models.gpt2()
    module = peft.get_peft_model(case.module, peft.LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0))
    equals_torch(world, module, lambda m: case.loss(m, torch.arange(18).view(2, 9)), changes)


def adapters(world: colossal.World, folder: str) -> None:
    """The folder of a model of peft is that of its adapter, with layers that it trains besides."""
    import peft
    import transformers
    for number, changes in enumerate([*LAYOUTS, {"parallel.zero": 3, "precision.mode": "bf16"}]):
        base = models.llama()
        path = f"{folder}/{number}"
        if world.rank == 0:
            base.module.save_pretrained(path + "base")
        module = peft.get_peft_model(base.module, peft.LoraConfig(
            r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM"))
        training = colossal.initialize(world, module, {**CONFIG, **changes})
        ids = torch.arange(18).view(2, 9)
        training.zero_grad()
        training.backward(base.loss(module, ids))
        training.step()
        training.save_pretrained(path, dtype=torch.float64)
        with training.evaluate():
            mine = module(input_ids=ids).logits
        world.barrier()
        plain = transformers.AutoModelForCausalLM.from_pretrained(path + "base", dtype=mine.dtype)
        loaded = peft.PeftModel.from_pretrained(plain, path, autocast_adapter_dtype=False).to(mine.dtype).eval()
        with torch.no_grad():
            assert torch.equal(loaded(input_ids=ids).logits, mine), changes
        training.close()


def test_save_pretrained_writes_adapters_of_peft(world: colossal.World, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    (tmp_path / "two").mkdir()
    adapters(world, str(tmp_path))
    ranks.run(adapters, 2, str(tmp_path / "two"))


def test_save_pretrained_writes_tensors_that_layers_of_an_adapter_share(world: colossal.World, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = models.llama()
    base.module.save_pretrained(tmp_path / "base")
    module = peft.get_peft_model(base.module, peft.VeraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    training = colossal.initialize(world, module, {**CONFIG, "precision.mode": "fp32"})
    training.zero_grad()
    training.backward(base.loss(module, torch.arange(18).view(2, 9)))
    training.step()
    training.save_pretrained(tmp_path / "adapter")
    plain = type(base.module).from_pretrained(tmp_path / "base", dtype=torch.float32)
    loaded = dict(peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").state_dict())
    for name, value in module.state_dict().items():
        assert torch.equal(loaded[name], value), name


class Wrapper(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = models.gpt2().module
        self.config = self.model.config

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids).logits


def with_replaced_layer() -> torch.nn.Module:
    module = models.gpt2().module
    module.transformer.h[1].mlp.c_fc = torch.nn.Sequential(module.transformer.h[1].mlp.c_fc)
    return module


def with_injected_adapter() -> torch.nn.Module:
    import peft
    module = models.gpt2().module
    module.add_adapter(peft.LoraConfig(r=2, target_modules=["c_attn"]))
    return module


def with_resized_table() -> torch.nn.Module:
    module = models.gpt2().module
    module.transformer.wpe = torch.nn.Embedding(5, 16)
    return module


@pytest.mark.parametrize("make, message", [
    (Wrapper, "needs a model of transformers itself: got Wrapper around one"),
    (with_replaced_layer, "transformer.h.1.mlp.c_fc.weight, transformer.h.1.mlp.c_fc.bias, because"),
    (with_injected_adapter, "transformer.h.0.attn.c_attn.weight"),
    (with_resized_table, "none of that shape for transformer.wpe.weight"),
])
def test_save_pretrained_refuses_folders_that_would_load_random_values(
        world: colossal.World, make: Callable[[], torch.nn.Module], message: str, tmp_path: Path) -> None:
    training = colossal.initialize(world, make(), CONFIG)
    with pytest.raises(colossal.Error, match=message):
        training.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "t5"])
def test_save_pretrained_accepts_modules_of_transformers(world: colossal.World, name: str, tmp_path: Path) -> None:
    module = models.CASES[name]().module
    training = colossal.initialize(world, module, CONFIG)
    training.save_pretrained(tmp_path)
    _, found = type(module).from_pretrained(tmp_path, output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]


@pytest.mark.parametrize("changes", RELEASING)
def test_autocast_keeps_no_weights(world: colossal.World, changes: dict[str, object]) -> None:
    module = network()
    training = colossal.initialize(world, module, CONFIG, {**changes, "precision.mode": "fp32"})
    training.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.is_autocast_cache_enabled()
        loss = module(x().float()).float().square().mean()
    training.backward(loss)
    assert training.step().gradient_norm > 0
    assert not torch.is_autocast_cache_enabled()
    training.close()
    assert torch.is_autocast_cache_enabled()


def test_autocast_keeps_no_weights_until_the_last_training_closes(world: colossal.World) -> None:
    first, second = (colossal.initialize(world, network(), CONFIG, {"parallel.zero": 3}) for _ in range(2))
    first.close()
    first.close()
    assert not torch.is_autocast_cache_enabled()
    second.close()
    assert torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        colossal.initialize(world, network(), CONFIG, {"parallel.zero": 3}).close()
        assert not torch.is_autocast_cache_enabled()
    finally:
        torch.set_autocast_cache_enabled(True)


def test_autocast_keeps_its_cache_where_parameters_stay(world: colossal.World) -> None:
    training = colossal.initialize(world, network(), CONFIG, {"parallel.zero": 2})
    assert torch.is_autocast_cache_enabled()
    training.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("changes", [{"parallel.zero": 3}, {"memory.disk": True}])
def test_data_loader_workers(world: colossal.World, method: str, changes: dict[str, object], tmp_path: Path) -> None:
    if "memory.disk" in changes:
        changes = {"memory.disk": tmp_path}
    module = network()
    training = colossal.initialize(world, module, CONFIG, changes)
    data = DataLoader(TensorDataset(x()), batch_size=2, num_workers=2, multiprocessing_context=method)
    for _ in range(2):
        for (batch,) in data:
            training.zero_grad()
            training.backward(module(batch).square().mean())
            training.step()
    assert training.steps_done == 8


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_default_dtype_may_change(world: colossal.World, dtype: torch.dtype, tmp_path: Path) -> None:
    module, right = network(), network()
    try:
        torch.set_default_dtype(dtype)
        equals_torch(world, module, squares, {"parallel.zero": 3, "memory.disk": tmp_path}, right)
    finally:
        torch.set_default_dtype(torch.float32)


def test_changed_default_dtype_on_two_ranks() -> None:
    ranks.run(with_default_dtype, 2)


def with_default_dtype(world: colossal.World) -> None:
    module, right = network(), network()
    torch.set_default_dtype(torch.float64)
    equals_torch(world, module, squares, {"parallel.zero": 3}, right)


@pytest.mark.parametrize("changes", LAYOUTS)
def test_inference_mode_reads_parameters(world: colossal.World, changes: dict[str, object]) -> None:
    module, right = network(), network().double()
    training = colossal.initialize(world, module, CONFIG, changes)
    with torch.inference_mode():
        assert torch.equal(module(x()), right(x()))
    training.end_pass()
    for _ in range(2):
        training.zero_grad()
        training.backward(squares(module))
        training.step()
    with torch.inference_mode(), training.evaluate():
        assert not torch.equal(module(x()), right(x()))


@pytest.mark.parametrize("changes", LAYOUTS)
def test_errors_in_forward_leave_training_usable(world: colossal.World, changes: dict[str, object]) -> None:
    """An exception or Ctrl-C in forward or in a hook of backward ends a pass, not the training."""
    module, right = network(), network().double()
    optimizer = adamw(right)
    training = colossal.initialize(world, module, CONFIG, changes)
    for error in (ZeroDivisionError, KeyboardInterrupt):
        def fail(*_: object, error: type[BaseException] = error) -> None:
            raise error()

        for register in (module[2].register_forward_hook, module[2].register_full_backward_hook):
            handle = register(fail)
            training.zero_grad()
            with pytest.raises(error):
                training.backward(squares(module))
            handle.remove()
        training.zero_grad()
        training.backward(squares(module))
        training.step()
        optimizer.zero_grad()
        squares(right).backward()
        optimizer.step()
    for (name, value), other in zip(training.named_tensors(), right.parameters()):
        assert (value - other).abs().max() < 1e-12, name


def test_torch_distributed_may_run_beside(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import torch, colossal
torch.distributed.init_process_group("gloo")
world = colossal.launch(timeout=60)
module = torch.nn.Linear(4, 3)
training = colossal.initialize(world, module, {"optimizer.schedule": "constant"}, {"parallel.zero": 3})
for _ in range(2):
    training.zero_grad()
    training.backward(module(torch.randn(2, 4)).mean())
    training.step()
    mine = torch.tensor([training.loss])
    torch.distributed.all_reduce(mine)
    assert abs(mine.item() / 2 - training.mean(training.loss)) < 1e-6
torch.distributed.destroy_process_group()
assert world.size == 2 and training.steps_done == 2
""")
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script],
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# What is refused, by name.


def refused(world: colossal.World, module: torch.nn.Module, changes: dict[str, object] = {}) -> str:
    with pytest.raises(colossal.Error) as error:
        colossal.initialize(world, module, CONFIG, changes)
    return str(error.value)


def test_wrappers_are_refused(world: colossal.World, tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(network())
        assert "must not be distributed by another library: got DistributedDataParallel" in refused(world, wrapped)
        inside = torch.nn.ModuleDict({"part": wrapped})
        assert "DistributedDataParallel at `part`" in refused(world, inside)
        assert "got DataParallel" in refused(world, torch.nn.DataParallel(network()))
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (1,))
        assert "got FSDPModule" in refused(world, fully_shard(network(), mesh=mesh))
        whole = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
        assert "got FullyShardedDataParallel" in refused(world, whole)
        from torch.distributed.tensor import distribute_tensor
        module = network()
        module[0].weight = torch.nn.Parameter(distribute_tensor(module[0].weight.detach(), mesh))
        assert "got the DTensor 0.weight" in refused(world, module)
    finally:
        torch.distributed.destroy_process_group()


def test_deepspeed_is_refused(world: colossal.World, monkeypatch: pytest.MonkeyPatch) -> None:
    import types
    engine = types.ModuleType("deepspeed.runtime.engine")
    engine.DeepSpeedEngine = type("DeepSpeedEngine", (torch.nn.Module,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.engine", engine)
    wrapped = engine.DeepSpeedEngine()
    wrapped.module = network()
    assert "got DeepSpeedEngine" in refused(world, wrapped)


def test_parameters_that_cannot_train_are_refused(world: colossal.World) -> None:
    module = network()
    module[0].weight = torch.nn.Parameter(torch.zeros(8, 4, dtype=torch.int8), requires_grad=False)
    assert "parameters must be floating-point: got 0.weight of torch.int8" in refused(world, module)
    module = network()
    quantized = torch.quantize_per_tensor(torch.zeros(8, 4), 1.0, 0, torch.qint8)
    module[0].weight = torch.nn.Parameter(quantized, requires_grad=False)
    assert "got 0.weight of torch.qint8, which is quantized" in refused(world, module)
    assert "got the lazy parameter 0.weight" in refused(world, torch.nn.Sequential(torch.nn.LazyLinear(3)))

    class Codes(torch.Tensor):
        pass

    module = network()
    module[0].weight = torch.nn.Parameter(torch.zeros(8, 4).as_subclass(Codes))
    assert "got 0.weight of the class Codes" in refused(world, module)


def test_post_accumulate_hooks_are_refused(world: colossal.World) -> None:
    module = network()
    handle = module[0].weight.register_post_accumulate_grad_hook(lambda p: None)
    assert "register_post_accumulate_grad_hook" in refused(world, module)
    handle.remove()
    training = colossal.initialize(world, module, CONFIG)
    training.zero_grad()
    module[2].bias.register_post_accumulate_grad_hook(lambda p: None).remove()
    with pytest.raises(colossal.Error, match="register_post_accumulate_grad_hook.*got one on 2.bias"):
        training.backward(squares(module))


@pytest.mark.parametrize("change, message", [
    (lambda m: m[2].requires_grad_(False), "requires_grad of a parameter must stay .*got False instead of True for 2"),
    (lambda m: m[4].float(), "dtype of a parameter must stay .*got torch.float32 instead of torch.float64 for 4"),
    (lambda m: setattr(m[2], "bias", torch.nn.Parameter(torch.zeros(8, dtype=torch.float64))), "another one at 2.bias"),
    (lambda m: m.to("meta"), "device of a parameter must stay .*got meta instead of cpu for 0.weight"),
])
@pytest.mark.parametrize("zero", [0, 3])
def test_changes_afterwards_are_refused(world: colossal.World, change: Callable[[torch.nn.Module], object],
                                        message: str, zero: int) -> None:
    module = network()
    training = colossal.initialize(world, module, CONFIG, {"parallel.zero": zero})
    training.zero_grad()
    loss = squares(module)
    change(module)
    with pytest.raises(colossal.Error, match=message):
        training.backward(loss)


@pytest.mark.parametrize("changes", RELEASING)
def test_compiled_modules_are_refused_where_parameters_are_released(world: colossal.World,
                                                                    changes: dict[str, object]) -> None:
    module = network()
    message = "must not be compiled under parallel.zero = 3 or with tiers"
    assert message in refused(world, torch.compile(module, backend="aot_eager"), changes)
    module[2].compile(backend="aot_eager")
    assert message in refused(world, module, changes)


def test_compiled_modules_train(world: colossal.World) -> None:
    module = network()
    right = copy.deepcopy(module)
    compiled = torch.compile(module, backend="aot_eager")
    equals_torch(world, compiled, squares, {"parallel.zero": 2}, right)
    assert [name for name, _ in module.named_parameters()][0] == "0.weight"


def test_compiled_code_that_reads_memory_is_refused(world: colossal.World) -> None:
    """A module that is compiled after initialize(), with a backend whose kernels take addresses."""
    module = network()
    training = colossal.initialize(world, module, CONFIG, {"memory.host": "64MiB"})

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        def kernel(*inputs: torch.Tensor) -> object:
            assert all(given.data_ptr() for given in inputs)
            return graph(*inputs)

        return kernel

    training.zero_grad()
    with pytest.raises(RuntimeError, match=r"\[memory\].*gathered\(\)"):
        squares(torch.compile(module, backend=backend))
    training.zero_grad()
    training.backward(squares(module))
    training.step()
