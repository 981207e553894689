"""Generation on one GPU in bf16: `colossal bench inference` beside generate() of transformers, in one run.

    python3 benchmarks/gpu_decoding.py [--hidden 2048] [--layers 20] [--sequences 1 8 32] [--new 128] [--compile]
        [--work FOLDER]

The model is a LLaMA of random weights, 1.0e9 parameters by default, which the script writes into --work. Prompts have
128 random tokens. A figure is new tokens a second over all sequences, without the prompt: the time of --new tokens less
that of one token. With --compile, transformers' static cache, which compiles the forward pass with CUDA graphs, is a
peer too. Needs ./colossal.sh build on a machine with a GPU, and the packages torch and transformers.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("COLOSSAL_BINARY", str(ROOT / "build/release/colossal"))
PROMPT = 128


def write_model(options, folder):
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=options.hidden, intermediate_size=options.hidden * 11 // 4,
        num_hidden_layers=options.layers, num_attention_heads=options.hidden // 64, num_key_value_heads=4,
        max_position_embeddings=4096)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def ours(options, folder):
    command = [PROGRAM, "bench", "inference", "--from", folder, "--run.device=cuda", "--precision=bf16", "--json",
               "--rounds=3", "--requests=0", f"--prompt-tokens={PROMPT}", f"--new-tokens={options.new}",
               "--kv-cache=4GiB", "--sequences", ",".join(map(str, options.sequences))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return (done.stdout + done.stderr)[-1500:]
    return json.loads(done.stdout)


def peers(options, folder):
    """Tokens a second of transformers, by side and number of sequences."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16,
                                                              attn_implementation="sdpa").to("cuda").eval()
    results = {}

    def seconds(count, new, **more):
        ids = torch.randint(3, 32000, (count, PROMPT), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=new,
                       max_new_tokens=new, pad_token_id=0, **more)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    sides = {"eager": {}} | ({"static cache": {"cache_implementation": "static"}} if options.compile else {})
    for side, more in sides.items():
        for count in options.sequences:
            seconds(count, options.new if more else 8, **more)  # compiles for this length, or only warms up
            short, long = seconds(count, 1, **more), seconds(count, options.new, **more)
            results.setdefault(side, {})[count] = count * (options.new - 1) / (long - short)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--work", help="folder for the model; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or temporary
        count = write_model(options, folder)
        mine, theirs = ours(options, folder), peers(options, folder)
    card = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                          text=True).stdout.strip()
    print(f"LLaMA of {count / 1e9:.2f}e9 parameters, bf16, prompts of {PROMPT} tokens, {options.new} new ones, {card}")
    if isinstance(mine, str):
        sys.exit(mine)
    for row in mine["sequences"]:
        count, rate = row["count"], row["tokens_per_second"]
        others = "".join(f"  {side} {rates[count]:.0f} (ratio {rate / rates[count]:.2f})"
                         for side, rates in theirs.items())
        print(f"{count:3} sequences: colossal {rate:.0f} tokens/s, prompt "
              f"{row['prompt_tokens_per_second']:.0f} tokens/s;{others}")


if __name__ == "__main__":
    main()
