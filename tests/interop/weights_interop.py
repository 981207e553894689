"""Reads what torch.save and numpy.savez wrote: every tensor has the bytes that torch.load and numpy.load find, and a
model of a folder with pytorch_model.bin generates what it does with safetensors."""

import collections
import json
import os
import shutil
import subprocess

import interop

numpy, torch, transformers = interop.need("numpy", "torch", "transformers")
from safetensors.torch import load_file  # noqa: E402


def read(path):
    """Returns the tensors that the program finds, or its error."""
    out = interop.temp_dir / "out.safetensors"
    done = subprocess.run([os.environ["COLOSSAL_WEIGHTS_PROBE"], path, out], capture_output=True, text=True,
                          timeout=300)
    return load_file(out) if done.returncode == 0 else done.stderr


def check(path, want):
    got = read(path)
    assert not isinstance(got, str), got
    assert got.keys() == want.keys(), (path, sorted(got), sorted(want))
    for name, value in want.items():
        value = value.detach()
        assert (got[name].dtype, got[name].shape) == (value.dtype, value.shape), (path, name, got[name].dtype)
        same = got[name].contiguous().flatten().view(torch.uint8), value.contiguous().flatten().view(torch.uint8)
        assert torch.equal(*same), (path, name)


def tensors():
    """Tensors of each type, with strides, of shared storages, empty and without dimensions."""
    torch.manual_seed(1)
    base = torch.randn(6, 5)
    some = {"base": base, "transposed": base.t(), "part": base[2:4, 1:], "every_other": base[::2, ::2],
            "expanded": base[0].expand(3, 5), "scalar": torch.tensor(2.5), "empty": torch.empty(0, 3),
            "parameter": torch.nn.Parameter(torch.randn(3)), "truth": torch.tensor([True, False]),
            "complex": torch.randn(2, dtype=torch.complex64)}
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
                  torch.uint8):
        some[f"of_{dtype}"] = (torch.randn(4, 3) * 9).to(dtype)
    return some


def check_torch(folder):
    want = tensors()
    new = {f"of_{dtype}": (torch.rand(5) * 9).to(dtype)
           for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2)}
    path = folder / "weights.pt"
    for protocol in (2, 3, 4, 5):
        torch.save(collections.OrderedDict(want | new), path, pickle_protocol=protocol)
        check(path, want | new)
        torch.save(want, path, pickle_protocol=protocol, _use_new_zipfile_serialization=False)
        check(path, want)
    torch.save({"epoch": 3, "state_dict": want, "optimizer": {"state": {0: {"step": torch.ones(1)}}}}, path)
    check(path, want)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    torch.save({"model": model.state_dict()}, path)
    check(path, model.state_dict())
    torch.save({"a": torch.ones(2), "b": numpy.ones(2)}, path)
    assert "weights.pt: b must be a tensor: got one that needs the function numpy" in read(path), read(path)
    torch.save(model, path)
    assert "got an object that needs torch.nn.modules.container.Sequential, which is not run" in read(path), read(path)
    torch.jit.script(model).save(str(path))
    assert "got one of TorchScript" in read(path), read(path)


def check_numpy(folder):
    arrays = {name.replace("_", "//"): value.detach().contiguous().numpy() for name, value in tensors().items()
              if value.dtype != torch.bfloat16}
    arrays["fortran"] = numpy.asfortranarray(arrays["base"])
    want = {name: torch.from_numpy(numpy.ascontiguousarray(value)).reshape(value.shape)
            for name, value in arrays.items()}
    for save in (numpy.savez, numpy.savez_compressed):
        path = folder / "weights.npz"
        with open(path, "wb") as out:
            save(out, **arrays)
        check(path, want)
    numpy.savez(folder / "objects.npz", a=numpy.array([{}], dtype=object))
    assert "Python objects, whose code would run" in read(folder / "objects.npz"), read(folder / "objects.npz")


def check_folders():
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=257, n_positions=64, n_embd=48, n_layer=2, n_head=4, bos_token_id=256, eos_token_id=256))
    folder = interop.save("gpt2", model)
    words = ["--prompt", "abc", "--temperature", "0", "--max-tokens", "12", "--tokenizer", "bytes"]
    want = interop.colossal("generate", "--from", folder, *words)
    state = model.state_dict()
    for form in ("one", "old", "parts"):
        other = interop.temp_dir / form
        shutil.copytree(folder, other, ignore=shutil.ignore_patterns("*.safetensors"))
        if form != "parts":
            torch.save(state, other / "pytorch_model.bin", _use_new_zipfile_serialization=form == "one")
        else:
            map = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(state)}
            for file in set(map.values()):
                torch.save({name: state[name] for name in state if map[name] == file}, other / file)
            (other / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": map}))
        assert interop.colossal("generate", "--from", other, *words) == want, form


check_torch(interop.temp_dir)
check_numpy(interop.temp_dir)
check_folders()
