"""Worlds, configs and training steps of the Python package."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import colossal
import models
import ranks

CONFIG = {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0, "precision.mode": "fp64"}


def layer() -> torch.nn.Linear:
    torch.manual_seed(3)
    return torch.nn.Linear(4, 3)


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def train(world: colossal.World, module: torch.nn.Module, changes: dict[str, object] = {}, steps: int = 3,
          forward_first: bool = False) -> colossal.Training:
    training = colossal.initialize(world, module, CONFIG, changes)
    for step in range(steps):
        if forward_first:
            loss = module(rows(6, step)).square().mean()
            training.zero_grad()
        else:
            training.zero_grad()
            loss = module(rows(6, step)).square().mean()
        training.backward(loss)
        training.step()
    return training


def printed_by(code: str) -> str:
    """Runs Python code in a process of its own and returns its output. Fails if it fails."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
                          cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_changes_nothing() -> None:
    assert printed_by("""
import os, signal, sys, threading
before = dict(os.environ), [signal.getsignal(s) for s in (2, 13, 15)]
import colossal
assert "torch" not in sys.modules
import torch
allocator = torch.empty(1).untyped_storage()
threads, cores = threading.active_count(), os.sched_getaffinity(0)
dtype, settings = torch.get_default_dtype(), torch.get_num_threads()
colossal.initialize
assert (dict(os.environ), [signal.getsignal(s) for s in (2, 13, 15)]) == before
assert (threading.active_count(), os.sched_getaffinity(0)) == (threads, cores)
assert (torch.get_default_dtype(), torch.get_num_threads()) == (dtype, settings)
""") == ""


def test_launch_makes_one_rank_without_launcher(world: colossal.World) -> None:
    assert (world.rank, world.size, world.local_rank, world.local_size) == (0, 1, 0, 1)
    assert world.device == torch.device("cpu")
    world.barrier()
    assert world.mean(2) == 2


def test_closed_world_refuses_calls() -> None:
    with colossal.launch(device="cpu") as world:
        pass
    with pytest.raises(colossal.Error, match=r"\[launch\] a world must be open"):
        world.barrier()


def test_launch_refuses_unknown_backend() -> None:
    with pytest.raises(colossal.Error, match="backend must be one of auto, shm, gloo, nccl"):
        colossal.launch(backend="mpi")


@pytest.mark.parametrize("config, changes", [
    ({"optimizer": {"learning_rate": 0.5, "schedule": {"name": "constant"}}}, {"optimizer.warmup_steps": 0}),
    ({"optimizer.learning_rate": 1, "optimizer.schedule.name": "constant"}, {"optimizer": {"learning_rate": 0.5,
                                                                                             "warmup_steps": 0}}),
])
def test_configs_are_dotted_or_nested(world: colossal.World, config: dict[str, object],
                                      changes: dict[str, object]) -> None:
    module = layer()
    training = colossal.initialize(world, module, config, changes)
    training.zero_grad()
    training.backward(module(rows(2).float()).mean())
    assert training.step().learning_rate == 0.5


def test_configs_are_files_with_changes(world: colossal.World, tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text('[training]\nsteps = 4\n[optimizer]\nwarmup_steps = 0\nfinal_learning_rate = 0\n'
                    'learning_rate = 1\nschedule = "cosine"\n')
    module = layer()
    training = colossal.initialize(world, module, file, {"optimizer.schedule.name": "linear"})
    rates = []
    for _ in range(4):
        training.zero_grad()
        training.backward(module(rows(2).float()).mean())
        rates.append(training.step().learning_rate)
    assert rates == [0.75, 0.5, 0.25, 0]


@pytest.mark.parametrize("changes, message", [
    ({"parallel.zer": 3}, "[config] unknown key `parallel.zer`, did you mean `parallel.zero`?"),
    ({"parallel.zero": "3"}, "[config] `parallel.zero` must be an integer: got \"3\""),
    ({"parallel.zero": None}, "[config] `parallel.zero` must be a bool, int, float, str, path or a list of these: got "
                              "NoneType"),
    ({"parallel": {"zero": 1}, "parallel.zero": 1}, "[config] `parallel.zero` must be given once"),
    ({"optimizer.schedule": "cosine"}, "[training] training.steps must be given unless the schedule is constant: got "
                                       "none; add training.steps to the config"),
    ({"optimizer.learning_rate_scaling": "linear"}, "[training] training.batch_size must be given with "
                                                    "optimizer.learning_rate_scaling"),
    ({"parallel.data": 2}, "[parallel] the number of ranks must be parallel.data: got 1 ranks, data 2"),
    ({"parallel.tensor": 2}, "[parallel] a user-defined module supports data parallelism and ZeRO only: got tensor 2"),
    ({"precision.mode": "fp8"}, "[precision] mode fp8 needs this library's linear layers"),
    ({"memory.recompute": "block"}, "[memory] recompute needs the blocks of a built-in model"),
])
def test_initialize_refuses_configs(world: colossal.World, changes: dict[str, object], message: str) -> None:
    with pytest.raises(colossal.Error) as refused:
        colossal.initialize(world, layer(), CONFIG, changes)
    assert str(refused.value).startswith(message)
    assert refused.value.component == message[1:message.index("]")]


def test_long_warm_up_needs_no_steps(world: colossal.World) -> None:
    module = layer()
    training = colossal.initialize(world, module, CONFIG, {"optimizer.warmup_steps": 200, "optimizer.learning_rate": 1})
    training.zero_grad()
    training.backward(module(rows(2)).mean())
    assert training.step().learning_rate == pytest.approx(1 / 200)


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(colossal.Error("config", "a rule: got 1")))
    assert (str(error), error.component, error.message) == ("[config] a rule: got 1", "config", "a rule: got 1")


@pytest.mark.parametrize("changes", [{"parallel.zero": 0}, {"parallel.zero": 3}, {"memory.host": "64MiB"},
                                     {"memory.device": "64MiB", "memory.host": "64MiB"}])
def test_forward_may_precede_zero_grad(world: colossal.World, changes: dict[str, object]) -> None:
    after, before = (dict(train(world, layer(), changes, forward_first=first).named_tensors())
                     for first in (False, True))
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def weighted(world: colossal.World) -> None:
    """Rank 0 has batches of 1 and 3 rows, rank 1 of 4 and 2; together they are one batch of 10."""
    for zero in range(4):
        module, right = layer(), layer().double()
        training = colossal.initialize(world, module, CONFIG, {"parallel.zero": zero, "training.accumulate": 2,
                                                               "optimizer.name": "sgd", "optimizer.weight_decay": 0,
                                                               "optimizer.momentum": 0, "training.clip": 0,
                                                               "optimizer.learning_rate": 0.1})
        optimizer = torch.optim.SGD(right.parameters(), 0.1)
        batch = rows(10)
        parts = batch.split([1, 3, 4, 2])[2 * world.rank:2 * world.rank + 2]
        for _ in range(3):
            training.zero_grad()
            for part in parts:
                training.backward(module(part).square().mean(), weight=len(part))
            training.step()
            optimizer.zero_grad()
            right(batch).square().mean().backward()
            optimizer.step()
        for (name, value), other in zip(training.named_tensors(), right.parameters()):
            assert (value - other).abs().max() < 1e-14, f"zero {zero}: {name}"
        training.close()


def test_weighted_uneven_micro_batches_equal_one_batch() -> None:
    ranks.run(weighted, 2)


def test_backward_refuses_losses(world: colossal.World) -> None:
    module = layer()
    training = colossal.initialize(world, module, CONFIG)
    training.zero_grad()
    with pytest.raises(colossal.Error, match=r"\[training\] .*scalar"):
        training.backward(module(rows(2)))
    with pytest.raises(colossal.Error, match=r"\[training\] .*scalar"):
        training.backward(torch.zeros(()))
    training.backward(module(rows(2)).mean())
    with pytest.raises(colossal.Error, match="more than 1"):
        training.backward(module(rows(2)).mean())
    training.step()
    training.zero_grad()
    with pytest.raises(colossal.Error, match="got 0"):
        training.step()
    training.close()
    with pytest.raises(colossal.Error, match="a training must be open"):
        training.zero_grad()


def test_input_gets_compute_dtype(world: colossal.World) -> None:
    training = colossal.initialize(world, layer(), CONFIG, {"precision.mode": "bf16"})
    assert training.input(torch.zeros(2)).dtype == torch.bfloat16
    assert training.input(torch.zeros(2, dtype=torch.long)).dtype == torch.long


@pytest.mark.parametrize("zero", [0, 3])
def test_evaluate_restores_modes(world: colossal.World, zero: int) -> None:
    module = torch.nn.Sequential(layer(), torch.nn.Dropout(), torch.nn.BatchNorm1d(3))
    module[2].eval()
    training = colossal.initialize(world, module, CONFIG, {"parallel.zero": zero})
    with training.evaluate():
        assert not module.training and not module[1].training
        assert not module(rows(2)).requires_grad
    assert module.training and module[1].training and not module[2].training
    with pytest.raises(ZeroDivisionError), training.evaluate():
        1 / 0
    assert module.training and torch.is_grad_enabled()


def first_pass(world: colossal.World) -> None:
    case = models.plain()
    used = []
    training = colossal.initialize(world, case.module, CONFIG, {"parallel.zero": 3},
                                   first_pass=lambda: used.append(case.module(models.tokens(2)).shape))
    assert used == [(2, 9, models.WORDS)]
    training.zero_grad()
    training.backward(case.loss(case.module, case.batch(2)))
    training.step()


def test_first_pass_runs_once() -> None:
    ranks.run(first_pass, 2)


def test_errors_of_first_pass_are_raised(world: colossal.World) -> None:
    def fail() -> None:
        raise ZeroDivisionError("in forward")

    with pytest.raises(ZeroDivisionError, match="in forward"):
        colossal.initialize(world, layer(), CONFIG, first_pass=fail)


def gathered(world: colossal.World) -> None:
    releasing: list[dict[str, object]] = [{"memory.host": "64MiB"}]
    if world.size > 1:
        releasing.append({"parallel.zero": 3})
    for changes in releasing:
        module, right = layer(), layer().double()
        training = colossal.initialize(world, module, CONFIG, changes)
        with pytest.raises(RuntimeError, match=r"gathered\(\)"):
            module.weight.detach().numpy()
        with training.gathered(module.weight):
            assert (module.weight.detach().numpy() == right.weight.detach().numpy()).all()
        with training.gathered():
            assert module.bias.data_ptr() != 0
        with pytest.raises(RuntimeError, match=r"gathered\(\)"):
            module.bias.data_ptr()
        with pytest.raises(colossal.Error, match="parameters of the module"), training.gathered(torch.zeros(2)):
            pass
        for (name, value), (also, other) in zip(training.named_tensors(), right.named_parameters()):
            assert name == also and torch.equal(value, other)
        training.close()
        with pytest.raises(RuntimeError, match=r"\[memory\]"):
            module.bias.data_ptr()


def test_gathered_makes_parameters_whole(world: colossal.World) -> None:
    gathered(world)
    ranks.run(gathered, 2)


def test_ctrl_c_is_answered_after_a_call() -> None:
    """A hook sends the signal in the middle of backward."""
    assert printed_by("""
import os, signal, torch, colossal
world = colossal.launch(device="cpu")
module = torch.nn.Linear(4, 3)
training = colossal.initialize(world, module, {"optimizer.schedule": "constant"}, {"parallel.zero": 3})
def interrupt(gradient):
    os.kill(os.getpid(), signal.SIGINT)
module.weight.register_hook(interrupt)
training.zero_grad()
try:
    training.backward(module(torch.randn(2, 4)).mean())
except KeyboardInterrupt:
    print("interrupted")
module.weight._backward_hooks.clear()
for _ in range(2):
    training.zero_grad()
    training.backward(module(torch.randn(2, 4)).mean())
    training.step()
print(training.steps_done)
""").split() == ["interrupted", "2"]


@pytest.mark.parametrize("order", ["del world, training, module", "del training, module, world", "del module", "",
                                   "world.close()", "import sys; sys.exit(0)",
                                   "keep = [world, training, module]; keep.append(keep)"])
def test_any_order_of_destruction_ends_cleanly(order: str, tmp_path: Path) -> None:
    code = """
import torch, colossal
world = colossal.launch(device="cpu")
module = torch.nn.Linear(4, 3)
training = colossal.initialize(world, module, {"optimizer.schedule": "constant"},
                               {"parallel.zero": 3, "memory.disk": FOLDER})
training.zero_grad()
loss = module(torch.randn(2, 4)).mean()
training.backward(loss)
training.step()
print("done")
""".replace("FOLDER", repr(str(tmp_path)))
    assert printed_by(code + order) == "done\n"
    assert not [f for f in tmp_path.rglob("*") if f.is_file()], "scratch files are removed"


def checkpoints(world: colossal.World, folder: str) -> None:
    """A module with dropout resumes bitwise."""
    def fresh() -> tuple[torch.nn.Module, colossal.Training]:
        module = torch.nn.Sequential(layer(), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
        return module, colossal.initialize(world, module, CONFIG, {"parallel.zero": 3})

    def steps(module: torch.nn.Module, training: colossal.Training, count: int) -> list[float]:
        losses = []
        for _ in range(count):
            training.zero_grad()
            training.backward(module(rows(8, training.steps_done)).square().mean())
            training.step()
            losses.append(training.loss)
        return losses

    module, training = fresh()
    assert training.resume(folder) is None
    torch.manual_seed(5 + world.rank)
    steps(module, training, 2)
    training.save(folder, extra={"epoch": 1, "order": [0.5, "x"]})
    right = steps(module, training, 3)
    values = dict(training.named_tensors())
    with pytest.raises(colossal.Error, match="extra must be a value of JSON"):
        training.save(folder, extra=torch.zeros(1))
    module, training = fresh()
    torch.manual_seed(9)
    resumed = training.resume(folder)
    assert resumed is not None and (resumed.step, resumed.extra) == (2, {"epoch": 1, "order": [0.5, "x"]})
    assert training.steps_done == 2
    assert steps(module, training, 3) == right
    changed = [name for name, value in training.named_tensors() if not torch.equal(value, values[name])]
    assert not changed


def loaded_elsewhere(world: colossal.World, folder: str) -> None:
    module = torch.nn.Sequential(layer(), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    training = colossal.initialize(world, module, CONFIG, {"parallel.zero": 1})
    resumed = training.resume(folder)
    assert resumed is not None and resumed.step == 2


def test_checkpoints_resume_bitwise(tmp_path: Path, world: colossal.World) -> None:
    ranks.run(checkpoints, 2, str(tmp_path))
    loaded_elsewhere(world, str(tmp_path))


def pretrained(world: colossal.World, folder: str) -> None:
    import transformers
    case = models.gpt2()
    training = colossal.initialize(world, case.module, CONFIG, {"parallel.zero": 3, "precision.mode": "fp32"})
    training.zero_grad()
    training.backward(case.loss(case.module, case.batch(2)))
    training.step()
    training.save_pretrained(folder)
    torch.manual_seed(1)
    ids = case.batch(2)
    with training.evaluate():
        mine = case.module(ids).logits
    world.barrier()
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    with torch.no_grad():
        assert torch.equal(theirs(ids).logits, mine)
    config = json.loads((Path(folder) / "config.json").read_text())
    assert config["architectures"] == ["GPT2LMHeadModel"]
    assert config["dtype"] == "float32"


def test_save_pretrained_gives_transformers_the_same_logits(tmp_path: Path) -> None:
    ranks.run(pretrained, 2, str(tmp_path / "out"))


def unwritable(world: colossal.World, folder: str) -> None:
    training = colossal.initialize(world, layer(), CONFIG, {"parallel.zero": 3})
    with pytest.raises(colossal.Error, match=r"\[file\]"):
        training.save_pretrained(folder)


def test_save_pretrained_fails_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ranks.run(unwritable, 2, str(tmp_path / "file"))


def test_save_pretrained_writes_the_state(world: colossal.World, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    module = torch.nn.Sequential(layer(), torch.nn.BatchNorm1d(3))
    training = colossal.initialize(world, module, CONFIG)
    training.save_pretrained(tmp_path)
    written, state = load_file(tmp_path / "model.safetensors"), module.state_dict()
    assert set(written) == set(state)
    assert all(torch.equal(value, state[name]) and value.dtype == state[name].dtype for name, value in written.items())
    training.save_pretrained(tmp_path, dtype=torch.bfloat16)
    assert load_file(tmp_path / "model.safetensors")["0.weight"].dtype == torch.bfloat16
