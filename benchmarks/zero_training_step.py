"""Training step of GPT-2 124M with its states shared out, and in bf16: the program of this project against PyTorch, in
turns, in one run.

    .venv/bin/python benchmarks/zero_training_step.py [--only zero|bf16] [--batch 4] [--length 256] [--steps 5]
        [--rounds 2] [--before PROGRAM]

zero: two ranks of one core each, fp32. ZeRO-3 against torch's FSDP2 (fully_shard, a unit a block, on Gloo) and against
our own plain replicas.
bf16: one rank with all cores. precision.mode = "bf16" (parameters in bf16, fp32 masters) against autocast to bf16 of an
fp32 model.
--before names this program as another commit builds it. The figure of a side is the best of its rounds' medians. Peaks
are of resident memory; that of all our ranks together is their number times that of the rank that uses most, which
counts pages that ranks share more than once. Ratios: tokens a second and memory of the first side of a table over those
of the row. Needs ./colossal.sh build, and the torch of .venv.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import training_step

RANKS = 2
MODEL = training_step.ROOT / "benchmarks/gpt2_124m.toml"
PEER = training_step.ROOT / "benchmarks/gpt2_training_step.py"


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def ours(options, folder, ranks, flags, program=training_step.PROGRAM):
    run([program, "train", MODEL, "--overwrite", f"--run.folder={folder}/run", f"--data.path={folder}/tokens.bin",
         f"--data.sequence={options.length}", f"--training.batch_size={options.batch}",
         f"--training.steps={options.steps + 2}", *flags, *options.set])
    with open(f"{folder}/run/metrics.jsonl") as lines:
        measured = [json.loads(line) for line in lines][2:]
    peak = measured[-1]["peak_bytes"] / 2**20
    return {"ms": statistics.median(line["seconds"] for line in measured) * 1e3, "rank_mb": peak,
            "all_mb": ranks * peak}


def peer(options, ranks, flags):
    script = [PEER, "--batch", options.batch, "--length", options.length, "--steps", options.steps, "--threads",
              os.cpu_count() if ranks == 1 else 1]
    torchrun = pathlib.Path(sys.executable).parent / "torchrun"
    start = [sys.executable] if ranks == 1 else [torchrun, f"--nproc-per-node={ranks}"]
    result = json.loads(run([*start, *script, *flags]).strip().splitlines()[-1])
    return {"ms": result["median_ms"], "rank_mb": result["peak_mb"], "all_mb": result["all_ranks_mb"]}


def sides_of(options, folder):
    """For each table its ranks and its sides, the one that ratios are of first."""
    replicas = f"--parallel.data={RANKS}"

    def before(ranks, flags):
        return {"ours, before": lambda: ours(options, folder, ranks, flags, options.before)} if options.before else {}

    return {
        "zero": (RANKS, {
            "ours, zero 3": lambda: ours(options, folder, RANKS, [replicas, "--parallel.zero=3"]),
            **before(RANKS, [replicas, "--parallel.zero=3"]),
            "ours, zero 0": lambda: ours(options, folder, RANKS, [replicas, "--parallel.zero=0"]),
            "torch FSDP2": lambda: peer(options, RANKS, ["--mode", "fsdp"]),
        }),
        "bf16": (1, {
            "ours, bf16": lambda: ours(options, folder, 1, ["--precision.mode=bf16"]),
            **before(1, ["--precision.mode=bf16"]),
            "ours, fp32": lambda: ours(options, folder, 1, []),
            "torch autocast": lambda: peer(options, 1, ["--mode", "eager", "--bf16"]),
        }),
    }


def print_table(options, ranks, results):
    best = {side: min(rounds, key=lambda r: r["ms"]) for side, rounds in results.items()}
    first = next(iter(best.values()))
    print(f"\n{ranks} rank(s) x {os.cpu_count() if ranks == 1 else 1} thread(s)")
    print(f"{'':16}{'ms/step':>10}{'tokens/s':>10}{'rank MB':>10}{'all MB':>10}{'speed':>8}{'memory':>8}")
    for side, r in best.items():
        ratios = "" if r is first else f"{r['ms'] / first['ms']:8.2f}{first['all_mb'] / r['all_mb']:8.2f}"
        print(f"{side:16}{r['ms']:10.0f}{options.batch * options.length / r['ms'] * 1e3:10.1f}{r['rank_mb']:10.0f}"
              f"{r['all_mb']:10.0f}{ratios}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["zero", "bf16"], help="one table")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5, help="measured, behind two that are not")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--before", metavar="PROGRAM", help="ours of another commit, a side of its own")
    parser.add_argument("--set", action="append", default=[], metavar="--KEY=VALUE",
                        help="another key of our config, as --set=--parallel.chunk_mib=50")
    options = parser.parse_args()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
               "unknown")
    print(f"GPT-2 124M, batch {options.batch} x {options.length} tokens, {cpu}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        training_step.write_tokens(pathlib.Path(folder), (options.steps + 4) * options.batch * options.length + 1)
        for table, (ranks, sides) in sides_of(options, folder).items():
            if options.only not in (None, table):
                continue
            results = {}
            for _ in range(options.rounds):
                for side, measure in sides.items():
                    results.setdefault(side, []).append(measure())
            print_table(options, ranks, results)


if __name__ == "__main__":
    main()
