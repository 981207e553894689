"""Speed of the program before and after a change, in turns: training steps in several layouts, and generation.

    python benchmarks/before_and_after.py PROGRAM [--rounds 3] [--steps 5] [--only WORD]

PROGRAM is `colossal` as another commit builds it (its build/release/colossal); it runs beside this checkout's. A round
measures each side once. A row shows the medians of the rounds, and the median of the rounds' ratios: the speed after
over the speed before, 1 or more if nothing got slower. --only takes the rows whose names have the word.
"""

import argparse
import json
import pathlib
import statistics
import tempfile

from training_step import PROGRAM, ROOT, write_tokens
from zero_training_step import run

GPT2 = ROOT / "benchmarks/gpt2_124m.toml"
SMALL = ["--model.hidden=256", "--model.layers=2", "--model.heads=4", "--model.vocabulary=257"]
ROWS = {  # rows, tokens of a row, flags
    "step, 1 rank": (4, 256, []),
    "step, data 2": (4, 256, ["--parallel.data=2"]),
    "step, pipeline 2": (4, 256, ["--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=4"]),
    "step, ring 2": (1, 8192,
                     [*SMALL, "--model.positions=8192", "--parallel.sequence.size=2", "--parallel.sequence.mode=ring"]),
    "step, host and disk": (1, 64, ["--memory.host=256MiB", "--memory.disk=SCRATCH"]),
}
GENERATION = {"decoding, 1 sequence": (0, "tokens_per_second"), "decoding, 8 sequences": (1, "tokens_per_second"),
              "prefill": (0, "prompt_tokens_per_second")}


def train(program, folder, name, batch, length, steps, flags):
    run([program, "train", GPT2, "--overwrite", f"--run.folder={folder}/{name}", f"--data.path={folder}/tokens.bin",
         f"--data.sequence={length}", f"--training.batch_size={batch}", f"--training.steps={steps}",
         *(flag.replace("SCRATCH", f"{folder}/scratch") for flag in flags)])
    with open(f"{folder}/{name}/metrics.jsonl") as lines:
        return [json.loads(line)["seconds"] for line in lines]


def step_of(program, folder, name, steps):
    """Steps a second, behind two steps that are not measured."""
    batch, length, flags = ROWS[name]
    return {name: 1 / statistics.median(train(program, folder, "run", batch, length, steps + 2, flags)[2:])}


def generation_of(program, folder):
    result = json.loads(run([program, "bench", "inference", "--from", f"{folder}/model", "--json", "--rounds", 2,
                             "--prompt-tokens", 256, "--new-tokens", 48, "--requests", 1, "--sequences", "1,8"]))
    return {name: result["sequences"][index][key] for name, (index, key) in GENERATION.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="PROGRAM", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(pathlib.Path(folder), 1 << 17)
        parts = [lambda program, name=name: step_of(program, folder, name, options.steps) for name in ROWS
                 if options.only in name]
        if any(options.only in name for name in GENERATION):
            train(options.before, folder, "model", 1, 64, 1, [])
            parts.append(lambda program: generation_of(program, folder))
        print(f"{'':24}{'before':>12}{'after':>12}{'after / before':>16}   of the rounds")
        for part in parts:
            rounds = []
            for i in range(options.rounds):  # which side comes first changes, as a machine warms up
                order = (options.before, PROGRAM) if i % 2 == 0 else (PROGRAM, options.before)
                rounds.append({program: part(program) for program in order})
            for name in rounds[0][PROGRAM]:
                before, after = ([sides[program][name] for sides in rounds] for program in (options.before, PROGRAM))
                ratios = [a / b for a, b in zip(after, before)]
                print(f"{name:24}{statistics.median(before):12.3f}{statistics.median(after):12.3f}"
                      f"{statistics.median(ratios):16.3f}   " + " ".join(f"{ratio:.3f}" for ratio in ratios),
                      flush=True)


if __name__ == "__main__":
    main()
