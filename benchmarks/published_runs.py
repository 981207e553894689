"""Predicted steps beside published ones, as markdown tables.

    .venv/bin/python benchmarks/published_runs.py [--program build/release/colossal]
        [--tests build/release/tests/colossal_plan_tests]

1. Megatron and MegaScale 175B: 16 points, of which the four smallest of each system are fitted (the test
   PublishedRuns).
2. torchtitan's Llama 3.1: without a fit (benchmarks/clusters/h100-500w-8x.toml: derived shares of the peak), and with
   one constant of the device from its smallest run (the same test).
3. Modes of tensor parallelism on 64 GPUs, by `colossal plan`: order and ratios beside Tesseract and the 3D paper.
Takes about a minute of one core. Needs ./colossal.sh build.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Tesseract's strong scaling: hidden 3072, 64 heads. We do not know its layers and its batch.
CLUSTER = ROOT / "benchmarks/clusters/a100-4x.toml"
BATCHES = (16, 64)
CONFIG = """\
[model]
name = "gpt2-small"
vocabulary = 51200
layers = 24
hidden = 3072
heads = 64
kv_heads = 64
ffn = 12288
positions = 512
dropout = 0
[data]
tokenizer = "bytes"
sequence = 512
[precision]
mode = "fp16"
[optimizer]
warmup_steps = 0
[training]
steps = 2
batch_size = 16
evaluate_batches = 0
sample_tokens = 0
"""
MODES = {"1d": [], "2d": [], "2.5d": ["--parallel.tensor.depth=4"], "3d": []}
# The faster mode, the slower mode, published ratio, source.
PUBLISHED = [
    ("1d", "2d", 0.1329 / 0.1195, "Tesseract, strong scaling, forward"),
    ("2.5d", "1d", 0.1195 / 0.0869, "Tesseract, strong scaling, forward"),
    ("2.5d", "2d", 0.1329 / 0.0869, "Tesseract, strong scaling, forward"),
    ("3d", "1d", 2.32, "3D paper, 64 V100"),
    ("3d", "2d", 1.57, "3D paper, 64 V100"),
]


def show_points(output):
    """Prints the points of the test's output."""
    point = re.compile(r"(\w+) (\d+) GPUs, batch (\d+): ([\d.]+) s, published ([\d.]+) s, (.*) %")
    rows = point.findall(output)
    if not rows:
        sys.exit(f"the test PublishedRuns printed no points:\n{output}")
    print("| system | GPUs | batch | predicted s | published s | error % | fitted |\n|---|---|---|---|---|---|---|")
    for name, gpus, batch, predicted, published, error in rows:
        print(f"| {name} | {gpus} | {batch} | {predicted} | {published} | {error} | "
              f"{'yes' if batch == '768' else 'no'} |")
    for line in output.splitlines():
        if "efficiency" in line and not line.startswith("torchtitan"):
            print(f"\n{line}")


def show_torchtitan(output):
    """Prints torchtitan's runs: first without a fit, then with one constant."""
    print("\n| torchtitan run | device | predicted tokens/s | published | error % | "
          "error of seconds % |\n|---|---|---|---|---|---|")
    device = ""
    for line in output.splitlines():
        if found := re.match(r"torchtitan: efficiency ([\d.]+)", line):
            device = f"2.4 TB/s, products at {found[1]} of the peak (from 8B on 8)"
        elif found := re.match(r"torchtitan: (.*)", line):
            device = found[1]
        if found := re.match(r"torchtitan (.*): (\d+) tokens/s, published (\d+), (.*) %", line):
            seconds = 100 * (int(found[3]) / int(found[2]) - 1)
            print(f"| {found[1]} | {device} | {found[2]} | {found[3]} | {found[4]} | {seconds:+.1f} |")


def step_seconds(program, folder, mode, batch):
    """Returns the predicted seconds of a step of 64 ranks in this mode."""
    command = [str(program), "plan", str(folder / "gpt.toml"), "--cluster", str(CLUSTER), "--json",
               f"--training.batch_size={batch}", "--parallel.tensor.size=64", f"--parallel.tensor.mode={mode}",
               *MODES[mode]]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr}")
    return json.loads(result.stdout)["step_seconds"]


def show_modes(program):
    print("\n| batch | faster, as published | slower | predicted ratio | published ratio | same order | source |")
    print("|---|---|---|---|---|---|---|")
    steps = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "gpt.toml").write_text(CONFIG)
        for batch in BATCHES:
            seconds = {mode: step_seconds(program, folder, mode, batch) for mode in MODES}
            for fast, slow, published, source in PUBLISHED:
                ratio = seconds[slow] / seconds[fast]
                same = "yes" if ratio > 1 else "no"
                print(f"| {batch} | {fast} | {slow} | {ratio:.2f} | {published:.2f} | {same} | {source} |")
            steps.append(f"batch {batch}: " + ", ".join(f"{mode} {value:.3f} s" for mode, value in seconds.items()))
    print("\nPredicted steps: " + "; ".join(steps))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/colossal")
    parser.add_argument("--tests", type=pathlib.Path, default=ROOT / "build/release/tests/colossal_plan_tests")
    given = parser.parse_args()
    output = subprocess.run([str(given.tests), "--gtest_filter=PublishedRuns.*"], capture_output=True, text=True).stdout
    show_points(output)
    show_torchtitan(output)
    show_modes(given.program)


if __name__ == "__main__":
    main()
