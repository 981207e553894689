"""What long sequences cost: packed documents, the longest context in a given memory, and one step of a very long one,
under parallel.sequence.

    .venv/bin/python benchmarks/sequence_length.py [--only packed|longest|once] [--ranks 1,2,4] [--memory-gib 4]
        [--mode ring] [--length 32768] [--long 131072]

packed: one row of --length tokens as one document and as short ones, on two ranks. What attention takes of a step is
its time less that of a step with documents so short that attention is nothing; it is to go with the sum of the squares
of the documents' lengths.
longest: the longest row that trains within --memory-gib a rank (peak of resident memory as the program reports it, from
its start on), for each number of ranks. Memory grows by a token as it does by the one before, so two short runs tell
where to look, and the length is taken from runs that kept to the limit. The model is narrow and very deep: much to keep
of a token, little to compute.
once: one step of a LLaMA of 15M parameters with one row of --long tokens on two ranks: seconds and memory. 10 minutes
or more. Needs ./colossal.sh build.
"""

import argparse
import json
import os
import pathlib
import statistics
import tempfile

import training_step
from zero_training_step import MODEL, run

GIB = 2**30
END = 256  # of the tokens of bytes
SMALL = {"hidden": 256, "layers": 2, "heads": 4, "vocabulary": 257}
DEEP = {"hidden": 128, "layers": 256, "heads": 2, "vocabulary": 257}


def flags_of(sizes):
    return [f"--model.{name}={value}" for name, value in sizes.items()]


def split(options, ranks):
    return [f"--parallel.sequence.size={ranks}", f"--parallel.sequence.mode={options.mode}"] if ranks > 1 else []


def write_documents(folder, tokens, length):
    """Documents of `length` tokens, the last one of each its end."""
    document = (b"\x07\x00" * (length - 1)) + END.to_bytes(2, "little")
    (folder / "tokens.bin").write_bytes(document * (tokens // length + 1))
    (folder / "tokens.bin.json").write_text(json.dumps({"dtype": "uint16", "end_id": END}))


def train(folder, length, steps, flags):
    """The steps of a run of one row a step."""
    run([training_step.PROGRAM, "train", MODEL, "--overwrite", f"--run.folder={folder}/run", "--run.timeout=7200",
         f"--data.path={folder}/tokens.bin", f"--data.sequence={length}", f"--model.positions={length}",
         "--training.batch_size=1", f"--training.steps={steps}", *flags])
    with open(f"{folder}/run/metrics.jsonl") as lines:
        return [json.loads(line) for line in lines]


def packed(options, folder):
    print(f"packed: GPT-2 of {SMALL}, one row of {options.length} tokens, 2 ranks, {options.mode}")
    lengths = [options.length, options.length // 8, options.length // 32]
    rest = 32
    seconds = {}
    for _ in range(options.rounds):
        for length in [*lengths, rest]:
            write_documents(folder, (options.steps + 2) * options.length, length)
            steps = train(folder, options.length, options.steps + 1, [*flags_of(SMALL), *split(options, 2)])[1:]
            seconds.setdefault(length, []).append(statistics.median(step["seconds"] for step in steps))
    best = {length: min(rounds) for length, rounds in seconds.items()}
    whole = best[options.length] - best[rest]
    print(f"{'documents of':>14}{'s/step':>10}{'attention, s':>14}{'of one document':>17}{'squares':>10}{'ratio':>8}")
    for length in lengths:
        attention, squares = best[length] - best[rest], length / options.length
        print(f"{length:14}{best[length]:10.2f}{attention:14.2f}{attention / whole:17.4f}{squares:10.4f}"
              f"{attention / whole / squares:8.2f}")
    print(f"{rest:14}{best[rest]:10.2f}", flush=True)


def longest(options, folder):
    limit = options.memory_gib * GIB
    print(f"\nlongest: GPT-2 of {DEEP}, {options.mode}, {options.memory_gib:g} GiB a rank")
    print(f"{'ranks':>6}{'tokens':>10}{'peak GiB':>10}{'s/step':>8}{'of N times one rank':>21}")
    first = None
    for ranks in options.ranks:
        step_of = 16 * ranks  # lengths are multiples of it

        def peak(length):
            write_documents(folder, 3 * length, length)
            steps = train(folder, length, 2,
                          ["--data.documents=joined", "--optimizer.name=sgd", *flags_of(DEEP), *split(options, ranks)])
            runs.append((length, steps[-1]["peak_bytes"], steps[-1]["seconds"]))
            return steps[-1]["peak_bytes"]

        runs = []
        low, high = 256 * ranks, 512 * ranks
        low_peak, high_peak = peak(low), peak(high)
        for _ in range(4):
            slope = (high_peak - low_peak) / (high - low)
            target = int((limit * 0.995 - high_peak) / slope + high) // step_of * step_of
            low, low_peak = high, high_peak
            high, high_peak = target, peak(target)
            if 0.985 * limit <= high_peak <= limit or high == low:
                break
        length, most, seconds = max(one for one in runs if one[1] <= limit)
        first = first or length / ranks
        print(f"{ranks:6}{length:10}{most / GIB:10.2f}{seconds:8.1f}{length / ranks / first:21.3f}", flush=True)


def once(options, folder):
    write_documents(folder, 2 * options.long, options.long)
    sizes = ["--model.name=llama-15m", "--model.vocabulary=32000", "--data.documents=joined"]
    step = train(folder, options.long, 1, [*sizes, *split(options, 2)])[0]
    print(f"\nonce: llama-15m, one row of {options.long} tokens, 2 ranks, {options.mode}: {step['seconds']:.1f} s, "
          f"{step['tokens_per_second']:.1f} tokens/s, "
          f"2 x {step['peak_bytes'] / GIB:.2f} GiB, loss {step['loss']:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {"packed": packed, "longest": longest, "once": once}
    parser.add_argument("--only", choices=list(tables))
    parser.add_argument("--mode", default="ring", help="parallel.sequence.mode")
    parser.add_argument("--ranks", type=lambda text: [int(count) for count in text.split(",")], default=[1, 2, 4],
                        help="of longest; the first is compared with")
    parser.add_argument("--memory-gib", type=float, default=4, help="of longest: a rank")
    parser.add_argument("--length", type=int, default=32768, help="of packed: tokens; a multiple of 1024")
    parser.add_argument("--long", type=int, default=131072, help="of once: tokens")
    parser.add_argument("--steps", type=int, default=2, help="of packed: measured, behind one that is not")
    parser.add_argument("--rounds", type=int, default=1, help="of packed")
    options = parser.parse_args()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
               "unknown")
    print(f"{cpu}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        for name, table in tables.items():
            if options.only in (None, name):
                table(options, pathlib.Path(folder))


if __name__ == "__main__":
    main()
