"""Writes the folders that bitsandbytes_test.cpp reads: a tiny LLaMA that bitsandbytes has quantized to NF4, with and
without double quantization. expected.safetensors of each holds the weights before (x.weight) and the values that
bitsandbytes reads back (x.values).

    pip install bitsandbytes==0.50.2 transformers==5.23.0
    python tests/checkpoint/bitsandbytes/make_folders.py"""

import pathlib
import tempfile

import bitsandbytes.functional
import torch
import transformers
from safetensors.torch import load_file, save_file

here = pathlib.Path(__file__).parent


def write(name, dtype, double):
    torch.manual_seed(1)
    # Rows of 16, 32 or 48 elements are read back with wrong maxima by bitsandbytes 0.50.2 on processors with AVX-512.
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=20, intermediate_size=36, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, tie_word_embeddings=False)
    with tempfile.TemporaryDirectory() as plain:
        transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(plain)
        quantization = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            plain, quantization_config=quantization, dtype=dtype)
        weights = load_file(pathlib.Path(plain) / "model.safetensors")
    model.save_pretrained(here / name)
    (here / name / "generation_config.json").unlink()
    expected = {}
    for layer, module in model.named_modules():
        if hasattr(getattr(module, "weight", None), "quant_state"):
            expected[f"{layer}.weight"] = weights[f"{layer}.weight"]
            expected[f"{layer}.values"] = bitsandbytes.functional.dequantize_4bit(
                module.weight.data, module.weight.quant_state).contiguous()
    save_file(expected, here / name / "expected.safetensors")


write("single", torch.float32, False)
write("double", torch.bfloat16, True)
