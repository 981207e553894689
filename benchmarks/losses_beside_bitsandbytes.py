"""The losses of a few QLoRA steps by colossal and by peft on bitsandbytes' NF4, from the same weights and samples.

    python benchmarks/losses_beside_bitsandbytes.py --colossal build/release/colossal --tokenizer FOLDER --text FILE

Three bases with the same values: the folder that bitsandbytes writes, whose codes colossal keeps; the 16-bit folder
with adapter.base = "nf4", whose codes colossal makes; and the model in bitsandbytes' own memory. Each with single and
double quantization. All train the same adapters, which peft draws, on all samples as one batch. --tokenizer: a folder
with GPT-2's encoder.json and vocab.bpe; the model is a tiny LLaMA in fp32. --text: its first lines are the samples.
AdamW without weight decay and without clipping, at a constant rate. Needs bitsandbytes, peft and transformers; no GPU.

Prints a JSON object for each quantization: the lists of losses, and their largest relative differences from peft's.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

STEPS = 4
RATE = 1e-3


def make_models(tokenizer: str, folder: pathlib.Path) -> None:
    """Writes the 16-bit model, bitsandbytes' folders of it, and new adapters."""
    import peft
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=50257, hidden_size=128, intermediate_size=320, num_hidden_layers=3,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                                      tie_word_embeddings=True, bos_token_id=50256, eos_token_id=50256)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    source = pathlib.Path(tokenizer)
    words = transformers.GPT2TokenizerFast(str(source / "encoder.json"), str(source / "vocab.bpe"))
    for name in ("plain", "single", "double"):
        words.save_pretrained(folder / name)
    model.save_pretrained(folder / "plain")
    for name in ("single", "double"):
        loaded(folder / "plain", name).save_pretrained(folder / name)
    adapters = peft.get_peft_model(
        model, peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    adapters.save_pretrained(folder / "adapters")


def loaded(path: pathlib.Path, kind: str) -> Any:
    import torch
    import transformers

    codes = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                            bnb_4bit_compute_dtype=torch.float32,
                                            bnb_4bit_use_double_quant=kind == "double")
    return transformers.AutoModelForCausalLM.from_pretrained(path, quantization_config=codes, dtype=torch.float32,
                                                             device_map="cpu")


def with_peft(folder: pathlib.Path, kind: str, samples: list[dict[str, list[int]]]) -> list[float]:
    import peft
    import torch

    model = peft.PeftModel.from_pretrained(loaded(folder / "plain", kind), folder / "adapters", is_trainable=True,
                                           autocast_adapter_dtype=True)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        count = 0
        for sample in samples:
            ids, labels = (torch.tensor([sample[key]]) for key in ("ids", "labels"))
            scores = model(input_ids=ids).logits[:, :-1].float()
            total = total + torch.nn.functional.cross_entropy(scores[0], labels[0, 1:], ignore_index=-100,
                                                              reduction="sum").double()
            count += int((labels[:, 1:] != -100).sum())
        (total / count).backward()
        losses.append(float(total.detach()) / count)
        optimizer.step()
    return losses


def with_colossal(options: argparse.Namespace, folder: pathlib.Path, base: str, flags: list[str]) -> list[float]:
    config, run = folder / "run.toml", folder / "run"
    config.write_text("[alignment]\nmethod = \"sft\"\n")
    done = subprocess.run([
        options.colossal, "train",
        str(config), f"--model.from={folder / base}", f"--data.path={folder / 'lines.jsonl'}", "--data.held_out=0",
        "--data.sequence=64", "--data.packing=false", f"--training.batch_size={options.samples}",
        f"--training.steps={STEPS}", "--training.evaluate_batches=0", "--training.sample_tokens=0",
        f"--optimizer.learning_rate={RATE}", "--optimizer.schedule.name=constant", "--optimizer.warmup_steps=0",
        "--optimizer.weight_decay=0", "--training.clip=0", "--adapter.kind=lora",
        f"--adapter.from={folder / 'adapters'}", f"--run.folder={run}", "--overwrite", *flags
    ], capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="2"))
    if done.returncode:
        sys.exit(done.stderr)
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--colossal", default="build/release/colossal")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--samples", type=int, default=8)
    options = parser.parse_args()
    texts = [line.strip() for line in pathlib.Path(options.text).read_text(encoding="utf-8").splitlines()]
    texts = [text for text in texts if 20 < len(text) < 120][:options.samples]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_models(options.tokenizer, folder)
        lines = folder / "lines.jsonl"
        lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        labels = subprocess.run(
            [options.colossal, "tokenize", "--tokenizer", folder / "plain", "--chat", "--labels", lines],
            capture_output=True, text=True, check=True).stdout
        samples = [json.loads(line) for line in labels.splitlines()]
        for kind in ("single", "double"):
            theirs = with_peft(folder, kind, samples)
            codes = with_colossal(options, folder, kind, [])
            own = with_colossal(options, folder, "plain",
                                ["--adapter.base=nf4", f"--adapter.double={'true' if kind == 'double' else 'false'}"])
            far = {
                key: max(abs(a - b) / abs(b) for a, b in zip(losses, theirs, strict=True))
                for key, losses in (("their_codes", codes), ("own_codes", own))
            }
            print(json.dumps({kind: {"peft": theirs, "their_codes": codes, "own_codes": own, "difference": far}}))


if __name__ == "__main__":
    main()
