"""How large a GPT-2 trains a step in fp32 with AdamW under a limit of memory: the program of this project, with tiers,
against PyTorch eager.

    .venv/bin/python benchmarks/largest_model.py FOLDER [--limit-gib 2] [--host 1GiB] [--hidden 768]
        [--vocabulary 50257] [--length 64]
        [--first LAYERS] [--most LAYERS]

FOLDER: on the disk of our scratch file. The limit is RLIMIT_DATA of each process: what it may have of memory of its
own, whatever lies in it, beside the files that it maps. The largest number of layers of that width is found by doubling
and bisection to a twentieth, with real steps of one row for each try. Prints a table: parameters, seconds of the second
step, peak resident memory. Needs ./colossal.sh build, and the torch of .venv.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

from large_model import train
from training_step import ROOT, write_tokens

GIB = 2**30
POSITIONS = 1024


def parameters_of(layers, options):
    hidden = options.hidden
    return layers * (12 * hidden * hidden + 13 * hidden) + (options.vocabulary + POSITIONS + 2) * hidden


def limit_of(options):
    limit = int(options.limit_gib * GIB)
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def peer(layers, options, folder):
    command = [sys.executable, str(ROOT / "benchmarks/gpt2_training_step.py"), "--batch", "1", "--length",
               str(options.length), "--hidden", str(options.hidden), "--layers", str(layers), "--heads",
               str(options.hidden // 64), "--vocabulary", str(options.vocabulary), "--steps", "1", "--warm-up", "1",
               "--threads", str(os.cpu_count())]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit_of(options))
    if done.returncode:
        return None, done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return {"seconds": result["median_ms"] / 1e3, "mb": result["peak_mb"]}, ""


def ours(layers, options, folder):
    flags = [f"--data.path={folder}/tokens.bin", f"--data.sequence={options.length}", "--training.batch_size=1",
             f"--model.hidden={options.hidden}", f"--model.heads={options.hidden // 64}", f"--model.layers={layers}",
             f"--model.vocabulary={options.vocabulary}", "--memory.recompute=block", f"--memory.host={options.host}",
             f"--memory.disk={options.folder}"]
    try:
        steps = list(train(ROOT / "benchmarks/gpt2_124m.toml", pathlib.Path(folder) / "run", 2, flags,
                           preexec_fn=limit_of(options)))
    except RuntimeError as error:
        return None, str(error)
    return {"seconds": steps[-1]["seconds"], "mb": steps[-1]["peak_bytes"] / 2**20}, ""


def largest(trains, first, most):
    """The most layers with which it trains, and what was measured there: those that train are doubled, then halves are
    taken between them and those that do not."""
    found, low, high, layers = None, 0, None, first
    while layers <= most and (high is None or high - low > max(1, low // 20)):
        result, said = trains(layers)
        print(f"  {layers} layers: {'trains' if result else 'fails: ' + said.strip().splitlines()[-1][:150]}",
              flush=True)
        if result:
            found, low = (layers, result), layers
        else:
            high = layers
        layers = (min(low * 2, most) if low < most else most + 1) if high is None else (low + high) // 2
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--limit-gib", type=float, default=2)
    parser.add_argument("--host", default="1GiB", help="our budget for parameters, gradients and states")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50257, help="256 or more: the tokens are bytes")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--first", type=int, default=16, help="layers at which the search of ours begins")
    parser.add_argument("--most", type=int, default=256,
                        help="layers at which the search of ours ends, which is bound by the disk")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"GPT-2 of width {options.hidden}, {options.vocabulary} tokens in the vocabulary, fp32, AdamW, "
          f"one row of {options.length} tokens, {options.limit_gib:g} GiB a process")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(pathlib.Path(folder), 8 * options.length + 1)
        for side, trains, first in (("pytorch", peer, 1), ("colossal", ours, options.first)):
            print(side, flush=True)
            found[side] = largest(lambda layers: trains(layers, options, folder), first, options.most)
    print(f"{'':10}{'layers':>8}{'parameters':>13}{'s/step':>8}{'peak MiB':>10}{'times':>8}")
    reference = parameters_of(found["pytorch"][0], options) if found["pytorch"] else None
    for side, best in found.items():
        if best:
            layers, result = best
            count = parameters_of(layers, options)
            times = f"{count / reference:.1f}" if reference else "-"
            print(f"{side:10}{layers:8}{count / 1e6:11.1f} M{result['seconds']:8.2f}{result['mb']:10.0f}{times:>8}")


if __name__ == "__main__":
    main()
