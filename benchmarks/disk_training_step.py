"""Training step of GPT-2 124M, fp32, whose parameters and states lie on a disk: the program of this project against
DeepSpeed's ZeRO 3 with NVMe offload, in turns, in one run.

    .venv/bin/python benchmarks/disk_training_step.py FOLDER [--peer-python VENV/bin/python] [--host 256MiB] [--batch 1]
        [--length 64] [--steps 6] [--rounds 2]

FOLDER: on the disk, for both. VENV: a Python that has torch and deepspeed. One rank, all cores to both sides. Prints a
table; the figure of a side is the best of its rounds' medians, and the ratios are those of tokens a second and of peak
resident memory. Behind it the share of the disk's bandwidth that our steps use: of what raw O_DIRECT requests reach
that read and write at once, measured before and after. Needs ./colossal.sh build.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from training_step import PROGRAM, ROOT, write_tokens


def result_of(command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def ours(options, folder, scratch):
    result_of([PROGRAM, "train", ROOT / "benchmarks/gpt2_124m.toml", "--overwrite", f"--run.folder={folder}/run",
               f"--data.path={folder}/tokens.bin", f"--data.sequence={options.length}",
               f"--training.batch_size={options.batch}", f"--training.steps={options.steps + 2}",
               f"--memory.host={options.host}", f"--memory.disk={scratch}"])
    lines = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")][2:]
    tiers = lines[-1]["tiers"]
    read, written = tiers["bytes_read"], tiers["bytes_written"]
    return {"ms": statistics.median(line["seconds"] for line in lines) * 1e3, "mb": lines[-1]["peak_bytes"] / 2**20,
            "bytes": read + written,
            "moved": f"{read / 2**20:.0f} MiB read and {written / 2**20:.0f} MiB written in the last step"}


def raw(folder):
    """Bytes a second, half of which are read while the others are written."""
    said = result_of([ROOT / "build/release/benchmarks/colossal_disk_bench", folder, "2016", "3", "18", "14"])
    lines = [json.loads(line) for line in said.splitlines()]
    return next(line["median_mb_s"] for line in lines if line["what"] == "raw" and line["kind"] == "both") * 1e6


def peer(options, scratch):
    swap = scratch / "swapped"
    swap.mkdir(exist_ok=True)
    # ninja, for deepspeed's extension
    environment = {**os.environ, "PATH": f"{pathlib.Path(options.peer_python).parent}:{os.environ['PATH']}"}
    said = result_of([options.peer_python, ROOT / "benchmarks/deepspeed_training_step.py", swap, "--batch",
                      options.batch, "--length", options.length, "--steps", options.steps + 2, "--threads",
                      os.cpu_count()], env=environment)
    shutil.rmtree(swap)
    result = json.loads(said.strip().splitlines()[-1])
    return {"ms": result["median_ms"], "mb": result["peak_mb"], "moved": ""}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--peer-python", help="without it only our side runs")
    parser.add_argument("--host", default="256MiB", help="our budget of host memory")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    results = {"colossal": [], "deepspeed": []}
    with tempfile.TemporaryDirectory() as folder:
        before = raw(options.folder)
        write_tokens(pathlib.Path(folder), (options.steps + 4) * options.batch * options.length + 1)
        for _ in range(options.rounds):
            results["colossal"].append(ours(options, folder, options.folder))
            if options.peer_python:
                results["deepspeed"].append(peer(options, options.folder))
        bandwidth = (before + raw(options.folder)) / 2
    best = {side: min(rounds, key=lambda r: r["ms"]) for side, rounds in results.items() if rounds}
    print(f"GPT-2 124M, fp32, batch {options.batch} x {options.length} tokens, parameters and states on a disk, "
          f"memory.host = {options.host}")
    print(f"{'':12}{'ms/step':>10}{'tokens/s':>10}{'peak MiB':>10}{'ours/peer':>11}{'memory':>9}")
    for side, r in best.items():
        first, rate = best["colossal"], options.batch * options.length / r["ms"] * 1e3
        ratios = "" if side == "colossal" else f"{r['ms'] / first['ms']:11.2f}{first['mb'] / r['mb']:9.2f}"
        print(f"{side:12}{r['ms']:10.0f}{rate:10.1f}{r['mb']:10.0f}{ratios}  {r['moved']}")
    used = best["colossal"]["bytes"] / best["colossal"]["ms"] * 1e3
    print(f"{used / 1e9:.2f} GB/s of {bandwidth / 1e9:.2f} that this disk reads and writes at once: "
          f"{used / bandwidth:.2f}")


if __name__ == "__main__":
    main()
