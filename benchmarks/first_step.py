"""From nothing to the first training step of a tiny GPT (4 layers of 128, batch 4 x 64): whole processes, in turns.

    .venv/bin/python benchmarks/first_step.py [--rounds 5] [--before PROGRAM]

Ours is `colossal train` with one step, its checkpoint and report included. The peer is a Python script that imports
torch, builds the same model and makes the same step, and writes nothing. --before names this program as another commit
builds it. Prints the medians and their ratio. Needs ./colossal.sh build.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("COLOSSAL_BINARY", str(ROOT / "build/release/colossal"))

CONFIG = """
[model]
name = "gpt2-tiny"
[data]
sequence = 64
[optimizer]
warmup_steps = 0
[training]
steps = 1
batch_size = 4
evaluate_batches = 0
sample_tokens = 0
"""

PEER = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import gpt2_training_step as peer
peer.VOCABULARY, peer.HIDDEN, peer.LAYERS, peer.HEADS, peer.POSITIONS = 257, 128, 4, 4, 256
model = peer.Gpt2()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
tokens = torch.randint(257, (4, 64))
model(tokens, tokens).backward()
optimizer.step()
"""


def seconds(command):
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    elapsed = time.perf_counter() - start
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return elapsed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", metavar="PROGRAM", help="ours of another commit, a side of its own")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "text.txt").write_text("a text of some length, over and over\n" * 200)
        (pathlib.Path(folder) / "config.toml").write_text(CONFIG)
        ours = ["train", f"{folder}/config.toml", "--overwrite", f"--run.folder={folder}/run",
                f"--data.path={folder}/text.txt"]
        commands = {"colossal": [PROGRAM, *ours], "torch": [sys.executable, "-c", PEER, str(ROOT / "benchmarks")]}
        if options.before:
            commands["before"] = [options.before, *ours]
        times = {side: [] for side in commands}
        for _ in range(options.rounds + 1):  # the first round fills the page cache and does not count
            for side, command in commands.items():
                times[side].append(seconds(command))
    medians = {side: statistics.median(values[1:]) for side, values in times.items()}
    for side, value in medians.items():
        print(f"{side:10}{value:8.2f} s")
    print(f"ours / peer {medians['colossal'] / medians['torch']:.2f}")


if __name__ == "__main__":
    main()
