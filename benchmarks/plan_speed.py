"""Seconds and memory of `colossal plan` on one core.

    .venv/bin/python benchmarks/plan_speed.py [--program build/release/colossal] [--limit 600]

Runs predictions and searches with OMP_NUM_THREADS=1, one after another, and prints a markdown table: seconds of the
clock, seconds of the core, and peak resident memory. The last row traces LLaMA-3 8B as a plain module and solves for
its plan. On an idle machine both times are the same; a search that the clock ends finds less on a busy one. Needs
./colossal.sh build.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMANDS = [
    ["gpt2_124m.toml", "--ranks", "2"],
    ["llama_405b.toml"],
    ["gpt2_124m.toml", "--search", "--ranks", "8"],
    ["gpt2_124m.toml", "--search", "--ranks", "64"],
    ["llama_405b.toml", "--search", "--ranks", "1024"],
]


def plan_command(program, words):
    return [str(program), "plan", str(ROOT / "benchmarks" / words[0]), *words[1:], "--cluster", "h100-8x"]


def measure(words, limit):
    """Runs the command; returns its status, seconds of the clock and of the core, MiB, and its output."""
    command = ["timeout", str(limit), *words]
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)  # `timeout` waits for its command, so this counts both
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/colossal")
    parser.add_argument("--limit", type=int, default=600, help="seconds after which a command is stopped")
    options = parser.parse_args()
    print("| `colossal plan` | seconds | seconds of the core | peak MiB | result |")
    print("|---|---|---|---|---|")
    failed = False
    for words in COMMANDS:
        status, seconds, core, memory, output = measure(plan_command(options.program, words), options.limit)
        failed = failed or status != 0
        lines = output.splitlines()
        result = f"status {status}" if status else lines[0] if lines else ""
        print(f"| `{' '.join(words)}` | {seconds:.1f} | {core:.1f} | {memory:.0f} | {result} |", flush=True)
    trace = options.program.parent / "benchmarks/colossal_trace_bench"
    status, seconds, core, memory, output = measure([str(trace)], options.limit)
    failed = failed or status != 0
    print(f"| LLaMA-3 8B as a plain module, 64 ranks | {seconds:.1f} | {core:.1f} | {memory:.0f} | "
          f"{'; '.join(output.splitlines())} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
