"""The losses of a few steps of each method of alignment by colossal and by TRL, from the same weights and samples.

    python benchmarks/losses_beside_trl.py --colossal build/release/colossal --pairs hh-rlhf.jsonl.gz --tokenizer FOLDER

Each step takes all samples as one batch, so that their order does not matter. --tokenizer: a folder with GPT-2's
encoder.json and vocab.bpe; the model is a tiny GPT-2 in fp32. AdamW without weight decay and without clipping, at a
constant rate. Needs trl and transformers.

Prints a JSON object for each method: both lists of losses, and their largest relative difference. TRL's SimPO and ORPO
put a begin token before each prompt, and its ORPO counts the prompt in its likelihood, so these losses differ.
"""

import argparse
import contextlib
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

STEPS = 4
RATE = 1e-3
# The keys of colossal, and the trainer of TRL with its options.
METHODS: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "sft": (["--alignment.method=sft", "--data.packing=false"], "sft", {"completion_only_loss": True}),
    "dpo": (["--alignment.method=dpo"], "dpo", {"loss_type": "sigmoid"}),
    "robust": (["--alignment.method=dpo", "--alignment.loss=robust", "--alignment.smoothing=0.1"], "dpo",
               {"loss_type": "robust", "label_smoothing": 0.1}),
    "hinge": (["--alignment.method=dpo", "--alignment.loss=hinge"], "dpo", {"loss_type": "hinge"}),
    "ipo": (["--alignment.method=ipo"], "dpo", {"loss_type": "ipo"}),
    "simpo": (["--alignment.method=simpo"], "cpo",
              {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 1.0}),
    "orpo": (["--alignment.method=orpo"], "orpo", {"beta": 0.1}),
    "kto": (["--alignment.method=kto"], "kto", {}),
}  # yapf: disable


def pairs_of(path: str, count: int) -> list[dict[str, str]]:
    """Returns short pairs of answers to the last turn of a dialogue."""
    pairs, turn = [], "\n\nAssistant:"
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        for line in file:
            both = json.loads(line)
            (prompt, _, chosen), (other, _, rejected) = (both[name].rpartition(turn) for name in ("chosen", "rejected"))
            if prompt == other and chosen.strip() != rejected.strip() and chosen.strip() and rejected.strip():
                if len(prompt) + max(len(chosen), len(rejected)) < 300:
                    pairs.append({"prompt": prompt + turn, "chosen": chosen, "rejected": rejected})
    return pairs[:count]


def samples_of(method: str, pairs: list[dict[str, str]]) -> list[dict[str, Any]]:
    if method == "sft":
        return [{"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in pairs]
    if method == "kto":
        return [{"prompt": pair["prompt"], "completion": pair["chosen" if i % 2 else "rejected"], "label": i % 2 == 1}
                for i, pair in enumerate(pairs)]  # yapf: disable
    return list(pairs)


def with_trl(method: str, folder: pathlib.Path, samples: list[dict[str, Any]]) -> list[float]:
    import datasets
    import torch
    import transformers
    import trl
    from trl.experimental import cpo, orpo

    _, trainer, own = METHODS[method]
    make, settings = {"sft": (trl.SFTTrainer, trl.SFTConfig), "dpo": (trl.DPOTrainer, trl.DPOConfig),
                      "cpo": (cpo.CPOTrainer, cpo.CPOConfig), "orpo": (orpo.ORPOTrainer, orpo.ORPOConfig),
                      "kto": (trl.KTOTrainer, trl.KTOConfig)}[trainer]  # yapf: disable
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    losses: list[float] = []

    class Losses(transformers.TrainerCallback):  # type: ignore[misc]

        def on_log(self, *rest: Any, logs: dict[str, Any], **__: Any) -> None:
            if "loss" in logs:
                losses.append(float(logs["loss"]))

    options = settings(output_dir=str(folder / "trl"), max_length=256, max_steps=STEPS,
                       per_device_train_batch_size=len(samples), learning_rate=RATE, lr_scheduler_type="constant",
                       adam_beta2=0.95, weight_decay=0.0, max_grad_norm=0.0, use_cpu=True, bf16=False,
                       gradient_checkpointing=False, report_to=[], logging_steps=1, save_strategy="no",
                       dataloader_pin_memory=False, disable_tqdm=True, **own)  # yapf: disable
    with contextlib.redirect_stdout(sys.stderr):
        make(model=transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), args=options,
             train_dataset=datasets.Dataset.from_list(samples), processing_class=tokenizer,
             callbacks=[Losses()]).train()  # yapf: disable
    return losses


def with_colossal(program: str, method: str, folder: pathlib.Path, samples: list[dict[str, Any]]) -> list[float]:
    data, run, config = folder / "lines.jsonl", folder / f"run-{method}", folder / "run.toml"
    data.write_text("".join(json.dumps(line) + "\n" for line in samples), encoding="utf-8")
    config.write_text("[alignment]\n", encoding="utf-8")
    done = subprocess.run([
        program, "train", str(config), f"--model.from={folder}", f"--data.path={data}", "--data.held_out=0",
        "--data.sequence=256", f"--training.batch_size={len(samples)}", f"--training.steps={STEPS}",
        f"--optimizer.learning_rate={RATE}", "--optimizer.schedule.name=constant", "--optimizer.warmup_steps=0",
        "--optimizer.weight_decay=0", "--training.clip=0", "--training.evaluate_batches=0",
        "--training.sample_tokens=0", f"--run.folder={run}", *METHODS[method][0]
    ], capture_output=True, text=True)  # yapf: disable
    if done.returncode:
        sys.exit(done.stderr)
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--colossal", default="build/release/colossal")
    parser.add_argument("--pairs", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--samples", type=int, default=8)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch
    import transformers
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder, source = pathlib.Path(name), pathlib.Path(options.tokenizer)
        config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, n_positions=256, resid_pdrop=0, embd_pdrop=0,
                                         attn_pdrop=0, initializer_range=0.2)  # yapf: disable
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
        transformers.GPT2TokenizerFast(str(source / "encoder.json"), str(source / "vocab.bpe")).save_pretrained(folder)
        for method in options.methods:
            samples = samples_of(method, pairs_of(options.pairs, options.samples))
            ours, theirs = with_colossal(options.colossal, method, folder, samples), with_trl(method, folder, samples)
            difference = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(ours, theirs, strict=True))
            print(json.dumps({"method": method, "colossal": ours, "trl": theirs, "difference": difference}), flush=True)


if __name__ == "__main__":
    main()
