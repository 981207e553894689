"""What the interop scripts share. A new script is one file here, named x_interop.py; ctest finds it."""

import importlib
import os
import pathlib
import subprocess
import sys

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


def colossal(*words, timeout=300):
    """Runs the program and returns what it printed; fails the test if it fails."""
    done = subprocess.run([binary, *map(str, words)], cwd=temp_dir, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"colossal {' '.join(map(str, words))}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def save(name, model):
    """The folder of the model with other weights: norms and biases too, so that each of them matters."""
    import torch  # a script that calls this needs it anyway
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    folder = temp_dir / name
    model.save_pretrained(folder)
    model.eval()
    return folder
