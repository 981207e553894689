"""AdamW on the parameters of GPT-2 124M, fp32: our fused step against torch's and against the memory bandwidth of this
machine, in turns, in one run.

    .venv/bin/python benchmarks/optimizer_step.py [--threads 2] [--rounds 3]

The peer is torch.optim.AdamW(fused=True) on the model's parameters. The bandwidth is that of the fastest of three loops
over as many elements: a = b + s c, a += s b, a *= s; what a processor reads before it writes a whole line is counted.
Best times of all rounds. Below, a step of every other rule. Needs ./colossal.sh build (or
COLOSSAL_OPTIMIZER_BENCH=path), and the torch of .venv.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("COLOSSAL_OPTIMIZER_BENCH", str(ROOT / "build/release/benchmarks/colossal_optimizer_bench"))
STEPS = 5


def peer(threads):
    """Seconds of the best of STEPS steps behind the first; run in a process of its own."""
    import torch

    import gpt2_training_step

    torch.set_num_threads(threads)
    parameters = list(gpt2_training_step.Gpt2().parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.999), weight_decay=0.01, fused=True)
    times = []
    for _ in range(STEPS + 1):
        start = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - start)
    print(json.dumps({"what": "AdamW", "kind": "peer", "bytes": 28, "elements": sum(p.numel() for p in parameters),
                      "seconds": min(times[1:])}))


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return peer(options.threads)
    best = {}
    for _ in range(options.rounds):
        rows = run([PROGRAM, str(options.threads), str(STEPS)])
        rows += run([sys.executable, __file__, "--peer", "--threads", str(options.threads)])
        for row in rows:
            key = row["kind"], row["what"]
            if key not in best or row["seconds"] < best[key]["seconds"]:
                best[key] = row
    speed = {key: row["bytes"] * row["elements"] / row["seconds"] for key, row in best.items()}
    stream = max(value for (kind, _), value in speed.items() if kind == "stream")
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
               "unknown")
    print(f"{best['ours', 'AdamW']['elements'] / 1e6:.1f} M fp32 parameters, {options.threads} thread(s), {cpu}, "
          f"{os.cpu_count()} cores")
    print(f"{'':8}{'':32}{'ms':>9}{'GB/s':>8}{'of stream':>11}")
    for (kind, what), row in best.items():
        bandwidth = f"{speed[kind, what] * 1e-9:8.1f}{100 * speed[kind, what] / stream:10.0f}%" if row["bytes"] else ""
        print(f"{kind:8}{what:32}{row['seconds'] * 1e3:9.1f}{bandwidth}")
    ratio = best["peer", "AdamW"]["seconds"] / best["ours", "AdamW"]["seconds"]
    print(f"AdamW: ours over peer {ratio:.2f}, {100 * speed['ours', 'AdamW'] / stream:.0f} % of the stream bandwidth")


if __name__ == "__main__":
    main()
