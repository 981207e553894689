"""Does a large model train inside a budget of resident memory?

    .venv/bin/python benchmarks/large_model.py [--config benchmarks/llama_1b.toml] [--steps 2] [--budget-gib 24]
        [--folder runs/large] [--set=--KEY=VALUE ...]

Trains the config and ends it once --steps steps are done, before it would write a checkpoint of its size. Prints each
step and the peak of resident memory: ranks times that of the rank that uses most, from its start on, which counts pages
that ranks share more than once. Exits with status 1 where that is beyond the budget. Needs ./colossal.sh build, and
Python 3.11 or newer.

llama_1b.toml: 1.01e9 parameters in bf16 on two ranks with ZeRO-3. gpt_4b.toml: 4.06e9 parameters in bf16 on one, most
of them on a disk.
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
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("COLOSSAL_BINARY", str(ROOT / "build/release/colossal"))
GIB = 2**30


def lines_of(path):
    """Complete lines of a file that may not be there yet."""
    text = path.read_text() if path.exists() else ""
    return text[:text.rfind("\n") + 1].splitlines()


def tiers_of(step):
    """Where the parameters, gradients and states lie, and what moved."""
    tiers = step.get("tiers")
    if not tiers:
        return ""
    read, written = tiers["bytes_read"], tiers["bytes_written"]
    return (f"; {tiers['host_bytes'] / GIB:.1f} GiB in host memory, {tiers['disk_bytes'] / GIB:.1f} GiB on the disk; "
            f"read {read / GIB:.1f} GiB and wrote "
            f"{written / GIB:.1f} GiB, {(read + written) / 1e9 / step['seconds']:.2f} GB/s")


def train(config, folder, steps, flags, **process_options):
    """What the run says of each of the first `steps` steps, as it comes; the process is ended then."""
    command = [PROGRAM, "train", str(config), "--overwrite", f"--run.folder={folder}",
               f"--training.steps={steps + 1000}", *flags]
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)  # of an earlier run
    with tempfile.TemporaryFile("w+") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT,
                                                                  **process_options) as process:
        try:
            seen = 0
            while seen < steps:
                ended = process.poll() is not None  # asked before the file is read: what it wrote is there
                for line in lines_of(metrics)[seen:steps]:
                    seen += 1
                    yield json.loads(line)
                if ended and seen < steps:
                    output.seek(0)
                    raise RuntimeError(f"the run ended with status {process.returncode} after {seen} step(s)\n"
                                       + output.read())
                time.sleep(0.2)
        finally:
            process.kill()  # its ranks end with it


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "benchmarks/llama_1b.toml")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--budget-gib", type=float, default=24)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "runs/large")
    parser.add_argument("--set", action="append", default=[], metavar="--KEY=VALUE", help="another key of the config")
    options = parser.parse_args()
    ranks = tomllib.loads(options.config.read_text()).get("parallel", {}).get("data", 1)
    peak = 0
    for step in train(options.config, options.folder, options.steps, options.set):
        peak = max(peak, ranks * step["peak_bytes"])
        print(f"step {step['step']}: loss {step['loss']:.4f}, norm {step['grad_norm']:.3f}, {step['seconds']:.1f} s, "
              f"{step['tokens_per_second']:.1f} tokens/s, {ranks} x {step['peak_bytes'] / GIB:.2f} GiB{tiers_of(step)}",
              flush=True)
    found = re.search(r"of (\d+) parameters", (options.folder / "log-rank-0.txt").read_text())
    parameters = int(found.group(1))
    print(f"{parameters / 1e9:.3f}e9 parameters, {ranks} rank(s): {peak / GIB:.2f} GiB together, "
          f"{peak / parameters:.1f} bytes a parameter; "
          f"budget {options.budget_gib:g} GiB")
    sys.exit(0 if peak <= options.budget_gib * GIB else 1)


if __name__ == "__main__":
    main()
