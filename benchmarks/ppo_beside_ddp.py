"""A PPO step with four models of GPT-2 124M on two ranks of one thread each: `colossal train` beside PyTorch.

    python benchmarks/ppo_beside_ddp.py --colossal build/release/colossal [--rows 8] [--steps 3] [--rounds 2]

Policy, reference, value and reward model have random weights in fp32. A step draws an answer of --tokens tokens for
each of --rows prompts per rank, computes the rewards, and updates policy and value model once by AdamW. The peer is
benchmarks/ddp_ppo_step.py: DistributedDataParallel, and `generate` of transformers. Both sides run in turns; the figure
of a process is the median of its steps after the first. --flag is given to colossal, such as
--flag=--rollout.panels=off. --ranks 1: one rank with all threads. Needs torch and transformers, 3 GB of disk and 12 GB
of memory.

Prints a JSON object: for each side and round the seconds of a step, of drawing and of the rest, and the peak of
resident memory of a rank in MiB. `speed` and `drawing` are the peer's seconds over ours.
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
from typing import Any

import python_sides as sides

PEER = sides.ROOT / "benchmarks/ddp_ppo_step.py"
DRAWING = "draw_seconds"
POSITIONS = 1024
CONFIG = """
[alignment]
method = "ppo"
epochs = 1
mini_batches = 1
[data]
held_out = 0
[optimizer]
learning_rate = 1e-5
schedule = "constant"
warmup_steps = 0
[training]
clip = 0
evaluate_batches = 0
sample_tokens = 0
"""


def write_tokenizer(folder: pathlib.Path, vocabulary: int) -> None:
    """Writes a tokenizer.json: a token for each byte, then names that no text has. Letters have the ids of ASCII."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    alphabet = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    ids = {token: place for place, token in enumerate(alphabet)}
    ids |= {f"<unused {place}>": place for place in range(256, vocabulary)}
    plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": ids, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": plain, "post_processor": None, "decoder": plain, "model": model}))


def write_models(folder: pathlib.Path, sizes: dict[str, int]) -> None:
    """Writes the Hugging Face folders policy and reward, with random weights, a file for each block."""
    import torch
    from safetensors.torch import save_file

    hidden, generator = sizes["hidden"], torch.Generator().manual_seed(0)
    config = {"model_type": "gpt2", "n_embd": hidden, "n_layer": sizes["layers"], "n_head": sizes["heads"],
              "n_positions": POSITIONS, "vocab_size": sizes["vocabulary"], "activation_function": "gelu_new",
              "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
              "torch_dtype": "float32", "bos_token_id": None, "eos_token_id": None}
    norm, four = {"weight": (hidden,), "bias": (hidden,)}, 4 * hidden
    linear = {"attn.c_attn": (hidden, 3 * hidden), "attn.c_proj": (hidden, hidden), "mlp.c_fc": (hidden, four),
              "mlp.c_proj": (four, hidden)}
    block = {f"{layer}.{name}": shape for layer in ("ln_1", "ln_2") for name, shape in norm.items()}
    for layer, shape in linear.items():
        block |= {f"{layer}.weight": shape, f"{layer}.bias": shape[1:]}
    ends: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (sizes["vocabulary"], hidden),
                                        "transformer.wpe.weight": (POSITIONS, hidden),
                                        "transformer.ln_f.weight": (hidden,), "transformer.ln_f.bias": (hidden,)}
    for name, of_class, head in (("policy", "GPT2LMHeadModel", {}),
                                 ("reward", "GPT2ForSequenceClassification", {"score.weight": (1, hidden)})):
        to = folder / name
        to.mkdir()
        places: dict[str, str] = {}
        files = {f"block-{layer:03}": {f"transformer.h.{layer}.{key}": shape for key, shape in block.items()}
                 for layer in range(sizes["layers"])}
        for file, shapes in {"ends": ends | head, **files}.items():
            values = {key: torch.empty(shape).normal_(0, 0.02, generator=generator) if len(shape) > 1 else
                      torch.full(shape, float("ln_" in key and key.endswith("weight")))
                      for key, shape in shapes.items()}
            save_file(values, to / f"{file}.safetensors", metadata={"format": "pt"})
            places |= dict.fromkeys(shapes, f"{file}.safetensors")
        (to / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
        own = {"num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}} if head else {}
        (to / "config.json").write_text(json.dumps({"architectures": [of_class], **config, **own}))
        write_tokenizer(to, sizes["vocabulary"])


def write_run(folder: pathlib.Path, sizes: dict[str, int], prompts: int, length: int) -> None:
    """Writes what a run of ours reads: the models, config.toml, and prompts of `length` tokens each."""
    write_models(folder, sizes)
    (folder / "config.toml").write_text(CONFIG)
    letters, generator = "abcdefghijklmnopqrstuvwxyz", random.Random(0)
    lines = ("".join(generator.choice(letters) for _ in range(length)) for _ in range(prompts))
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": line}) + "\n" for line in lines))


def flags_of(folder: pathlib.Path, prompts: int, tokens: int) -> list[str]:
    """Returns the flags of a run on what write_run() wrote; each step draws one answer to each of `prompts` prompts."""
    return [f"--model.from={folder}/policy", f"--value.from={folder}/reward", f"--reward.from={folder}/reward",
            f"--data.path={folder}/prompts.jsonl", f"--rollout.prompts={prompts}", "--rollout.answers=1",
            f"--rollout.max_tokens={tokens}"]


def ours(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, float]:
    output = folder / "run"
    sides.output_of([
        options.colossal, "train", folder / "config.toml", "--overwrite", f"--run.folder={output}",
        *flags_of(folder, options.ranks * options.rows, options.tokens), f"--parallel.data={options.ranks}",
        f"--training.steps={options.steps + 1}", *options.flag
    ])
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()][1:]
    clocks = sorted({key for line in lines for key in line if key == "seconds" or key.endswith("_seconds")})
    figures = {key: statistics.median(line[key] for line in lines if key in line) for key in clocks}
    rest = {"rest_seconds": figures["seconds"] - figures[DRAWING]} if DRAWING in figures else {}
    return {**figures, **rest, "peak_mib": max(line["peak_bytes"] for line in lines) / 2**20}


def peer(options: argparse.Namespace) -> dict[str, float]:
    threads = os.cpu_count() if options.ranks == 1 else 1
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={options.ranks}"] if options.ranks > 1 else []
    said = sides.output_of([
        sys.executable, *launcher, PEER, f"--threads={threads}", f"--rows={options.rows}",
        f"--prompt={options.prompt}", f"--tokens={options.tokens}", f"--steps={options.steps}", "--warm-up=1",
        *(f"--{name}={size}" for name, size in sizes_of(options).items())
    ], env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    result: dict[str, float] = sides.figures_of(said)[-1]
    return result


def sizes_of(options: argparse.Namespace) -> dict[str, int]:
    return {name: getattr(options, name) for name in ("hidden", "layers", "heads", "vocabulary")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--colossal", default="build/release/colossal")
    parser.add_argument("--flag", action="append", default=[], metavar="--KEY=VALUE", help="another key of colossal")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=8, help="prompts of each rank and step, with an answer each")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--steps", type=int, default=3, help="measured, after one that is not")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--only", choices=["ddp", "colossal"], help="one side")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        runs = {"colossal": lambda: ours(options, folder), "ddp": lambda: peer(options)}
        if options.only:
            runs = {options.only: runs[options.only]}
        if "colossal" in runs:
            write_run(folder, sizes_of(options), options.ranks * options.rows * (options.steps + 1), options.prompt)
        results = sides.in_turns(runs, options.rounds)
    ratios = {}
    if not options.only:
        for figure, key in (("speed", "seconds"), ("drawing", DRAWING)):
            if all(key in result for result in results["colossal"]):
                ratios[figure] = sides.ratios(sides.column(results["ddp"], key), sides.column(results["colossal"], key))
    print(json.dumps({**ratios, **results, "machine": sides.machine(),
                      "versions": sides.versions("torch", "transformers")}, indent=1))


if __name__ == "__main__":
    main()
