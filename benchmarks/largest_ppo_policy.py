"""How large a policy PPO trains in fp32 under a limit of memory, with reference, value and reward model of its size:
the program of this project, with tiers, against PyTorch and transformers.

    .venv/bin/python benchmarks/largest_ppo_policy.py FOLDER [--limit-gib 1] [--host 256MiB] [--prompt 48] [--tokens 16]
        [--rows 1] [--first PARAMETERS] [--most PARAMETERS] [--only colossal|pytorch] [--flag=--KEY=VALUE ...]

FOLDER: on the disk of our scratch file and of the models that our side reads. The limit is RLIMIT_DATA of each process,
as in largest_model.py. Both sides run one rank and draw --rows answers of --tokens tokens a step; the peer is
benchmarks/ddp_ppo_step.py, which moves nothing to the disk. GPT-2 shapes form a series in which each has at least a
tenth more parameters. The search tries every eighth from --first on, then takes halves; each try makes two steps. Needs
./colossal.sh build, torch and transformers.

Prints a JSON object: the largest shape of each side with its parameters, the seconds of its second step and the peak of
resident memory in MiB. `parameters` is our number of parameters over the peer's. Progress goes to standard error.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import largest_model as limits
import ppo_beside_ddp as ppo
import python_sides as sides
from large_model import train

Shape = dict[str, int]
Try = Callable[[Shape], tuple[dict[str, float] | None, str]]
STRIDE = 8


def parameters_of(hidden: int, layers: int, vocabulary: int) -> int:
    return layers * (12 * hidden + 13) * hidden + (vocabulary + ppo.POSITIONS + 2) * hidden


def shapes_of(vocabulary: int, most: int) -> list[Shape]:
    """Returns shapes of at most `most` parameters with one layer for 48 to 96 features, from small to large."""
    found = sorted((parameters_of(hidden, layers, vocabulary), hidden, layers) for hidden in range(128, 8192, 64)
                   for layers in range(hidden // 96, hidden // 48 + 1))
    series: list[Shape] = []
    for parameters, hidden, layers in found:
        if parameters <= most and (not series or parameters >= 1.1 * series[-1]["parameters"]):
            series.append({"parameters": parameters, "hidden": hidden, "layers": layers, "heads": hidden // 64,
                           "vocabulary": vocabulary})
    return series


def sizes_of(shape: Shape) -> Shape:
    return {key: size for key, size in shape.items() if key != "parameters"}


def peer(options: argparse.Namespace, shape: Shape) -> tuple[dict[str, float] | None, str]:
    command = [sys.executable, str(ppo.PEER), f"--threads={os.cpu_count()}", f"--rows={options.rows}",
               f"--prompt={options.prompt}", f"--tokens={options.tokens}", "--steps=1", "--warm-up=1",
               *(f"--{name}={size}" for name, size in sizes_of(shape).items())]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limits.limit_of(options))
    if done.returncode:
        return None, done.stderr or f"status {done.returncode}"
    figures = sides.figures_of(done.stdout)[-1]
    return {"seconds": figures["seconds"], "peak_mib": figures["peak_mib"]}, ""


def ours(options: argparse.Namespace, shape: Shape) -> tuple[dict[str, float] | None, str]:
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = pathlib.Path(name)
        ppo.write_run(folder, sizes_of(shape), 4 * options.rows, options.prompt)
        flags = [*ppo.flags_of(folder, options.rows, options.tokens), "--memory.recompute=block",
                 f"--memory.host={options.host}", f"--memory.disk={folder}/scratch", "--rollout.cache=16MiB",
                 *options.flag]
        try:
            steps = list(train(folder / "config.toml", folder / "run", 2, flags, preexec_fn=limits.limit_of(options)))
        except RuntimeError as error:
            return None, str(error)
    return {"seconds": steps[-1]["seconds"], "peak_mib": max(step["peak_bytes"] for step in steps) / 2**20}, ""


def largest(trains: Try, shapes: list[Shape], first: int) -> dict[str, float] | None:
    """Returns the largest shape that trains, with its figures. `first`: the parameters of the first try."""
    found, low, high = None, -1, len(shapes)
    at = max((place for place, shape in enumerate(shapes) if shape["parameters"] <= first), default=0)
    while high - low > 1:
        result, said = trains(shapes[at])
        end = "trains" if result else "fails: " + (said.strip().splitlines() or ["?"])[-1][:150]
        print(f"  {shapes[at]}: {end}", file=sys.stderr, flush=True)
        if result:
            found, low = {**shapes[at], **result}, at
        else:
            high = at
        if low < 0:
            at = max(high - STRIDE, 0)
        elif high == len(shapes):
            at = min(low + STRIDE, len(shapes) - 1)
        else:
            at = (low + high) // 2
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--limit-gib", type=float, default=1)
    parser.add_argument("--host", default="256MiB", help="our budget for parameters, gradients and states")
    parser.add_argument("--prompt", type=int, default=48, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--rows", type=int, default=1, help="answers of a step")
    parser.add_argument("--vocabulary", type=int, default=512, help="256 or more")
    parser.add_argument("--first", type=int, default=10**8, help="parameters at which our search begins")
    parser.add_argument("--most", type=int, default=10**9, help="parameters at which searches end")
    parser.add_argument("--flag", action="append", default=[], metavar="--KEY=VALUE", help="another key of ours")
    parser.add_argument("--only", choices=["colossal", "pytorch"], help="one side")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    shapes = shapes_of(options.vocabulary, options.most)
    measures: dict[str, tuple[Try, int]] = {"pytorch": (lambda shape: peer(options, shape), 5 * 10**6),
                                            "colossal": (lambda shape: ours(options, shape), options.first)}
    found: dict[str, Any] = {}
    for side, (trains, first) in measures.items():
        if options.only in (None, side):
            print(side, file=sys.stderr, flush=True)
            found[side] = largest(trains, shapes, first)
    with contextlib.suppress(KeyError, TypeError):  # one side alone, or one that trains no shape
        found["parameters"] = round(found["colossal"]["parameters"] / found["pytorch"]["parameters"], 2)
    free = shutil.disk_usage(options.folder).free / 2**30
    print(json.dumps({"limit_gib": options.limit_gib, "host": options.host, **found, "free_disk_gib": round(free),
                      "machine": sides.machine(), "versions": sides.versions("torch", "transformers")}, indent=1))


if __name__ == "__main__":
    main()
