"""Training step of GPT-2 124M, fp32: the program of this project against PyTorch, in turns, in one run.

    .venv/bin/python benchmarks/training_step.py [--ranks 1|2] [--layout data|tensor|pipeline] [--batch 4]
        [--length 256] [--steps 6] [--rounds 2] [--compile]
        [--schedule 1f1b|zero-bubble] [--micro-batches 4] [--before PROGRAM]

One rank: all cores to both sides, the peer eager (and compiled with --compile). Two ranks: one core each, the peer on
Gloo: for layout data DistributedDataParallel, for layout tensor parallelize_module, for layout pipeline
torch.distributed.pipelining with the schedule of that name; for the last two our own single process with all cores is
shown too. --before names this program as another commit builds it, to be measured in turns with the rest. Prints a
table; the figure of a side is the best of its rounds' medians, and the ratio is ours over the peer's tokens a second.
Needs ./colossal.sh build, and the torch of .venv.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUR_SCHEDULE = {"1f1b": "1f1b", "zero-bubble": "zero-bubble-v"}  # the peer's zero bubbles are ZBV's too
PROGRAM = pathlib.Path(os.environ.get("COLOSSAL_BINARY", ROOT / "build/release/colossal"))


def write_tokens(folder, count):
    """A token file of random ids that any tokenizer has; a step costs the same whatever they are."""
    generator = random.Random(0)
    values = bytearray()
    for _ in range(count):
        values += generator.randrange(256).to_bytes(2, "little")
    (folder / "tokens.bin").write_bytes(values)
    (folder / "tokens.bin.json").write_text('{"dtype": "uint16"}')


def ours(options, folder, ranks, program=PROGRAM):
    command = [
        str(program), "train", str(ROOT / "benchmarks/gpt2_124m.toml"), "--overwrite",
        f"--run.folder={folder}/run", f"--data.path={folder}/tokens.bin", f"--data.sequence={options.length}",
        f"--training.batch_size={options.batch}", f"--training.steps={options.steps + 2}",
    ]
    if ranks > 1 and options.layout == "pipeline":
        command += [f"--parallel.pipeline.size={ranks}",
                    f"--parallel.pipeline.schedule={OUR_SCHEDULE[options.schedule]}",
                    f"--parallel.pipeline.micro_batches={options.micro_batches}"]
    elif ranks > 1:
        command.append(f"--parallel.{options.layout}={ranks}")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    lines = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")][2:]
    return {"ms": statistics.median(line["seconds"] for line in lines) * 1e3, "mb": lines[-1]["peak_bytes"] / 2**20}


def peer(options, mode):
    script = [str(ROOT / "benchmarks/gpt2_training_step.py"), "--mode", mode, "--batch", str(options.batch), "--length",
              str(options.length), "--steps", str(options.steps), "--threads",
              str(1 if options.ranks > 1 else os.cpu_count())]
    if mode == "pipeline":
        script += ["--schedule", options.schedule, "--micro-batches", str(options.micro_batches)]
    if options.ranks > 1:
        command = [str(pathlib.Path(sys.executable).parent / "torchrun"), f"--nproc-per-node={options.ranks}", *script]
    else:
        command = [sys.executable, *script]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return {"ms": result["median_ms"], "mb": result["peak_mb"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--layout", choices=["data", "tensor", "pipeline"], default="data", help="of the ranks")
    parser.add_argument("--schedule", choices=list(OUR_SCHEDULE), default="1f1b", help="of layout pipeline")
    parser.add_argument("--micro-batches", type=int, default=4, help="of layout pipeline: equal parts of the batch")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--before", metavar="PROGRAM", help="ours of another commit, a side of its own")
    options = parser.parse_args()
    if options.layout == "pipeline" and (options.ranks != 2 or options.batch % options.micro_batches):
        parser.error("--layout pipeline takes --ranks 2 and a --batch that --micro-batches divides, "
                     f"not {options.ranks} rank(s) and {options.batch} / {options.micro_batches}")
    if options.ranks > 1:
        modes = ["ddp"] if options.layout == "data" else [options.layout, "one process"]
    else:
        modes = ["eager"] + (["compile"] if options.compile else [])
    if options.before:
        modes = ["before", *modes]
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(pathlib.Path(folder), (options.steps + 4) * options.batch * options.length + 1)
        measures = {
            "colossal": lambda: ours(options, folder, options.ranks),
            "before": lambda: ours(options, folder, options.ranks, options.before),
            "one process": lambda: ours(options, folder, 1),
        }
        for _ in range(options.rounds):
            for side in ["colossal", *modes]:
                results.setdefault(side, []).append(measures[side]() if side in measures else peer(options, side))
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "unknown")
    print(f"GPT-2 124M, fp32, batch {options.batch} x {options.length} tokens, {options.ranks} rank(s), {cpu}, "
          f"{os.cpu_count()} cores")
    if options.layout == "pipeline":
        print(f"schedule {options.schedule} (ours: {OUR_SCHEDULE[options.schedule]}), "
              f"{options.micro_batches} micro-batches")
    print(f"{'':12}{'ms/step':>10}{'tokens/s':>10}{'peak MB':>10}{'ours/peer':>11}")
    best = {side: min(rounds, key=lambda r: r["ms"]) for side, rounds in results.items()}
    for side, r in best.items():
        ratio = f"{r['ms'] / best['colossal']['ms']:.2f}" if side != "colossal" else ""
        rate = options.batch * options.length / r["ms"] * 1e3
        print(f"{side:12}{r['ms']:10.0f}{rate:10.1f}{r['mb']:10.0f}{ratio:>11}")


if __name__ == "__main__":
    main()
