"""colossal.load and colossal.save: whole tensors of any layout, with and without torch."""

import fcntl
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import colossal
from colossal.checkpoint import load, read_progress, save
from colossal.error import Error

PROGRAM = pathlib.Path(sys.modules["colossal"].__file__).with_name("colossal")
CONFIG = """
run.folder = "{folder}"
model = {{name = "llama-tiny", layers = 1, hidden = 32, heads = 2, kv_heads = 2, positions = 32}}
data = {{path = "{text}", tokenizer = "bytes", sequence = 32}}
parallel = {{data = {data}, tensor = {tensor}, zero = {zero}}}
precision.mode = "bf16"
training = {{steps = 2, batch_size = 2}}
"""


@pytest.fixture(scope="module", params=[(1, 1, 0), (2, 1, 3), (1, 2, 0)], ids=["one rank", "zero 3", "tensor"])
def run(request, tmp_path_factory):
    """The folder of a run under some layout."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "text.txt").write_text("To be, or not to be, that is the question. " * 200)
    data, tensor, zero = request.param
    text = CONFIG.format(folder=folder / "run", text=folder / "text.txt", data=data, tensor=tensor, zero=zero)
    (folder / "train.toml").write_text(text)
    command = [PROGRAM, "train", folder / "train.toml"]
    subprocess.run(command, check=True, capture_output=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return folder / "run"


def same(first, second):
    assert first.keys() == second.keys()
    assert all(first[name].dtype == second[name].dtype and torch.equal(first[name], second[name]) for name in first)


def test_arrays_equal_tensors_under_every_layout(run):
    tensors, arrays = load(run), load(run, numpy=True)
    assert tensors.keys() == arrays.keys()
    assert any(value.dim() == 2 for value in tensors.values())
    for name, value in tensors.items():
        assert torch.equal(torch.from_numpy(arrays[name]), value.float() if value.dtype == torch.bfloat16 else value)


def test_what_was_saved_is_loaded(run, tmp_path):
    tensors, progress = load(run), read_progress(run)
    save(tmp_path, 2, tensors, progress)
    same(load(tmp_path), tensors)
    assert read_progress(tmp_path) == progress


@pytest.mark.parametrize("run", [(2, 1, 3)], indirect=True)
def test_runs_continue_from_saved_tensors(run):
    """A checkpoint of load and save is one of the run: it goes on as from its own."""
    command = [PROGRAM, "train", run.parent / "train.toml", "--resume", "--training.steps=3"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    tensors, progress = load(run), read_progress(run)
    subprocess.run(command, check=True, capture_output=True, timeout=120, env=env)
    wanted = load(run, 3)
    for step in (2, 3):
        for file in sorted((run / "checkpoints" / f"step-00000{step}").iterdir()):
            file.unlink()
        (run / "checkpoints" / f"step-00000{step}").rmdir()
    save(run, 2, tensors, progress)
    subprocess.run(command, check=True, capture_output=True, timeout=120, env=env)
    same(load(run, 3), wanted)


def test_every_dtype_survives(tmp_path):
    tensors = {
        str(dtype): torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
    }
    tensors["scalar"] = torch.tensor(2.5)
    tensors["transposed"] = torch.arange(6.0).view(2, 3).T
    save(tmp_path, 0, tensors, {"epoch": 3, "name": "h\u00e9"})
    same(load(tmp_path), tensors)
    arrays = load(tmp_path, numpy=True)
    assert arrays["torch.bfloat16"].dtype == "float32"
    assert all((arrays[name] == value.float().numpy()).all() for name, value in tensors.items())
    assert read_progress(tmp_path) == {"epoch": 3, "name": "h\u00e9"}


def test_steps_are_found_by_number(tmp_path):
    for step in (900, 1_000_000, 5):
        save(tmp_path, step, {"x": torch.tensor(float(step))}, {})
    (tmp_path / "step-2000000").mkdir()  # without a manifest
    assert load(tmp_path)["x"] == 1_000_000
    assert load(tmp_path, 5, numpy=True)["x"] == 5
    with pytest.raises(Error, match=r"no complete checkpoint of step 7; it has \[5, 900, 1000000\]"):
        load(tmp_path, 7)
    with pytest.raises(Error, match="holds no complete checkpoint"):
        load(tmp_path / "none")
    with pytest.raises(Error, match="at least 0"):
        save(tmp_path, -1, {}, {})
    with pytest.raises(Error, match=r"empty must have an element: got the shape \[0, 3\]"):
        save(tmp_path, 1, {"empty": torch.empty(0, 3)}, {})


@pytest.mark.parametrize("numpy", [False, True])
def test_damaged_files_are_named(tmp_path, numpy):
    save(tmp_path, 1, {"x": torch.ones(100)}, {})
    file = tmp_path / "step-000001" / "rank-00000.safetensors"
    whole = file.read_bytes()
    for damaged in (whole[:-8], whole[:5], b"", b"\xff" * 64):
        file.write_bytes(damaged)
        with pytest.raises(Error, match="rank-00000"):
            load(tmp_path, numpy=numpy)
    file.write_bytes(whole)
    (tmp_path / "step-000001" / "manifest.json").write_text("{}")
    with pytest.raises(Error, match=r"\[checkpoint\].*manifest.json"):
        load(tmp_path, numpy=numpy)


def test_arrays_need_no_torch(tmp_path):
    save(tmp_path, 1, {"x": torch.arange(3.0)}, {})
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from colossal.checkpoint import load\n"
        f"print(load({str(tmp_path)!r}, numpy=True)['x'].tolist())\n"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert outcome.stdout == "[0.0, 1.0, 2.0]\n", outcome.stderr


def test_a_folder_has_one_writer(world, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    training = colossal.initialize(world, torch.nn.Linear(2, 2), {"training.steps": 5})
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as `colossal train` does
        with pytest.raises(Error, match=r"\[run\] another run is writing to"):
            save(tmp_path, 7, {"x": torch.ones(1)}, {})
        with pytest.raises(Error, match=r"\[run\] another run is writing to"):
            training.save(tmp_path)
    training.save(tmp_path)
    save(tmp_path, 7, {"x": torch.ones(1)}, {})
    assert load(tmp_path, 7)["x"] == 1


def test_a_resumed_training_tells_what_changed(world, tmp_path, caplog):
    config = {"training.steps": 5, "optimizer.learning_rate": 0.5}
    colossal.initialize(world, torch.nn.Linear(2, 2), config).save(tmp_path)
    training = colossal.initialize(world, torch.nn.Linear(2, 2), config, {"optimizer.learning_rate": 0.25})
    assert training.resume(tmp_path).changes == "optimizer.learning_rate = 0.5 -> 0.25"
    assert "differently than it began: optimizer.learning_rate = 0.5 -> 0.25" in caplog.text
