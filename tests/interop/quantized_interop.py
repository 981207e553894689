"""Tests folders of GPTQ and AWQ. This script quantizes the weights of a small model and writes them by the formulas of
AutoGPTQ and AutoAWQ, with numpy. It also writes the dequantized model in fp32, from which transformers continues a
prompt. Our program continues it from the quantized folder in the same way: in fp64 with the dequantized values, and in
fp32 with the quantized ones, where activations are rounded too."""

import json
import pathlib
import shutil

import interop

torch, transformers, np = interop.need("torch", "transformers", "numpy")
from safetensors.torch import load_file, save_file

PROMPT = "abcdefghijklmnopq"
GROUP = 32
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def words(codes, bits):
    """Packs values [..., 32 / bits] to int32 [...]."""
    out = np.zeros(codes.shape[:-1], np.uint32)
    for i in range(codes.shape[-1]):
        out |= codes[..., i].astype(np.uint32) << np.uint32(bits * i)
    return torch.from_numpy(out.view(np.int32).copy())


def rounded(weight, bits, symmetric, order):
    """Returns quantized values [in, out] and zero points [groups, out], scales in binary16, and the group of each
    input."""
    w = weight.T.astype(np.float32)
    inputs, outputs = w.shape
    group = np.empty(inputs, np.int64)
    group[order] = np.arange(inputs) // GROUP
    most = 2**bits - 1
    scales, zeros = np.zeros((inputs // GROUP, outputs), np.float16), np.zeros((inputs // GROUP, outputs), np.int64)
    for g in range(inputs // GROUP):
        rows = w[group == g]
        if symmetric:
            scales[g], zeros[g] = np.abs(rows).max(0) / (most // 2), (most + 1) // 2
        else:
            least, largest = np.minimum(rows.min(0), 0), np.maximum(rows.max(0), 0)
            scales[g] = (largest - least) / most
            zeros[g] = np.clip(np.round(-least / scales[g].astype(np.float32)), 1, most)
    step = scales.astype(np.float32)[group]
    codes = np.clip(np.round(w / step) + zeros[group], 0, most).astype(np.int64)
    return codes, zeros, scales, group, (step * (codes - zeros[group])).T


def gptq(codes, zeros, scales, group, bits, less):
    in_word = 32 // bits
    inputs, outputs = codes.shape
    return {"qweight": words(codes.reshape(inputs // in_word, in_word, outputs).transpose(0, 2, 1), bits),
            "qzeros": words(((zeros - less) & (2**bits - 1)).reshape(len(zeros), outputs // in_word, in_word), bits),
            "scales": torch.from_numpy(scales), "g_idx": torch.from_numpy(group.astype(np.int32))}


def awq(codes, zeros, scales):
    ordered = lambda c: words(c.reshape(len(c), -1, 8)[:, :, ORDER], 4)
    return {"qweight": ordered(codes), "qzeros": ordered(zeros), "scales": torch.from_numpy(scales)}


def run(name, config, bits, symmetric, shuffled):
    folder = pathlib.Path(interop.temp_dir) / name
    torch.manual_seed(0)
    sizes = dict(vocab_size=263, bos_token_id=256, eos_token_id=None, pad_token_id=None, hidden_size=96,
                 intermediate_size=160, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3,
                 max_position_embeddings=64, initializer_range=0.3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    plain = folder / "plain"
    model.save_pretrained(plain)
    tensors = load_file(plain / "model.safetensors")
    coded, draw = {}, np.random.default_rng(1)
    for key, value in list(tensors.items()):
        if not key.endswith("_proj.weight"):
            coded[key] = value
            continue
        inputs = value.shape[1]
        order = draw.permutation(inputs) if shuffled else np.arange(inputs)
        codes, zeros, scales, group, near = rounded(value.numpy(), bits, symmetric, order)
        tensors[key] = torch.from_numpy(np.ascontiguousarray(near))
        parts = awq(codes, zeros, scales) if config["quant_method"] == "awq" else gptq(
            codes, zeros, scales, group, bits, 0 if config.get("checkpoint_format") == "gptq_v2" else 1)
        for end, part in parts.items():
            coded[key.removesuffix("weight") + end] = part.contiguous()
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    packed = folder / "packed"
    packed.mkdir()
    save_file(coded, packed / "model.safetensors", {"format": "pt"})
    about = json.loads((plain / "config.json").read_text())
    about["quantization_config"] = config | {"bits": bits, "group_size": GROUP}
    (packed / "config.json").write_text(json.dumps(about))

    model = transformers.LlamaForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    # Activations are rounded to 8 bits in each product with quantized weights, by up to 1/254 of the largest value of a
    # group. The bound of a tenth of the spread of the logits is a choice: it detects quantized values with a wrong
    # meaning. The exact comparison uses dequantized values. Weights in another order are dequantized in fp32 too.
    for precision, apart in (("fp64", 1e-4), ("fp32", 1e-4 if shuffled else 0.1)):
        ids = [*PROMPT.encode()]
        out = interop.colossal("generate", "--from", packed, "--tokenizer", "bytes", "--prompt", PROMPT, "--max-tokens",
                               "24", "--temperature", "0", "--ids", "--precision", precision).split()
        same = 0
        for ours in map(int, out):
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0, -1]
            gap, spread = float(logits.max() - logits[ours]), float(logits.std())
            assert gap <= apart * spread, (f"{name}, {precision}: token {len(ids)}: {ours} lies {gap:.3g} below the "
                                           f"best, of a spread of {spread:.3g}")
            same += gap == 0
            ids.append(ours)
        print(f"{name}, {precision}: {same} of {len(out)} tokens are transformers'")
    shutil.rmtree(folder)


for bits in (4, 8):
    for symmetric in (True, False):
        for layout in ("gptq", "gptq_v2"):
            run(f"{layout}_{bits}_{symmetric}", {"quant_method": "gptq", "checkpoint_format": layout, "sym": symmetric},
                bits, symmetric, False)
    run(f"order_{bits}", {"quant_method": "gptq", "desc_act": True, "sym": True}, bits, True, True)
run("awq", {"quant_method": "awq", "version": "gemm", "zero_point": True}, 4, False, False)
