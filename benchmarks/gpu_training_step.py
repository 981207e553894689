"""Training step on one GPU, bf16 with fp32 weights: the program of this project against PyTorch, in turns, in one run.

    python3 benchmarks/gpu_training_step.py [--models gpt2 llama] [--steps 10] [--rounds 1] [--no-compile] [--json FILE]

Models: gpt2 is GPT-2 124M, 32 rows of 1024 tokens; llama is a LLaMA of 1.0e9 parameters, 8 rows of 2048 tokens. Sides:
`colossal`; `cuda graph`, the same with training.cuda_graph; `eager` and `compile`, PyTorch with autocast to bf16,
scaled_dot_product_attention and the fused AdamW (for gpt2 the module of gpt2_training_step.py, for llama that of
transformers). Each side trains the same shapes on random tokens in a process of its own. A step is forward, loss,
backward, and AdamW; the figure is the median. Peak is what the allocator of the device gave to tensors at most. Needs
./colossal.sh build on a machine with a GPU, and for llama the package transformers.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("COLOSSAL_BINARY", str(ROOT / "build/release/colossal"))
WARM_UP = 4
SIZES = {  # config of ours; rows and their tokens in a step; words of the vocabulary
    "gpt2": {"config": "gpt2_124m.toml", "rows": 32, "length": 1024, "vocabulary": 50257},
    "llama": {"config": "llama_1b.toml", "rows": 8, "length": 2048, "vocabulary": 32000},
}


def write_tokens(folder, count):
    generator = random.Random(0)
    values = b"".join(generator.randrange(256).to_bytes(2, "little") for _ in range(1 << 16))
    (folder / "tokens.bin").write_bytes((values * (2 * count // len(values) + 1))[: 2 * count])
    (folder / "tokens.bin.json").write_text('{"dtype": "uint16"}')


def records_of(command, path, count):
    """Runs a training until it has written `count` records, and kills it: its checkpoint is not wanted. Returns the
    records, or its last words."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as program:
        try:
            while program.poll() is None:
                lines = path.read_text().splitlines(keepends=True) if path.exists() else []
                records = [json.loads(line) for line in lines if line.endswith("\n") and "loss" in line]
                if len(records) >= count:
                    return records[:count]
                time.sleep(0.1)
            return program.stdout.read()[-1500:]
        finally:
            program.kill()


def ours(model, options, has_graph):
    size = SIZES[model]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_tokens(folder, (options.steps + WARM_UP + 2) * size["rows"] * size["length"] + 1)
        command = [
            PROGRAM, "train", str(ROOT / "benchmarks" / size["config"]), "--overwrite", f"--run.folder={folder}/run",
            f"--data.path={folder}/tokens.bin", f"--data.sequence={size['length']}", "--data.held_out=0",
            f"--training.batch_size={size['rows']}", f"--training.steps={options.steps + WARM_UP + 1}",
            "--training.clip=0", "--parallel.data=1", "--parallel.zero=0", "--precision.mode=bf16",
            "--memory.recompute=none", "--run.device=cuda", f"--training.cuda_graph={'true' if has_graph else 'false'}",
        ]
        lines = records_of(command, folder / "run/metrics.jsonl", options.steps + WARM_UP)
        if isinstance(lines, str):
            return {"error": lines}
        measured = lines[WARM_UP:]
        return {
            "ms": statistics.median(line["seconds"] for line in measured) * 1e3,
            "mb": measured[-1]["peak_bytes"] / 2**20, "first_loss": lines[0]["loss"], "last_loss": lines[-1]["loss"],
            "record": measured[-1],
        }


def peer(model, options, mode):
    command = [sys.executable, __file__, "--peer", mode, "--models", model, "--steps", str(options.steps)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stdout + done.stderr)[-1500:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def run_peer(model, mode, steps):
    """Prints the figures of PyTorch's side as one JSON object."""
    import torch
    from torch.nn import functional as F

    size = SIZES[model]
    torch.manual_seed(0)
    with torch.device("cuda"):
        if model == "gpt2":
            import gpt2_training_step

            module = gpt2_training_step.Gpt2()
            loss_of = module
        else:
            import transformers

            config = transformers.LlamaConfig(
                vocab_size=size["vocabulary"], hidden_size=2048, intermediate_size=5632, num_hidden_layers=20,
                num_attention_heads=32, num_key_value_heads=4, max_position_embeddings=2048, attn_implementation="sdpa",
                use_cache=False)
            module = transformers.LlamaForCausalLM(config)

            def loss_of(tokens, labels):
                return F.cross_entropy(module(tokens).logits.flatten(0, 1), labels.flatten())
        tokens, labels = (torch.randint(256, (size["rows"], size["length"])) for _ in range(2))
    if mode == "compile":
        loss_of = torch.compile(loss_of)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    seconds = []
    for step in range(steps + WARM_UP):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(tokens, labels)
        loss.backward()
        optimizer.step()
        loss.item()
        torch.cuda.synchronize()
        if step >= WARM_UP:
            seconds.append(time.perf_counter() - start)
    print(json.dumps({"ms": statistics.median(seconds) * 1e3, "mb": torch.cuda.max_memory_allocated() / 2**20,
                      "last_loss": loss.item()}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--steps", type=int, default=10, help="measured steps")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true",
                        help="leave out the compiled peer, which compiles for a minute")
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("--peer", choices=["eager", "compile"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        run_peer(options.models[0], options.peer, options.steps)
        return
    results = {}
    for model in options.models:
        sides = {"colossal": lambda: ours(model, options, False), "eager": lambda: peer(model, options, "eager")}
        if model == "gpt2":
            sides["cuda graph"] = lambda: ours(model, options, True)
        if not options.no_compile:
            sides["compile"] = lambda: peer(model, options, "compile")
        for side, measure in sides.items():
            for _ in range(options.rounds):
                result = measure()
                results.setdefault(model, {}).setdefault(side, []).append(result)
                print(f"{model} {side}: " + (f"{result['ms']:.1f} ms" if "ms" in result else result["error"]),
                      flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1))
    card = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                          text=True).stdout.strip()
    for model, sides in results.items():
        size = SIZES[model]
        print(f"{model}, bf16, {size['rows']} x {size['length']} tokens, {card}")
        print(f"{'':12}{'ms/step':>10}{'tokens/s':>10}{'peak MB':>10}{'ours/peer':>11}")
        best = {}
        for side, rounds in sides.items():
            done = [r for r in rounds if "ms" in r]
            if done:
                best[side] = min(done, key=lambda r: r["ms"])
            else:
                print(f"{side:12} {rounds[0]['error'][-600:]}")
        for side, r in best.items():
            ratio = f"{r['ms'] / best['colossal']['ms']:.2f}" if "colossal" in best and side != "colossal" else ""
            print(f"{side:12}{r['ms']:10.1f}{size['rows'] * size['length'] / r['ms'] * 1e3:10.0f}{r['mb']:10.0f}"
                  f"{ratio:>11}")


if __name__ == "__main__":
    main()
