"""LoRA on a LLaMA of 1.1e9 parameters, with its frozen matrices in the model's dtype and in NF4 (QLoRA).

    python benchmarks/qlora.py --colossal build/release/colossal --data self-instruct.jsonl ... --tokenizer FOLDER

Both train adapters of rank 16 on all linear layers, on completions packed into one row of --sequence tokens a step. The
folder has the shape of TinyLlama-1.1B and random weights in bf16, which does not change the work of a step. --data:
files with `instruction` and `instances`. --tokenizer: a folder with a tokenizer.json of at most 32000 ids. --flag is
given to every run, such as --flag=--precision.mode=bf16. Needs torch and safetensors; 2.2 GB of disk.

Prints a JSON object: of each base the tokens per second without padding and the peak of resident memory in MiB, and the
ratio of the second rate to the first.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from fine_tuning_beside_trl import lines_of

SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 22,
         "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000,
         "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
         "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}


def make_model(folder: pathlib.Path, tokenizer: str) -> None:
    """Writes the folder, a file for each layer."""
    import torch
    from safetensors.torch import save_file

    hidden, inner, keys = SHAPE["hidden_size"], SHAPE["intermediate_size"], 256
    places, generator = {}, torch.Generator().manual_seed(1)

    def save(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
        values = {key: torch.ones(shape, dtype=torch.bfloat16) if len(shape) == 1 else
                  torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=generator)
                  for key, shape in shapes.items()}
        save_file(values, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(shapes, name))

    ends = (SHAPE["vocab_size"], hidden)
    save("model-ends.safetensors",
         {"model.embed_tokens.weight": ends, "lm_head.weight": ends, "model.norm.weight": (hidden,)})
    for layer in range(SHAPE["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        save(f"model-{layer:02}.safetensors", {
            at + "input_layernorm.weight": (hidden,), at + "post_attention_layernorm.weight": (hidden,),
            at + "self_attn.q_proj.weight": (hidden, hidden), at + "self_attn.k_proj.weight": (keys, hidden),
            at + "self_attn.v_proj.weight": (keys, hidden), at + "self_attn.o_proj.weight": (hidden, hidden),
            at + "mlp.gate_proj.weight": (inner, hidden), at + "mlp.up_proj.weight": (inner, hidden),
            at + "mlp.down_proj.weight": (hidden, inner)})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps(SHAPE))
    shutil.copy(pathlib.Path(tokenizer) / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True,
         "tokenizer_class": "LlamaTokenizerFast"}))


def train(options: argparse.Namespace, folder: pathlib.Path, base: str) -> dict[str, float]:
    run = folder / "run"
    done = subprocess.run(
        [options.colossal, "train", str(folder / "sft.toml"), f"--model.from={folder}",
         f"--data.path={folder / 'lines.jsonl'}", "--data.held_out=0", f"--data.sequence={options.sequence}",
         "--training.batch_size=1", f"--training.steps={options.steps}", "--training.evaluate_batches=0",
         "--training.sample_tokens=0", "--adapter.kind=lora", "--adapter.rank=16", f"--adapter.base={base}",
         f"--run.folder={run}", "--overwrite", *options.flag],
        env=dict(os.environ, OMP_NUM_THREADS=str(options.threads)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {"rate": statistics.median(step["tokens_per_second"] for step in steps[options.warmup:]),
            "peak_mib": max(max(step["peak_bytes"]) if isinstance(step["peak_bytes"], list) else step["peak_bytes"]
                            for step in steps) / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--colossal", default="build/release/colossal")
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--bases", nargs=2, default=["model", "nf4"])
    parser.add_argument("--flag", action="append", default=[])
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_model(folder, options.tokenizer)
        (folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines_of(options.data)))
        (folder / "sft.toml").write_text("[alignment]\nmethod = \"sft\"\n")
        results: dict[str, dict[str, float]] = {}
        for base in options.bases * 2:  # in turn, because machines are noisy
            result = train(options, folder, base)
            if base not in results or result["rate"] > results[base]["rate"]:
                results[base] = result
    first, second = options.bases
    print(json.dumps({**results, "ratio": results[second]["rate"] / results[first]["rate"]}))


if __name__ == "__main__":
    main()
