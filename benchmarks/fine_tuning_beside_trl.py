"""Supervised fine-tuning of GPT-2 124M by colossal and by TRL, in tokens per second without padding.

    python benchmarks/fine_tuning_beside_trl.py --colossal build/release/colossal --data self-instruct.jsonl ... \\
        --tokenizer FOLDER

Both train the same folder in fp32 with AdamW, packed by best fit into rows of --sequence tokens, --rows rows a step,
completions alone. --data: files with `instruction` and `instances`. --tokenizer: a folder with GPT-2's encoder.json
and vocab.bpe. The model has random weights, which does not change
the work of a step. Needs trl and transformers.

Prints a JSON object: tokens per second and the peak of resident memory in MiB of each system, and the ratio.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any


def lines_of(paths: list[str]) -> list[dict[str, str]]:
    """Returns prompts with completions."""
    lines = []
    for path in paths:
        for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
            task = json.loads(line)
            for instance in task["instances"]:
                prompt = f"{task['instruction']}\n{instance['input']}".strip() + "\n\n"
                if instance["output"].strip():
                    lines.append({"prompt": prompt, "completion": instance["output"].strip()})
    return lines


def make_model(folder: pathlib.Path, tokenizer: str) -> None:
    import transformers

    config = transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    source = pathlib.Path(tokenizer)
    transformers.GPT2TokenizerFast(str(source / "encoder.json"), str(source / "vocab.bpe")).save_pretrained(folder)


def with_trl(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, float]:
    import datasets
    import torch
    import transformers
    import trl

    torch.set_num_threads(options.threads)
    seconds: list[float] = []
    tokens: list[int] = []

    class Timed(trl.SFTTrainer):  # type: ignore[misc]

        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            mask = inputs.get("attention_mask")
            tokens.append(int(mask.sum()) if mask is not None else inputs["input_ids"].numel())
            return super().training_step(model, inputs, *rest)

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begin = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.begin)

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    settings = trl.SFTConfig(output_dir=str(folder / "trl"), max_length=options.sequence, packing=True,
                             packing_strategy="bfd", completion_only_loss=True, max_steps=options.steps,
                             per_device_train_batch_size=options.rows, learning_rate=1e-4, use_cpu=True, bf16=False,
                             gradient_checkpointing=False, report_to=[], logging_strategy="no", save_strategy="no",
                             dataloader_pin_memory=False)
    trainer = Timed(model=transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), args=settings,
                    train_dataset=datasets.Dataset.from_list(lines_of(options.data)), processing_class=tokenizer,
                    callbacks=[Clock()])
    trainer.train()
    rates = [count / second for count, second in zip(tokens, seconds)][options.warmup:]
    return {"tokens_per_second": statistics.median(rates),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def with_colossal(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, float]:
    data = folder / "lines.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines_of(options.data)), encoding="utf-8")
    run = folder / "run"
    config = folder / "sft.toml"
    config.write_text("[alignment]\nmethod = \"sft\"\n", encoding="utf-8")
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    done = subprocess.run(
        [options.colossal, "train", str(config), f"--model.from={folder}", f"--data.path={data}", "--data.held_out=0",
         f"--data.sequence={options.sequence}", f"--training.batch_size={options.rows}",
         f"--training.steps={options.steps}", "--optimizer.learning_rate=1e-4", "--training.evaluate_batches=0",
         "--training.sample_tokens=0", f"--run.folder={run}"], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][options.warmup:]
    return {"tokens_per_second": statistics.median(step["tokens_per_second"] for step in steps),
            "peak_mib": max(step["peak_bytes"] for step in steps) / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--colossal", default="build/release/colossal")
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["trl", "colossal"])
    options = parser.parse_args()
    if options.only:  # each system in a process of its own
        folder = pathlib.Path(os.environ["FINE_TUNING_FOLDER"])
        print(json.dumps((with_trl if options.only == "trl" else with_colossal)(options, folder)))
        return
    with tempfile.TemporaryDirectory() as name:
        make_model(pathlib.Path(name), options.tokenizer)
        results = {}
        for system in ("colossal", "trl", "colossal", "trl"):
            done = subprocess.run([sys.executable, *sys.argv, "--only", system], stdout=subprocess.PIPE, text=True,
                                  env=dict(os.environ, FINE_TUNING_FOLDER=name), check=True)
            result = json.loads(done.stdout.splitlines()[-1])
            shutil.rmtree(pathlib.Path(name) / "run", ignore_errors=True)
            if result["tokens_per_second"] > results.get(system, result)["tokens_per_second"] or system not in results:
                results[system] = result
    results["ratio"] = results["colossal"]["tokens_per_second"] / results["trl"]["tokens_per_second"]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
