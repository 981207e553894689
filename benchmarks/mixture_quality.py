"""Quality of a mixture of experts against the dense model of equal operations: their losses on text that was held out.

    .venv/bin/python benchmarks/mixture_quality.py [--data FILE] [--steps 1500] [--seeds 1 2] [--rate 3e-3] [--jobs 2]

Both are llama-tiny (4 layers of 128) and differ in the feed-forward layers alone: the dense one has 352 features, the
mixture 8 experts of 176, of which a token uses 2. So a token costs the same operations, but for the router's 1,024 per
layer. Each seed trains both on the same batches for the same steps, at the same learning rate. Losses are natural
logarithms per byte, on the same held-out samples.
Each run has one thread; --jobs run at a time. Losses do not depend on what else the machine does. Prints a table; exits
with status 1 if a mixture's loss is not below the dense model's of its seed. About 10 minutes on two cores.
Needs ./colossal.sh build; without --data the text is the project's own.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("COLOSSAL_BINARY", str(ROOT / "build/release/colossal"))
BATCH, SEQUENCE = 8, 128
EVALUATED = 32  # batches of held-out text

MODELS = {  # flags of each
    "dense": ["--model.ffn=352"],
    "mixture": ["--model.experts.count=8", "--model.experts.used=2", "--model.experts.ffn=176"],
}


def held_out_loss(options, name, seed):
    """Trains one model and returns the losses at the middle and at the end, and the last metrics of the run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [PROGRAM, "train", str(ROOT / "benchmarks/precision_quality.toml"), f"--run.folder={folder}/run",
                   "--run.bind_cores=false", "--model.name=llama-tiny", *MODELS[name], f"--data.path={options.data}",
                   f"--data.sequence={SEQUENCE}", f"--optimizer.learning_rate={options.rate}",
                   f"--optimizer.warmup_steps={options.steps // 20}", f"--training.steps={options.steps}",
                   f"--training.batch_size={BATCH}", f"--training.seed={seed}",
                   f"--training.evaluate_every={max(1, options.steps // 2)}",
                   f"--training.evaluate_batches={EVALUATED}"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        with open(f"{folder}/run/metrics.jsonl") as lines:
            metrics = [json.loads(line) for line in lines]
    evaluated = [line["eval_loss"] for line in metrics if "eval_loss" in line]
    print(f"{name}, seed {seed}: {evaluated[-1]:.4f}", file=sys.stderr, flush=True)
    return {"middle": evaluated[0], "end": evaluated[-1], "load": metrics[-1].get("expert_load")}


def print_table(options, results):
    """Returns whether the mixture has the lower loss with every seed."""
    print("| seed | dense, half the steps | mixture | dense, all steps | mixture | mixture / dense | busiest expert |\n"
          "|---|---|---|---|---|---|---|")
    lower = True
    for seed in options.seeds:
        dense, mixture = (results[name, seed] for name in ("dense", "mixture"))
        below = mixture["end"] < dense["end"]  # False for a NaN
        lower = lower and below
        print(f"| {seed} | {dense['middle']:.4f} | {mixture['middle']:.4f} | {dense['end']:.4f} | "
              f"{mixture['end']:.4f} | {mixture['end'] / dense['end']:.4f}{'' if below else ', not lower'} | "
              f"{mixture['load']:.2f} x even |")
    return lower


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="builtin", help="text file or folder; builtin: the text of this project")
    parser.add_argument("--steps", type=int, default=1500, help=f"of {BATCH} samples of {SEQUENCE} bytes")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="of weights and order of data")
    parser.add_argument("--rate", default="3e-3", help="learning rate after the warm-up, of both models")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    options = parser.parse_args()
    wanted = [(name, seed) for seed in options.seeds for name in MODELS]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        started = {key: pool.submit(held_out_loss, options, *key) for key in wanted}
        try:
            results = {key: run.result() for key, run in started.items()}
        except RuntimeError as error:
            pool.shutdown(cancel_futures=True)
            sys.exit(str(error))
    print(f"llama-tiny, {options.steps} steps of {BATCH} x {SEQUENCE} bytes, learning rate {options.rate}, text "
          f"{options.data}, {EVALUATED * BATCH} samples held out\n")
    sys.exit(0 if print_table(options, results) else 1)


if __name__ == "__main__":
    main()
