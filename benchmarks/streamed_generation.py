"""How fast a model larger than its memory generates, beside what the disk could deliver: 4.02e9 parameters in bf16
under a limit of 4 GiB.

    .venv/bin/python benchmarks/streamed_generation.py FOLDER [--host 3GiB] [--limit-gib 4] [--tokens 6] [--layers 38]
        [--prompt 16]

FOLDER: on the disk of weights and scratch file, with room for them twice; the weights are a LLaMA in Hugging Face's
form of random numbers, made once and left there. The limit is RLIMIT_DATA of the process: what it may have of memory of
its own. A token is bound by the weights that do not stay in memory, over the bandwidth with which raw O_DIRECT reads in
the same run; the share of that bound is printed. Needs ./colossal.sh build, and the torch of .venv.
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import torch

from training_step import PROGRAM, ROOT

GIB = 2**30
SIZES = {"hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 24, "num_key_value_heads": 8,
         "vocab_size": 32000}


def shapes_of(layers):
    hidden, ffn, words = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["vocab_size"]
    kv = hidden // SIZES["num_attention_heads"] * SIZES["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (words, hidden)}
    for i in range(layers):
        block = f"model.layers.{i}."
        shapes |= {block + "input_layernorm.weight": (hidden,), block + "self_attn.q_proj.weight": (hidden, hidden),
                   block + "self_attn.k_proj.weight": (kv, hidden), block + "self_attn.v_proj.weight": (kv, hidden),
                   block + "self_attn.o_proj.weight": (hidden, hidden),
                   block + "post_attention_layernorm.weight": (hidden,), block + "mlp.gate_proj.weight": (ffn, hidden),
                   block + "mlp.up_proj.weight": (ffn, hidden), block + "mlp.down_proj.weight": (hidden, ffn)}
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (words, hidden)}


def size_of(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def write_model(folder, layers):
    """Weights of one draw that begins elsewhere in each tensor; norms are ones."""
    shapes = shapes_of(layers)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": layers,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", **SIZES}))
    header, end = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + 2 * size_of(shape)]}
        end += 2 * size_of(shape)
    text = json.dumps(header).encode()
    drawn = (torch.randn(2 * max(size_of(shape) for shape in shapes.values()),
                         generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for i, shape in enumerate(shapes.values()):
            begin = i * 7919 % (drawn.numel() // 2)
            values = torch.ones(shape, dtype=torch.bfloat16) if len(shape) == 1 else drawn[begin:begin + size_of(shape)]
            file.write(values.contiguous().view(torch.uint8).numpy().tobytes())


def raw_read(folder):
    """Bytes a second."""
    said = subprocess.run([ROOT / "build/release/benchmarks/colossal_disk_bench", folder, "1024", "3"],
                          capture_output=True, text=True, check=True).stdout
    lines = [json.loads(line) for line in said.splitlines()]
    return next(line["median_mb_s"] for line in lines if line["what"] == "raw" and line["kind"] == "read") * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--host", default="3GiB", help="of weights in memory")
    parser.add_argument("--limit-gib", type=float, default=4)
    parser.add_argument("--tokens", type=int, default=6)
    parser.add_argument("--layers", type=int, default=38)
    parser.add_argument("--prompt", type=int, default=16, help="bytes of the prompt, each a token")
    options = parser.parse_args()
    model = options.folder / f"llama-{options.layers}"
    if not model.exists():
        write_model(model, options.layers)
    parameters = sum(size_of(shape) for shape in shapes_of(options.layers).values())
    before = raw_read(options.folder)
    limit = int(options.limit_gib * GIB)
    command = [str(PROGRAM), "generate", "--from", str(model), "--tokenizer", "bytes", "--prompt", "x" * options.prompt,
               "--ids", "--temperature", "0", "--max-tokens", str(options.tokens), "--precision=bf16",
               f"--memory.host={options.host}", f"--memory.disk={options.folder}"]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))) as process:
        times, peak = [], 0
        for _ in process.stdout:
            times.append(time.perf_counter())
            for line in open(f"/proc/{process.pid}/status"):
                if line.startswith("VmHWM"):
                    peak = int(line.split()[1]) * 1024
    if process.returncode or len(times) < 3:
        sys.exit(f"it ended with status {process.returncode} after {len(times)} token(s)")
    bandwidth = (before + raw_read(options.folder)) / 2
    token = statistics.median(b - a for a, b in zip(times[1:], times[2:]))
    host = float(options.host.removesuffix("GiB")) * GIB
    bound = (2 * parameters - host) / bandwidth
    print(f"{parameters / 1e9:.2f}e9 parameters in bf16, {2 * parameters / GIB:.2f} GiB; memory.host = {options.host}; "
          f"peak of resident memory {peak / GIB:.2f} GiB")
    print(f"first token after {times[0] - begin:.1f} s, weights read and written meanwhile; then {token:.2f} s a token")
    print(f"the disk reads {bandwidth / 1e9:.2f} GB/s: at least {bound:.2f} s a token, "
          f"of which {bound / token:.2f} is reached")


if __name__ == "__main__":
    main()
