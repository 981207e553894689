"""Does a model of 1.01e9 parameters train in bf16 on two ranks with ZeRO-3 inside 24 GiB for both together?

    .venv/bin/python benchmarks/large_model.py [--steps 2] [--budget-gib 24] [--folder runs/llama-1b] [--set=--KEY=VALUE ...]

Trains benchmarks/llama_1b.toml and ends it once --steps steps are done, before it would write a checkpoint of 14 GB. Prints each step and the peak of resident
memory: ranks times that of the rank that uses most, from its start on, which counts pages that ranks share more than once. Exits with status 1 where that is
beyond the budget. Needs ./colossal.sh build.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("COLOSSAL_BINARY", str(ROOT / "build/release/colossal"))
RANKS = 2  # as the config has it
GIB = 2**30


def lines_of(path):
    """Complete lines of a file that may not be there yet."""
    text = path.read_text() if path.exists() else ""
    return text[:text.rfind("\n") + 1].splitlines()


def train(folder, steps, flags):
    """What the run says of each of the first `steps` steps, as it comes."""
    command = [PROGRAM, "train", str(ROOT / "benchmarks/llama_1b.toml"), "--overwrite", f"--run.folder={folder}", f"--training.steps={steps + 1000}", *flags]
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)  # of an earlier run
    with tempfile.TemporaryFile("w+") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            seen = 0
            while seen < steps:
                ended = process.poll() is not None  # asked before the file is read: what it wrote is there
                for line in lines_of(metrics)[seen:steps]:
                    seen += 1
                    yield json.loads(line)
                if ended and seen < steps:
                    output.seek(0)
                    sys.exit(f"the run ended with status {process.returncode} after {seen} step(s)\n{output.read()}")
                time.sleep(0.2)
        finally:
            process.kill()  # its ranks end with it


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--budget-gib", type=float, default=24)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "runs/llama-1b")
    parser.add_argument("--set", action="append", default=[], metavar="--KEY=VALUE", help="another key of the config")
    options = parser.parse_args()
    peak = 0
    for step in train(options.folder, options.steps, options.set):
        peak = max(peak, RANKS * step["peak_bytes"])
        print(f"step {step['step']}: loss {step['loss']:.4f}, norm {step['grad_norm']:.3f}, {step['seconds']:.1f} s, "
              f"{step['tokens_per_second']:.1f} tokens/s, {RANKS} x {step['peak_bytes'] / GIB:.2f} GiB", flush=True)
    found = re.search(r"of (\d+) parameters", (options.folder / "log-rank-0.txt").read_text())
    parameters = int(found.group(1))
    print(f"{parameters / 1e9:.3f}e9 parameters, {RANKS} ranks: {peak / GIB:.2f} GiB together, {peak / parameters:.1f} bytes a parameter; "
          f"budget {options.budget_gib:g} GiB")
    sys.exit(0 if peak <= options.budget_gib * GIB else 1)


if __name__ == "__main__":
    main()
