"""What the benchmarks of the Python package share: processes of both sides in turns, and what names the measurement.

`colossal` is what the Python that runs the benchmark imports: an installed package, or that of a build with
COLOSSAL_PYTHON=ON, in build/release/python. PYTHONPATH may name another.
"""

import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILT = ROOT / "build/release/python"
STEP = ROOT / "benchmarks/transformers_training_step.py"


def environment(**more):
    """The environment of a side's process."""
    path = os.environ.get("PYTHONPATH") or (str(BUILT) if BUILT.exists() else "")
    return {**os.environ, **({"PYTHONPATH": path} if path else {}), **more}


def output_of(command, **options):
    """Runs a command and returns what it prints. Ends this process with the command's output if it fails."""
    options.setdefault("env", environment())
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def figures_of(output):
    """Returns the JSON lines that the ranks of a side print."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def in_turns(sides, rounds):
    """Calls each side once in every round. `sides`: functions by name. Returns the results of each side.

    The side that begins changes from round to round, because a machine warms up.
    """
    results = {name: [] for name in sides}
    for turn in range(rounds):
        for name in list(sides) if turn % 2 == 0 else reversed(sides):
            results[name].append(sides[name]())
            print(f"round {turn + 1} of {rounds}, {name}: {results[name][-1]}", file=sys.stderr, flush=True)
    return results


def ratios(over, under):
    """Returns the median of the rounds' ratios, and the ratio of each round."""
    every = [round(a / b, 4) for a, b in zip(over, under)]
    return {"ratio": round(statistics.median(every), 4), "rounds": every}


def column(results, name):
    """Returns one figure of each round of a side."""
    return [result[name] for result in results]


def step_command(side, flags, ranks=1, python=sys.executable):
    """The command of a side of transformers_training_step.py. Two ranks or more are started by torchrun, on one thread
    each."""
    threads = 1 if ranks > 1 else os.cpu_count()
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    return [python, *launcher, STEP, side, f"--threads={threads}", *flags]


def slowest(ranks):
    """Joins the figures of all ranks of a step: the longest time and the largest memory."""
    return {name: max(rank[name] for rank in ranks) for name in ("ms", "peak_mb", "beyond_mb")}


def versions(*packages, python=sys.executable):
    """Returns the version of each package in an environment."""
    if python != sys.executable:
        script = "import importlib.metadata as m, sys; [print(m.version(name)) for name in sys.argv[1:]]"
        return dict(zip(packages, output_of([python, "-c", script, *packages], env=dict(os.environ)).split()))
    return {name: importlib.metadata.version(name) for name in packages}


def machine():
    """Names the processor of this machine."""
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} threads"


def program():
    """Returns the path of the compiled program of the package."""
    return output_of([sys.executable, "-c", "from colossal import program; print(program.path())"]).strip()


def colossal_version():
    """Returns the package's version and the commit that it was built from."""
    script = "from colossal import build_info; build = build_info(); print(build['version'], build['revision'])"
    return output_of([sys.executable, "-c", script]).strip()


def show(what, figures, **packages):
    """Prints the JSON object of a measurement, one member on a line."""
    named = {"python": platform.python_version(), "colossal": colossal_version(), **packages}
    members = {"what": what, **figures, "machine": machine(), "versions": named}
    print("{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in members.items()) + "\n}")
