"""Training step of a Mixtral of 161 M parameters, fp32: our program against transformers, alternating in one run.

    .venv/bin/python benchmarks/mixture_training.py [--batch 4] [--length 256] [--steps 6] [--rounds 3] [--threads 2]
        [--only WORD ...] [--before PROGRAM]

The model is benchmarks/mixtral_161m.toml: 8 layers of 512, 2 of 8 experts of 1408 features. A step is forward, backward
and AdamW, of --batch rows of --length random tokens; 4 x 256 are those of training_step.py. Sides:
- ours:       one rank of --threads threads;
- ours, expert 2: the same batch on two ranks that divide the experts, each of --threads / 2 threads;
- eager, grouped_mm, batched_mm: transformers' MixtralForCausalLM with this `experts_implementation` and torch's fused
  AdamW. batched_mm gathers the matrices of three projections for every assignment and keeps them for backward: 142 GB
  for 4 x 256 tokens. If they do not fit, it gets one row of 32 tokens, and its row of the table says so.
--only takes the sides whose names contain one of the words, and ours. --before adds our program of another commit.

A round measures each side once; the figure of a round is the median of its steps, without the first two. The table has
medians of rounds with their range, and ratios of speed within each round: our tokens a second over those of the row.
Needs ./colossal.sh build, and torch and transformers 5 of .venv.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from training_step import PROGRAM, ROOT, write_tokens

MODEL = ROOT / "benchmarks/mixtral_161m.toml"
PARAMETERS = 161_128_960
PEERS = ["eager", "grouped_mm", "batched_mm"]  # transformers' names
LAYERS, HIDDEN, FFN, USED = 8, 512, 1408, 2
FEW = (1, 32)  # rows and tokens of batched_mm if the batch does not fit
WARM_UP = 2
WANTED = {"transformers": 2.3, "ours, expert 2": 0.9}


def run(command, threads):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout + done.stderr


def ours(options, folder, ranks, program=PROGRAM):
    said = run([program, "train", MODEL, "--overwrite", f"--run.folder={folder}/run",
                f"--data.path={folder}/tokens.bin", f"--data.sequence={options.length}",
                f"--training.batch_size={options.batch}", f"--training.steps={options.steps + WARM_UP}",
                f"--parallel.expert={ranks}"], options.threads // ranks)
    if f"of {PARAMETERS} parameters" not in said:
        sys.exit(f"our model must have {PARAMETERS} parameters: got\n{said}")
    with open(f"{folder}/run/metrics.jsonl") as lines:
        measured = [json.loads(line) for line in lines][WARM_UP:]
    return {"ms": statistics.median(line["seconds"] for line in measured) * 1e3,
            "mb": measured[-1]["peak_bytes"] / 2**20, "tokens": options.batch * options.length}


def peer_here(implementation, options):
    """Measures one round of transformers in this process and prints a JSON object."""
    import torch
    import transformers
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=32000, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS, num_attention_heads=8,
        num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=USED, max_position_embeddings=4096,
        tie_word_embeddings=True, use_cache=False, experts_implementation=implementation)
    model = transformers.MixtralForCausalLM(config).train()
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS
    assert model.get_experts_implementation()[""] == implementation
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-7, weight_decay=0.1, fused=True)
    seconds = []
    for _ in range(options.steps + WARM_UP):
        ids = torch.randint(0, 256, (options.batch, options.length))
        start = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"ms": statistics.median(seconds[WARM_UP:]) * 1e3, "tokens": options.batch * options.length,
                      "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def fits(batch, length):
    """Whether the expert matrices that batched_mm gathers, in all layers, fit into three quarters of free memory."""
    gathered = batch * length * USED * 3 * HIDDEN * FFN * 4 * LAYERS
    with open("/proc/meminfo") as lines:
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return gathered + 16 * PARAMETERS < free * 3 / 4


def peer(options, implementation):
    batch, length, steps = options.batch, options.length, options.steps
    if implementation == "batched_mm" and not fits(batch, length):
        (batch, length), steps = FEW, min(steps, 2)
    said = run([sys.executable, __file__, "--peer", implementation, "--batch", batch, "--length", length, "--steps",
                steps, "--threads", options.threads], options.threads)
    return json.loads([line for line in said.splitlines() if line.startswith("{")][-1])


def speed(result):
    return result["tokens"] / result["ms"] * 1e3


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def print_tables(rounds):
    print("| | ms a step | range | tokens/s | peak MB of a rank | ours over it, by round |\n|---|---|---|---|---|---|")
    for side in rounds[0]:
        times = [sides[side]["ms"] for sides in rounds]
        tokens = rounds[0][side]["tokens"]
        name = side if tokens == rounds[0]["ours"]["tokens"] else f"{side}, {tokens} tokens"
        ratio = "" if side == "ours" else spread([speed(sides["ours"]) / speed(sides[side]) for sides in rounds])
        print(f"| {name} | {statistics.median(times):.0f} | {min(times):.0f} to {max(times):.0f} | "
              f"{statistics.median(speed(sides[side]) for sides in rounds):.1f} | "
              f"{max(sides[side]['mb'] for sides in rounds):.0f} | {ratio} |")
    print("\n| what | ratio | wanted |\n|---|---|---|")
    peers = [side for side in PEERS if side in rounds[0]]
    if peers:
        best = max(peers, key=lambda side: statistics.median(speed(sides[side]) for sides in rounds))
        ratios = [speed(sides["ours"]) / speed(sides[best]) for sides in rounds]
        print(f"| ours over transformers, {best} | {spread(ratios)} | {WANTED['transformers']} |")
    if "ours, expert 2" in rounds[0]:
        ratios = [speed(sides["ours, expert 2"]) / speed(sides["ours"]) for sides in rounds]
        print(f"| two ranks that divide the experts over one rank | {spread(ratios)} | {WANTED['ours, expert 2']} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6, help=f"measured, after {WARM_UP} that are not")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of each side, all ranks together; even")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    parser.add_argument("--before", metavar="PROGRAM", type=pathlib.Path)
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        peer_here(options.peer, options)
        return
    if options.threads % 2 or options.batch % 2:
        parser.error(f"--threads and --batch must be even, for two ranks: got {options.threads} and {options.batch}")
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(pathlib.Path(folder), (options.steps + 4) * options.batch * options.length + 1)
        sides = {"ours": lambda: ours(options, folder, 1), "ours, expert 2": lambda: ours(options, folder, 2)}
        if options.before:
            sides["ours, before"] = lambda: ours(options, folder, 1, options.before)
        sides.update({name: lambda name=name: peer(options, name) for name in PEERS})
        names = [name for name in sides if name == "ours" or any(word in name for word in options.only)]
        rounds = []
        for i in range(options.rounds):  # every other round is in the opposite order, because a machine warms up
            measured = {name: sides[name]() for name in (names if i % 2 == 0 else names[::-1])}
            rounds.append({name: measured[name] for name in names})
            said = ", ".join(f"{name} {result['ms']:.0f} ms" for name, result in rounds[-1].items())
            print(f"round {i + 1}: {said}", file=sys.stderr, flush=True)
    with open("/proc/cpuinfo") as lines:
        cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    print(f"Mixtral of {PARAMETERS:,} parameters, fp32, {options.batch} x {options.length} tokens, {options.threads} "
          f"threads, {options.rounds} rounds of {options.steps} steps, {cpu}, {os.cpu_count()} cores\n")
    print_tables(rounds)


if __name__ == "__main__":
    main()
