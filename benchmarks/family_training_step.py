"""Training step of a model family beside transformers' model of the same sizes, eager, in turns, in one run.

    # fp32, 8 texts of 128 tokens, hidden ones
    .venv/bin/python benchmarks/family_training_step.py bert-base [--steps 6] [--rounds 2]
    # bf16 (transformers: autocast), 1 of 512
    .venv/bin/python benchmarks/family_training_step.py qwen2.5-0.5b [--steps 4] [--rounds 2]

Both sides update every parameter by AdamW (transformers' with torch's, which works on lists of tensors) and have all
cores. The figure of a side is the best of its rounds' medians, without the first two steps; the ratio is ours over the
peer's tokens a second. Needs ./colossal.sh build, and torch and transformers of .venv.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(os.environ.get("COLOSSAL_BINARY", ROOT / "build/release/colossal"))
FAMILIES = {  # vocabulary, batch, length, precision
    "bert-base": (30522, 8, 128, "fp32"),
    "qwen2.5-0.5b": (151936, 1, 512, "bf16"),
}
WARM_UP = 2


def ours(name, steps, folder):
    vocabulary, batch, length, precision = FAMILIES[name]
    generator = random.Random(0)
    (folder / "tokens.bin").write_bytes(b"".join(generator.randrange(256).to_bytes(2, "little")
                                                 for _ in range((steps + 4) * batch * length + 1)))
    (folder / "tokens.bin.json").write_text('{"dtype": "uint16"}')
    keys = {"run.folder": folder / "run", "model.name": name, "model.vocabulary": vocabulary,
            "data.path": folder / "tokens.bin", "data.tokenizer": "bytes", "data.sequence": length, "data.held_out": 0,
            "precision.mode": precision, "model.dropout": 0, "optimizer.learning_rate": 1e-5,
            "optimizer.schedule": "constant", "optimizer.warmup_steps": 0, "training.batch_size": batch,
            "training.steps": steps + WARM_UP, "training.clip": 0, "training.evaluate_batches": 0,
            "training.sample_tokens": 0, "training.save_every": 0}
    config = folder / "config.toml"
    config.write_text("")
    done = subprocess.run([str(PROGRAM), "train", str(config), "--overwrite",
                           *(f"--{key}={value}" for key, value in keys.items())],
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    lines = [json.loads(line) for line in open(folder / "run/metrics.jsonl")][WARM_UP:]
    return {"ms": statistics.median(line["seconds"] for line in lines) * 1e3, "mb": lines[-1]["peak_bytes"] / 2**20}


def peer_here(name, steps):
    """One round of the peer, in a process of its own."""
    import torch
    import transformers
    vocabulary, batch, length, precision = FAMILIES[name]
    torch.manual_seed(0)
    if name == "bert-base":
        model = transformers.BertForMaskedLM(transformers.BertConfig(hidden_dropout_prob=0,
                                                                     attention_probs_dropout_prob=0))
    else:
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
            vocab_size=vocabulary, hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
            intermediate_size=4864, max_position_embeddings=32768, tie_word_embeddings=True))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    seconds = []
    for _ in range(steps + WARM_UP):
        ids = torch.randint(0, 256, (batch, length))
        labels = ids
        if name == "bert-base":
            hidden = torch.rand(ids.shape) < 0.15
            labels = ids.masked_fill(~hidden, -100)
            ids = ids.masked_fill(hidden, 257)
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"ms": statistics.median(seconds[WARM_UP:]) * 1e3,
                      "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def peer(name, steps):
    done = subprocess.run([sys.executable, __file__, name, "--steps", str(steps), "--peer"], capture_output=True,
                          text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(FAMILIES))
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        peer_here(options.name, options.steps)
        return
    results = {"colossal": [], "transformers": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            results["colossal"].append(ours(options.name, options.steps, pathlib.Path(folder)))
            results["transformers"].append(peer(options.name, options.steps))
    _, batch, length, precision = FAMILIES[options.name]
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
               "unknown")
    print(f"{options.name}, {precision}, {batch} x {length} tokens, {cpu}, {os.cpu_count()} cores")
    print(f"{'':14}{'ms/step':>10}{'tokens/s':>10}{'peak MB':>10}{'ours/peer':>11}")
    best = {side: min(rounds, key=lambda r: r["ms"]) for side, rounds in results.items()}
    for side, r in best.items():
        ratio = f"{r['ms'] / best['colossal']['ms']:.2f}" if side != "colossal" else ""
        print(f"{side:14}{r['ms']:10.0f}{batch * length / r['ms'] * 1e3:10.1f}{r['mb']:10.0f}{ratio:>11}")


if __name__ == "__main__":
    main()
