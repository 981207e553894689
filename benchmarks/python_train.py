"""Training of our GPT-2 124M by colossal.train() from Python and by `colossal train`, in turns.

    python benchmarks/python_train.py [--rounds 5] [--steps 20] [--rows 4] [--length 256]

Both run the program of the installed package with benchmarks/gpt2_124m.toml; Python follows the records of the run with
a function `on_step`. Prints a JSON object. "speed" is the command's median step over that of Python. "whole" compares
the processes from start to end, which includes the import of the package.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

import python_sides as sides
from training_step import write_tokens

CONFIG = sides.ROOT / "benchmarks/gpt2_124m.toml"
CALL = """
import json, sys
import colossal
steps = []
colossal.train(sys.argv[1], json.loads(sys.argv[2]), overwrite=True, on_step=steps.append)
assert len(steps) == json.loads(sys.argv[2])["training.steps"]
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="measured steps, after two that are not")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    for name, default in (("layers", 12), ("hidden", 768), ("heads", 12), ("vocabulary", 50257)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    program = sides.program()
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(pathlib.Path(folder), (options.steps + 4) * options.rows * options.length + 1)
        changes = {"run.folder": f"{folder}/run", "data.path": f"{folder}/tokens.bin", "data.sequence": options.length,
                   "training.batch_size": options.rows, "training.steps": options.steps + 2}
        changes |= {f"model.{name}": getattr(options, name) for name in ("layers", "hidden", "heads", "vocabulary")}
        commands = {
            "python": [sys.executable, "-c", CALL, CONFIG, json.dumps(changes)],
            "command": [program, "train", CONFIG, "--overwrite",
                        *(f"--{key}={value}" for key, value in changes.items())],
        }

        def measure(side):
            begin = time.perf_counter()
            sides.output_of(commands[side])
            whole = time.perf_counter() - begin
            records = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")][2:]
            return {"ms": statistics.median(record["seconds"] for record in records) * 1e3, "whole_s": whole}

        results = sides.in_turns({side: lambda side=side: measure(side) for side in commands}, options.rounds)
    over = lambda name: sides.ratios(  # noqa: E731
        sides.column(results["command"], name), sides.column(results["python"], name))
    sides.show("colossal.train() against the command `colossal train`",
               {"speed": over("ms"), "whole": over("whole_s"), **results}, **sides.versions("torch"))


if __name__ == "__main__":
    main()
