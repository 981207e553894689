"""The largest GPT-2 of `transformers` that trains a step in fp32 with AdamW under a limit of memory, from Python.

    python benchmarks/python_largest_model.py FOLDER [--limit-gib 2] [--host 256MiB] [--length 64] [--hidden 768]
        [--vocabulary 50257] [--first LAYERS] [--most LAYERS] [--rounds 1]

colossal.initialize() with a module of empty_parameters() and a scratch file in FOLDER, against PyTorch eager. The limit
is RLIMIT_DATA of each process. Both train one row and recompute blocks in backward. The largest number of layers is
found by doubling and bisection to a twentieth; each try trains two steps.

Prints a JSON object; progress goes to standard error. "parameters" is our number of parameters over the peer's.
"""

import argparse
import contextlib
import pathlib
import subprocess
import sys

import largest_model as limits
import python_sides as sides


def trains(side, layers, options):
    """Returns the figures of a try, or None and the reason."""
    flags = ["--rows=1", "--steps=1", "--warm-up=1", "--recompute", f"--length={options.length}", f"--layers={layers}",
             f"--hidden={options.hidden}", f"--heads={max(options.hidden // 64, 1)}",
             f"--vocabulary={options.vocabulary}"]
    if side == "colossal":
        flags += [f"--folder={options.folder}", f"--host={options.host}"]
    command = [str(word) for word in sides.step_command(side, flags)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limits.limit_of(options),
                          env=sides.environment())
    if done.returncode:
        return None, done.stderr or f"status {done.returncode}"
    return sides.figures_of(done.stdout)[0], ""


def search(side, first, options):
    """Returns what was measured with the most layers that train."""
    with contextlib.redirect_stdout(sys.stderr):
        print(side)
        found = limits.largest(lambda layers: trains(side, layers, options), first, options.most)
    if found is None:
        sys.exit(f"{side}: {first} layer(s) must train within {options.limit_gib:g} GiB; lower --first")
    layers, figures = found
    return {"layers": layers, "parameters": parameters_of(layers, options), **figures}


def parameters_of(layers, options):
    hidden = options.hidden
    return layers * (12 * hidden + 13) * hidden + (options.vocabulary + max(options.length, 64) + 2) * hidden


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--limit-gib", type=float, default=2)
    parser.add_argument("--host", default="256MiB", help="our budget for parameters, gradients and states")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--first", type=int, default=16, help="layers at which our search begins")
    parser.add_argument("--most", type=int, default=256, help="layers at which searches end; the disk bounds ours")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    runs = {"eager": lambda: search("eager", 1, options),
            "colossal": lambda: search("colossal", options.first, options)}
    results = sides.in_turns(runs, options.rounds)
    counts = {side: sides.column(result, "parameters") for side, result in results.items()}
    sides.show(f"largest GPT-2 of transformers in {options.limit_gib:g} GiB, against PyTorch eager",
               {"parameters": sides.ratios(counts["colossal"], counts["eager"]), **results},
               **sides.versions("torch", "transformers"))


if __name__ == "__main__":
    main()
