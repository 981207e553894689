"""What number formats and optimizers cost in quality: a tiny GPT trained on text in each of them, and the loss on text
that was held out.

    .venv/bin/python benchmarks/precision_quality.py [--data FILE] [--only precision|batch|rule] [--tokens N]
        [--batch-tokens N] [--jobs 2]

precision: the same run in fp32, bf16, fp16, fp8 (scales of the current step and delayed ones), and in fp32 with the
moments of 8 bits of adam8bit.
batch:     AdamW with batches of 2 samples at several rates, LAMB with 16 times as many, the same number of tokens in
           all; two layers of 64.
rule:      AdamW and Muon at the same rates, the same steps.
Each run has one thread; --jobs run at a time. Losses are no times: they do not depend on what else the machine does.
Prints each loss and its ratio to that of the best row of its table that has no bound; exits with status 1 where a ratio
is beyond its bound: from both sides for the precisions, from above for LAMB and Muon. Needs ./colossal.sh build;
without --data the text is the project's own.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("COLOSSAL_BINARY", str(ROOT / "build/release/colossal"))
SEQUENCE = 64
EVALUATED = 256  # samples of held-out text, the same ones whatever the batch

SMALLER = ["--model.hidden=64", "--model.layers=2"]  # cheap enough for as many tokens as large batches need

# The table, what is run, the samples in a batch, the flags, the bound of the ratio.
RUNS = [
    ("precision", "fp32", 8, [], None),
    ("precision", "bf16", 8, ["--precision.mode=bf16"], 0.01),
    ("precision", "fp16", 8, ["--precision.mode=fp16"], 0.01),
    ("precision", "fp8, current", 8, ["--precision.mode=fp8", "--precision.fp8_scaling=current"], 0.02),
    ("precision", "fp8, delayed", 8, ["--precision.mode=fp8", "--precision.fp8_scaling=delayed"], 0.02),
    ("precision", "adam8bit", 8, ["--optimizer.name=adam8bit"], 0.01),
    *(("batch", f"AdamW, 2, {rate}", 2, [*SMALLER, f"--optimizer.learning_rate={rate}"], None)
      for rate in ("1e-3", "2e-3", "4e-3", "8e-3")),
    *(("rule", f"AdamW, {rate}", 8, [f"--optimizer.learning_rate={rate}"], None)
      for rate in ("1e-3", "2e-3", "4e-3", "8e-3")),
    *(("rule", f"Muon, {rate}", 8, ["--optimizer.name=muon", f"--optimizer.learning_rate={rate}"], 0)
      for rate in ("4e-3", "8e-3")),
    ("batch", "LAMB, 32, 2e-2", 32,
     [*SMALLER, "--optimizer.name=lamb", "--optimizer.learning_rate=2e-2", "--optimizer.epsilon=1e-6"], 0.03),
]


def held_out_loss(options, batch, tokens, flags):
    steps = max(1, tokens // (batch * SEQUENCE))
    with tempfile.TemporaryDirectory() as folder:
        command = [PROGRAM, "train", str(ROOT / "benchmarks/precision_quality.toml"), f"--run.folder={folder}/run",
                   "--run.bind_cores=false", f"--data.path={options.data}", f"--data.sequence={SEQUENCE}",
                   f"--training.batch_size={batch}", f"--training.steps={steps}",
                   f"--training.evaluate_batches={EVALUATED // batch}", f"--optimizer.warmup_steps={steps // 20}",
                   *flags]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        with open(f"{folder}/run/metrics.jsonl") as lines:
            *_, last = lines
    return json.loads(last)["eval_loss"]


def print_table(table, losses):
    """Returns whether all ratios are within their bounds."""
    rows = [(what, bound, losses[what]) for kind, what, _, _, bound in RUNS if kind == table]
    base = min(loss for _, bound, loss in rows if bound is None)
    passed = True
    print(f"\n{table:20}{'loss':>9}{'ratio':>9}{'bound':>9}")
    for what, bound, loss in rows:
        if bound is None:
            print(f"{what:20}{loss:9.4f}")
            continue
        excess = loss / base - 1
        within = (abs(excess) if table == "precision" else excess) <= bound  # False for a NaN
        passed = passed and within
        print(f"{what:20}{loss:9.4f}{loss / base:9.4f}{1 + bound:9.2f}{'' if within else '   beyond its bound'}")
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="builtin", help="text file or folder; builtin: the text of this project")
    parser.add_argument("--only", choices=["precision", "batch", "rule"], help="one table")
    parser.add_argument("--tokens", type=int, default=200_000, help="that each run of tables precision and rule reads")
    parser.add_argument("--batch-tokens", type=int, default=4_000_000, help="that each run of table batch reads")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    options = parser.parse_args()
    wanted = [row for row in RUNS if options.only in (None, row[0])]
    tokens = {"precision": options.tokens, "rule": options.tokens, "batch": options.batch_tokens}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        started = {what: pool.submit(held_out_loss, options, batch, tokens[table], flags)
                   for table, what, batch, flags, _ in wanted}
        try:
            losses = {what: run.result() for what, run in started.items()}
        except RuntimeError as error:
            pool.shutdown(cancel_futures=True)
            sys.exit(str(error))
    print(f"gpt2-tiny, sequence {SEQUENCE}, text {options.data}, {EVALUATED} samples held out; tokens: "
          + ", ".join(f"{table} {tokens[table]}" for table in dict.fromkeys(row[0] for row in wanted)))
    passed = [print_table(table, losses) for table in dict.fromkeys(row[0] for row in wanted)]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
