"""Training step with the tokens of each row split over two ranks of one core each, fp32: the program of this project
against PyTorch, in turns, in one run.

    .venv/bin/python benchmarks/sequence_training_step.py [--only ring|megatron] [--length 32768] [--steps 2]
        [--rounds 1] [--before PROGRAM]

ring: one row of --length tokens through a GPT-2 of 2 layers of 256 (4 heads), so long that attention is most of it.
parallel.sequence.mode = "ring" against our one rank with two threads, and against PyTorch with ring attention over
batch_isend_irecv on Gloo, each part by its fused attention, and DistributedDataParallel (torch_ring_attention.py says
why not context_parallel).
megatron: GPT-2 124M, 4 x 256 tokens. tensor = { size = 2, sequence = true } against torch's SequenceParallel +
parallelize_module on Gloo. Activations: by how much the peak of resident memory of a rank grows from a batch of 8 rows
to one of 16, all that is kept for backward and what a step needs beside it, per 4 rows.
The figure of a side is the best of its rounds' medians. --before names this program as another commit builds it.
Ratios: of the time of a row over that of ours. Needs ./colossal.sh build, and the torch of .venv.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

import training_step
from zero_training_step import MODEL, PEER, run

RANKS = 2
SMALL = {"hidden": 256, "layers": 2, "heads": 4, "vocabulary": 257}


def ours(options, folder, batch, length, flags, steps, program=training_step.PROGRAM):
    run([program, "train", MODEL, "--overwrite", f"--run.folder={folder}/run", f"--data.path={folder}/tokens.bin",
         f"--data.sequence={length}", f"--training.batch_size={batch}", f"--training.steps={steps + 1}", *flags])
    with open(f"{folder}/run/metrics.jsonl") as lines:
        measured = [json.loads(line) for line in lines]
    return {"ms": statistics.median(line["seconds"] for line in measured[1:]) * 1e3,
            "mb": measured[-1]["peak_bytes"] / 2**20}


def peer(batch, length, steps, flags):
    torchrun = pathlib.Path(sys.executable).parent / "torchrun"
    script = [PEER, "--batch", batch, "--length", length, "--steps", steps, "--warm-up", 1, "--threads", 1]
    result = json.loads(run([torchrun, f"--nproc-per-node={RANKS}", *script, *flags]).strip().splitlines()[-1])
    return {"ms": result["median_ms"], "mb": result["peak_mb"]}


def ring_sides(options, folder):
    sizes = [f"--model.{name}={value}" for name, value in SMALL.items()] + [f"--model.positions={options.length}"]
    ring = [*sizes, f"--parallel.sequence.size={RANKS}", "--parallel.sequence.mode=ring"]

    def step(flags, program=training_step.PROGRAM):
        return ours(options, folder, 1, options.length, flags, options.steps, program)

    sides = {"ours, ring": lambda: step(ring), "ours, one rank": lambda: step(sizes)}
    if options.before:
        sides["ours, before"] = lambda: step(ring, options.before)
    flags = [word for name, value in SMALL.items() for word in (f"--{name}", value)]
    sides["torch, ring"] = lambda: peer(1, options.length, options.steps, ["--mode", "ring", *flags])
    return sides


def megatron_sides(options, folder):
    form = [f"--parallel.tensor.size={RANKS}", "--parallel.tensor.sequence=true"]

    def with_activations(step):
        """Speed of 4 rows, and the growth of the peak between 8 and 16."""
        measured, few, many = step(4, 3 * options.steps), step(8, 1), step(16, 1)
        return {**measured, "activations": (many["mb"] - few["mb"]) / 2}

    def our_step(program):
        return lambda: with_activations(lambda batch, steps: ours(options, folder, batch, 256, form, steps, program))

    sides = {"ours, 1d sequence": our_step(training_step.PROGRAM)}
    if options.before:
        sides["ours, before"] = our_step(options.before)
    sides["torch, sequence"] = lambda: with_activations(
        lambda batch, steps: peer(batch, 256, steps, ["--mode", "sequence"]))
    return sides


def print_table(name, title, tokens, results):
    best = {side: min(rounds, key=lambda r: r["ms"]) for side, rounds in results.items()}
    first = next(iter(best.values()))
    print(f"\n{name}: {title}")
    print(f"{'':20}{'ms/step':>10}{'tokens/s':>10}{'rank MB':>10}{'activations MB':>16}{'time':>8}{'activations':>13}")
    for side, r in best.items():
        kept = f"{r['activations']:16.0f}" if "activations" in r else " " * 16
        ratio = "" if r is first else f"{r['ms'] / first['ms']:8.2f}"
        if r is not first and "activations" in r:
            ratio += f"{r['activations'] / first['activations']:13.2f}"
        print(f"{side:20}{r['ms']:10.0f}{tokens / r['ms'] * 1e3:10.1f}{r['mb']:10.0f}{kept}{ratio}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["ring", "megatron"], help="one table")
    parser.add_argument("--length", type=int, default=32768, help="tokens of the row of table ring; a multiple of 4")
    parser.add_argument("--steps", type=int, default=2,
                        help="measured, behind one that is not; three times as many of table megatron")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--before", metavar="PROGRAM", help="ours of another commit, a side of its own")
    options = parser.parse_args()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
               "unknown")
    print(f"{cpu}, {os.cpu_count()} cores; {RANKS} ranks x 1 thread, one rank x {os.cpu_count()} threads")
    tables = {
        "ring": (ring_sides, f"GPT-2 of {SMALL}, one row of {options.length} tokens", options.length),
        "megatron": (megatron_sides, "GPT-2 124M, 4 x 256 tokens", 4 * 256),
    }
    with tempfile.TemporaryDirectory() as folder:
        training_step.write_tokens(pathlib.Path(folder), (3 * options.steps + 4) * max(options.length, 16 * 256) + 1)
        for name, (sides_of, title, tokens) in tables.items():
            if options.only not in (None, name):
                continue
            results = {}
            for _ in range(options.rounds):
                for side, measure in sides_of(options, folder).items():
                    results.setdefault(side, []).append(measure())
            print_table(name, title, tokens, results)


if __name__ == "__main__":
    main()
