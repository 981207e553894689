"""Predicted steps beside measured ones, on this machine.

    build/release/colossal plan --calibrate
    python benchmarks/predicted_steps.py [--steps 6] [--only WORD] [--auto]

Each layout of GPT-2 124M, and examples/quickstart.toml, is predicted by `colossal plan --cluster this`, then trained. A
row shows the predicted seconds of a step, the median of the measured ones behind two that are left out, their ratio,
and the same for device memory and for the memory of the process. With --auto, the search chooses a layout of 2 ranks
for several models and limits of memory; then every layout that `plan --search` lists is trained. A row shows the
seconds of the choice, those of the fastest, and their ratio.
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import tomllib

from training_step import PROGRAM, ROOT, write_tokens
from zero_training_step import run

GPT2 = ROOT / "benchmarks/gpt2_124m.toml"
QUICKSTART = ROOT / "examples/quickstart.toml"
LAYOUTS = {
    "1 rank": [],
    "1 rank, 2 micro-batches": ["--training.accumulate=2"],
    "1 rank, recomputation": ["--memory.recompute=block"],
    "data 2": ["--parallel.data=2"],
    "data 2, ZeRO 1": ["--parallel.data=2", "--parallel.zero=1"],
    "data 2, ZeRO 3": ["--parallel.data=2", "--parallel.zero=3"],
    "tensor 2": ["--parallel.tensor.size=2"],
    "tensor 2, sequence": ["--parallel.tensor.size=2", "--parallel.tensor.sequence=true"],
    "pipeline 2, 1f1b": ["--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=4"],
    "ring 2": ["--parallel.sequence.size=2", "--parallel.sequence.mode=ring"],
}
SMALL = ["--model.layers=4", "--model.hidden=256", "--model.heads=4", "--model.vocabulary=4096"]
MODELS = {  # for --auto
    "GPT-2 124M": [],
    "GPT-2 124M, 2.5 GiB a rank": ["--memory.device=2.5GiB"],
    "4 layers of 256": SMALL,
    "4 layers of 256, 100 MiB a rank": [*SMALL, "--memory.device=100MiB"],
}


def planned(config, flags):
    return json.loads(run([PROGRAM, "plan", config, "--cluster=this", "--json", *flags]))


def trained(config, flags, folder, steps):
    """Returns the median seconds of a step, and the fullest rank's device memory and process memory, if the metrics
    have them."""
    run([PROGRAM, "train", config, "--overwrite", f"--run.folder={folder}/run", f"--training.steps={steps + 2}",
         *flags])
    with open(f"{folder}/run/metrics.jsonl") as lines:
        metrics = [json.loads(line) for line in lines]
    return statistics.median(row["seconds"] for row in metrics[2:]), metrics[-1]["peak_bytes"]


def print_row(cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def compare(rows, folder, options):
    print_row(["layout", "predicted, s", "measured, s", "predicted / measured", "process predicted", "measured",
               "ratio"])
    print_row(["---"] * 7)
    for name, (config, flags) in rows.items():
        if options.only not in name:
            continue
        prediction = planned(config, flags)
        seconds, resident = trained(config, flags, folder, options.steps)
        predicted = max(role["resident_bytes"] for role in prediction["roles"])
        print_row([name, f"{prediction['step_seconds']:.3f}", f"{seconds:.3f}",
                   f"{prediction['step_seconds'] / seconds:.3f}", f"{predicted / 2**20:.0f} MiB",
                   f"{resident / 2**20:.0f} MiB", f"{predicted / resident:.3f}"])


def flags_of(table, path=""):
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flags_of(value, f"{path}{key}.")
        else:
            yield f"--{path}{key}={json.dumps(value) if not isinstance(value, str) else value}"


def choose(base, folder, options):
    print_row(["model", "chosen", "seconds", "fastest", "seconds", "chosen / fastest"])
    print_row(["---"] * 6)
    for name, flags in MODELS.items():
        if options.only not in name:
            continue
        found = json.loads(run([PROGRAM, "plan", GPT2, "--search", "--ranks=2", "--cluster=this", "--json", *base,
                                *flags]))["best"]
        measured = []
        for layout in found:
            chosen = [*flags_of(tomllib.loads(layout["table"]))]
            measured.append((trained(GPT2, [*base, *flags, *chosen], folder, options.steps)[0], " ".join(chosen)))
        fastest = min(measured)
        print_row([name, measured[0][1], f"{measured[0][0]:.3f}", fastest[1], f"{fastest[0]:.3f}",
                   f"{measured[0][0] / fastest[0]:.3f}"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--only", default="")
    parser.add_argument("--auto", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(pathlib.Path(folder), 1 << 17)
        base = [f"--data.path={folder}/tokens.bin", "--data.sequence=256"]
        if options.auto:
            return choose(base, folder, options)
        rows = {f"GPT-2, {name}": (GPT2, [*base, *flags]) for name, flags in LAYOUTS.items()}
        plain = ["--training.evaluate_every=0", "--training.save_every=0", "--training.sample_tokens=0"]
        compare({**rows, "quickstart, data 2": (QUICKSTART, plain)}, folder, options)


if __name__ == "__main__":
    main()
