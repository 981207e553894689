"""Decoding of a Mixtral of 161 M parameters in Q8_0 by `colossal` and by llama.cpp, alternating in one run.

    pip install llama-cpp-python numpy    # builds llama.cpp for this processor, five to seven minutes
    python benchmarks/mixture_decoding.py --colossal build/release/colossal --work FOLDER [--prompt 128] [--new 48]
        [--many 8] [--threads 2] [--rounds 3] [--folder]

The model has the sizes of benchmarks/mixtral_161m.toml and random weights. The script writes it to FOLDER as a Hugging
Face folder, `colossal export --type q8_0` makes a GGUF file of it, and both programs read this file. With --folder ours
reads the Hugging Face folder and rounds it to 8 bits in groups of 128 while loading (`--quantize=int8`).

How fast a mixture decodes depends on which experts its tokens choose: 8 sequences that repeat one token read 2 experts
of a layer, others up to 8. Ours decodes greedily, llama.cpp gets random tokens. So the weights are such that greedy
decoding does not repeat itself (EMBEDDING_SCALE, ATTENTION_SCALE). The script prints how many different tokens
`colossal generate` makes of one prompt, and fails if they are fewer than half of all.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import inference_beside_llama_cpp as beside

VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, EXPERTS, USED = 32000, 512, 8, 8, 4, 1408, 8, 2
PARAMETERS = 161_128_960
EMBEDDING_SCALE = 0.02  # results of experts are larger, so the last token is not the most probable one
ATTENTION_SCALE = 0.1  # experts decide: attention to a long text is much the same from token to token
MEASURES = {  # what it is, and the ratio that is wanted
    "decode 1": ("decode, 1 sequence", 1.2),
    "decode many": ("decode, {many} sequences", 1.9),
    "prefill": ("prefill", None),
}


def shapes():
    """Names and shapes of all tensors of the folder."""
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        keys = HIDDEN * KV_HEADS // HEADS
        for name, rows in (("q", HIDDEN), ("k", keys), ("v", keys), ("o", HIDDEN)):
            yield f"{block}.self_attn.{name}_proj.weight", (rows, HIDDEN)
        yield f"{block}.block_sparse_moe.gate.weight", (EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            for name, shape in (("w1", (FFN, HIDDEN)), ("w2", (HIDDEN, FFN)), ("w3", (FFN, HIDDEN))):
                yield f"{block}.block_sparse_moe.experts.{expert}.{name}.weight", shape
        yield f"{block}.input_layernorm.weight", (HIDDEN,)
        yield f"{block}.post_attention_layernorm.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)


def write_weights(path, shapes, scale_of):
    """Writes a safetensors file of random bf16 weights, with vectors of ones. Returns the number of parameters.

    `shapes` has pairs of name and shape. scale_of(name, shape) returns the standard deviation of a matrix, or a column
    with that of each row.
    """
    import numpy

    header, end, count = {}, 0, 0
    for name, shape in shapes:
        numbers = int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + 2 * numbers]}
        end, count = end + 2 * numbers, count + numbers
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = numpy.random.default_rng(0)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes:
            if len(shape) == 1:
                values = numpy.ones(shape, numpy.float32)
            else:
                values = random.standard_normal(shape, numpy.float32) * numpy.float32(scale_of(name, shape))
            file.write((values.view(numpy.uint32) >> 16).astype("<u2").tobytes())  # the upper half is a bf16
    return count


def scale_of(name, shape):
    """Products keep the size of their inputs, apart from two."""
    scale = EMBEDDING_SCALE if "embed" in name else shape[1] ** -0.5
    return scale * (ATTENTION_SCALE if "o_proj" in name else 1)


def write_folder(folder):
    """Writes config.json and model.safetensors with random bf16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "num_local_experts": EXPERTS, "num_experts_per_tok": USED,
        "max_position_embeddings": 4096, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "sliding_window": None,
        "torch_dtype": "bfloat16"}))
    assert write_weights(folder / "model.safetensors", list(shapes()), scale_of) == PARAMETERS


def check_tokens(options, model):
    """Fails if greedy decoding repeats itself, because the two programs would then read different experts."""
    command = [options.colossal, "generate", "--from", model, "--tokenizer=bytes", "--ids", "--prompt=Once upon",
               f"--max-tokens={options.new}"]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    print(f"{len(set(said))} different tokens of {len(said)} that ours decodes", file=sys.stderr)
    if 2 * len(set(said)) < len(said):
        sys.exit(f"ours must decode different tokens, like those of llama.cpp: got {' '.join(said)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--colossal", required=True)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=48)
    parser.add_argument("--many", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernels", default="auto", help="of colossal")
    parser.add_argument("--folder", action="store_true", help="ours rounds the folder instead of reading the GGUF file")
    parser.add_argument("--only-ours", action="store_true", help="without llama.cpp and its file; no ratios")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    folder, gguf = options.work / "mixtral-161m", options.work / "mixtral-161m-q8_0.gguf"
    if not (folder / "model.safetensors").exists():
        write_folder(folder)
    if not options.only_ours and not gguf.exists():
        subprocess.run([options.colossal, "export", "--from", folder, "--tokenizer=bytes", "--to", gguf, "--type",
                        "q8_0"], check=True, stdout=subprocess.DEVNULL)
    check_tokens(options, folder)
    reads_folder = options.folder or options.only_ours
    own = (folder, ["--precision=bf16", "--quantize=int8"]) if reads_folder else (gguf, ["--precision=bf16"])
    rounds = []
    for i in range(options.rounds):  # every other round is in the opposite order, because a machine warms up
        sides = {"theirs": lambda: beside.theirs(options, gguf), "ours": lambda: beside.ours(options, *own)}
        names = ["ours"] if options.only_ours else list(sides)
        rounds.append({name: sides[name]() for name in (names if i % 2 == 0 else names[::-1])})
        print(f"round {i + 1}: {json.dumps(rounds[-1])}", file=sys.stderr, flush=True)
    with open("/proc/cpuinfo") as lines:
        cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    weights = "int8 in groups of 128" if reads_folder else "Q8_0"
    print(f"Mixtral of {PARAMETERS:,} parameters, {weights} against Q8_0, prompts of {options.prompt} tokens, "
          f"{options.new} decoded, {options.threads} threads, {options.rounds} rounds, {cpu}\n")
    print("| what | llama.cpp, tokens/s | colossal | ratio, by round | wanted |\n|---|---|---|---|---|")
    for measure, (what, wanted) in MEASURES.items():
        our = [sides["ours"][measure] for sides in rounds]
        their = [sides["theirs"][measure] for sides in rounds if "theirs" in sides]
        ratios = [a / b for a, b in zip(our, their)]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        print(f"| {what.format(many=options.many)} | {statistics.median(their) if their else float('nan'):.1f} | "
              f"{statistics.median(our):.1f} | {ratio} | {wanted or ''} |")


if __name__ == "__main__":
    main()
