"""Training step of a GPT-2 124M of `transformers`, fp32: colossal.initialize() against FSDP2 or DeepSpeed, in turns.

    python benchmarks/python_training_step.py sharded [--rounds 3] [--rows 4] [--length 256] [--steps 6]
    python benchmarks/python_training_step.py disk --folder FOLDER --peer-python VENV/bin/python [--host 256MiB] ...

sharded: two ranks of one thread each under ZeRO 3, against FSDP2 on Gloo; torchrun starts both.
disk: one rank on all cores, parameters and states in FOLDER, against DeepSpeed's ZeRO 3 with NVMe. VENV has torch,
transformers and deepspeed, which compiles its reader of disks with libaio-dev at the first start.

Prints a JSON object. "speed" is the peer's step time over ours. "memory" is our peak of resident memory over the
peer's, of the rank that uses most, and "memory_beyond_imports" the same for the part beyond the size after imports.
Each ratio is the median of the rounds. transformers_training_step.py says what a step is.
"""

import argparse
import os
import pathlib
import shutil
import sys
import tempfile

import python_sides as sides

SHARDED = {"rows": 4, "length": 256}
DISK = {"rows": 1, "length": 64}  # so that the disk decides, as in disk_training_step.py


def measure(side, flags, ranks=1, python=sys.executable, folder=None):
    """Runs a side. Its scratch files are below `folder` and are removed."""
    if folder is None:
        return sides.slowest(sides.figures_of(sides.output_of(sides.step_command(side, flags, ranks, python))))
    folder.mkdir(parents=True, exist_ok=True)
    scratch = pathlib.Path(tempfile.mkdtemp(dir=folder))
    path = f"{pathlib.Path(python).parent}:{os.environ['PATH']}"  # of ninja, which deepspeed compiles with
    try:
        command = sides.step_command(side, [*flags, f"--folder={scratch}"], ranks, python)
        return sides.slowest(sides.figures_of(sides.output_of(command, env=sides.environment(PATH=path))))
    finally:
        shutil.rmtree(scratch)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sharded", "disk"])
    parser.add_argument("--folder", type=pathlib.Path, help="of disk")
    parser.add_argument("--peer-python", help="of disk")
    parser.add_argument("--host", default="256MiB", help="of disk: our budget of host memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, help=f"{SHARDED['rows']}, or {DISK['rows']} from a disk")
    parser.add_argument("--length", type=int, help=f"{SHARDED['length']}, or {DISK['length']} from a disk")
    for name, default in (("layers", 12), ("hidden", 768), ("heads", 12), ("vocabulary", 50257)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.what == "disk" and not (options.folder and options.peer_python):
        parser.error("disk needs --folder and --peer-python")
    sizes = SHARDED if options.what == "sharded" else DISK
    sizes = {name: getattr(options, name) or value for name, value in sizes.items()}
    flags = [f"--{name}={value}" for name, value in sizes.items()]
    flags += [f"--{name}={getattr(options, name)}" for name in ("steps", "layers", "hidden", "heads", "vocabulary")]
    if options.what == "sharded":
        peer, versions = "fsdp", sides.versions("torch", "transformers")
        runs = {"colossal": lambda: measure("colossal", [*flags, "--zero=3"], 2),
                "fsdp": lambda: measure("fsdp", flags, 2)}
    else:
        peer = "deepspeed"
        versions = sides.versions("torch", "transformers", "deepspeed", python=options.peer_python)
        versions |= {f"our {name}": version for name, version in sides.versions("torch", "transformers").items()}
        runs = {"colossal": lambda: measure("colossal", [*flags, f"--host={options.host}"], folder=options.folder),
                "deepspeed": lambda: measure("deepspeed", flags, 1, options.peer_python, options.folder)}
    results = sides.in_turns(runs, options.rounds)
    ours, theirs = results["colossal"], results[peer]
    over = lambda name: sides.ratios(sides.column(ours, name), sides.column(theirs, name))  # noqa: E731
    sides.show(f"training step of a GPT-2 of transformers, {options.what}, against {peer}", {
        "layers": options.layers, "hidden": options.hidden, **sizes,
        "speed": sides.ratios(sides.column(theirs, "ms"), sides.column(ours, "ms")),
        "memory": over("peak_mb"), "memory_beyond_imports": over("beyond_mb"), "colossal": ours, peer: theirs},
        **versions)


if __name__ == "__main__":
    main()
