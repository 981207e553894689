"""Functions shared by the interop scripts. A new script is one file here, named x_interop.py; ctest finds it."""

import copy
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile

binary = os.environ["COLOSSAL_BINARY"]
source_dir = pathlib.Path(os.environ["COLOSSAL_SOURCE_DIR"])
temp_dir = pathlib.Path(os.environ["COLOSSAL_TEMP_DIR"])


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def need(*packages):
    """Imports the packages, or ends the script as skipped."""
    try:
        return [importlib.import_module(name) for name in packages]
    except ImportError as error:
        skip(f"{error}; ./colossal.sh test installs tests/interop/requirements.txt")
    # A CUDA build of torch without its libraries, as colossal.sh installs it for CPUs, fails this way.
    except (OSError, ValueError) as error:
        skip(f"Python cannot import torch: {error}; install a CPU wheel of torch into .venv, "
             f"or all of this one with {sys.executable} -m pip install torch")


def colossal(*words, timeout=300):
    """Runs the program and returns what it printed; fails the test if it fails."""
    done = subprocess.run([binary, *map(str, words)], cwd=temp_dir, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, (f"colossal {' '.join(map(str, words))}: status {done.returncode}\n{done.stdout}\n"
                                  f"{done.stderr}")
    return done.stdout


def save(name, model):
    """Saves the model to a folder with new weights: norms and biases too, so that each of them affects the results."""
    import torch  # every script that calls this function needs torch
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    folder = temp_dir / name
    model.save_pretrained(folder)
    model.eval()
    return folder


def with_plain_experts(model):
    """Lets transformers compute experts one by one: its grouped products support neither fp64 nor odd sizes."""
    if any(name.endswith(".experts") for name, _ in model.named_modules()):
        model.set_experts_implementation("eager")
    return model


def in_fp64(model):
    return with_plain_experts(model).double()


def probe(folder, inputs, labels, *flags, documents=None):
    """Runs one step of our model from the folder on a batch, in fp64 with the layout of the flags. Returns loss,
    logits, the gradients under transformers' names, and a folder with the weights as we write them."""
    import torch
    from safetensors.torch import load_file, save_file
    batch = {"inputs": inputs, "labels": labels} | ({} if documents is None else {"documents": documents})
    save_file({name: x.contiguous() for name, x in batch.items()}, temp_dir / "batch.safetensors")
    out = pathlib.Path(tempfile.mkdtemp(dir=temp_dir))
    done = subprocess.run([os.environ["COLOSSAL_MODEL_PROBE"], folder, temp_dir / "batch.safetensors", out, *flags],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (flags, done.stderr)
    made = load_file(out / "logits.safetensors")
    return made["loss"].item(), made["logits"], load_file(out / "gradients" / "model.safetensors"), out / "weights"


def rounding(model, inputs, roundoff=2**-52):
    """Returns the maximum error of a value relative to the largest one: as many roundings as the longest sums (of
    features, tokens or vocabulary) have terms, in every layer and direction."""
    terms = max(inputs.numel(), *(max(p.shape) for p in model.parameters()))
    return 2 * model.config.num_hidden_layers * terms * roundoff


def compare_model(name, model, folder, inputs, labels, loss, logits, layouts, *, documents=None, roundoff=2**-52,
                  renamed=None, joined=None):
    """Compares loss, logits and every gradient under each of our layouts (flags) with `model`, which holds the folder
    in fp64 and computed `loss` and `logits`. `roundoff` is the rounding error of the coarsest dtype in which it
    computes anything. A gradient may be off by rounding of its own largest value. A gradient that is zero up to
    rounding (a key's bias: sums of differences that cancel out) may be off by rounding of the largest of all. `renamed`
    maps names of parameters in folders to different names in `model`; `joined` makes the tensors of `model` from those
    of a folder. Returns a folder that we wrote."""
    model.zero_grad()
    loss.backward()
    wanted = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    limit = rounding(model, inputs, roundoff)
    largest = max(x.abs().max().item() for x in wanted.values())
    for flags in layouts:
        our_loss, our_logits, gradients, weights = probe(folder, inputs, labels, *flags, documents=documents)
        assert abs(our_loss - loss.item()) <= limit * loss.item(), (name, flags, our_loss, loss.item())
        off = (our_logits.view(logits.shape) - logits).abs().max().item()
        assert off <= limit * logits.abs().max().item(), (name, flags, "logits", off)
        gradients = {(renamed or {}).get(key, key): gradient for key, gradient in gradients.items()}
        gradients = joined(gradients) if joined else gradients
        assert gradients.keys() == wanted.keys(), (name, flags, gradients.keys() ^ wanted.keys())
        for key, gradient in gradients.items():
            off = (gradient - wanted[key]).abs().max().item()
            own = wanted[key].abs().max().item()
            scale = own if own > limit * largest else largest
            assert off <= limit * scale, (name, flags, key, off, limit * scale)
    print(name, "agrees: logits and", len(wanted), "gradients in", len(layouts), "layouts, within", limit)
    return weights


def compare_export(name, run, model, **inputs):
    """Checks that the model that a run exported, read by transformers, equals `model`: its weights, and its logits of
    `inputs` to the last bit in fp64, so that the values of config.json for norms, positions and activations matter.
    Returns its config."""
    import torch
    colossal("export", "--from", run, "--to", f"{run}-export")
    again, report = type(model).from_pretrained(f"{run}-export", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], (name, report)
    again, model = in_fp64(again).eval(), in_fp64(copy.deepcopy(model)).eval()
    for (key, a), (other, b) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert key == other and torch.equal(a, b), (name, key)
    with torch.no_grad():
        is_equal = torch.equal(model(**inputs).logits, again(**inputs).logits)
        assert is_equal, (name, "another config.json", model.config, again.config)
    return again.config
