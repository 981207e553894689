"""Fine-tuning of GPT-2 124M by colossal and by TRL, in tokens per second without padding, or in pairs per second.

    python benchmarks/fine_tuning_beside_trl.py --colossal build/release/colossal --data self-instruct.jsonl ... \\
        --tokenizer FOLDER
    python benchmarks/fine_tuning_beside_trl.py --method dpo --data hh-rlhf.jsonl.gz ...

Both train the same folder in fp32 with AdamW. The model has random weights, which does not change the work of a step.
--method sft: all weights, completions alone, packed by best fit into rows of --sequence tokens, --rows rows a step.
lora: the same with adapters of rank 16 on all linear layers; TRL takes peft's. dpo: --rows pairs a step, texts of at
most --sequence tokens, and the reference's log-probabilities are computed once before the first step.
--data: files with `instruction` and `instances`; for dpo with `chosen` and `rejected`, dialogues as texts.
--tokenizer: a folder with GPT-2's encoder.json and vocab.bpe. --flag is given to colossal, such as
--flag=--memory.host=1GiB. Needs trl, peft and transformers.

Prints a JSON object: the rate and the peak of resident memory in MiB of each system, and the ratio of the rates.
"""

import argparse
import gzip
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


def pairs_of(paths: list[str]) -> list[dict[str, str]]:
    """Returns pairs of answers to the last turn of a dialogue."""
    pairs, turn = [], "\n\nAssistant:"
    for path in paths:
        with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
            for line in file:
                both = json.loads(line)
                (prompt, _, chosen), (other, _, rejected) = (both[name].rpartition(turn)
                                                             for name in ("chosen", "rejected"))
                if prompt == other and chosen.strip() and rejected.strip() and chosen.strip() != rejected.strip():
                    pairs.append({"prompt": prompt + turn, "chosen": chosen, "rejected": rejected})
    return pairs


def samples_of(options: argparse.Namespace) -> list[dict[str, str]]:
    if options.method != "dpo":
        return lines_of(options.data)
    # A token of English has about four characters, so both systems read these pairs whole.
    most = 3 * options.sequence
    return [pair for pair in pairs_of(options.data)
            if len(pair["prompt"]) + max(len(pair["chosen"]), len(pair["rejected"])) < most][:options.pairs]


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
    units: list[int] = []
    is_dpo = options.method == "dpo"
    base: Any = trl.DPOTrainer if is_dpo else trl.SFTTrainer

    class Timed(base):  # type: ignore[misc]

        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            mask = inputs.get("attention_mask")
            tokens = int(mask.sum()) if mask is not None else inputs["input_ids"].numel()
            units.append(options.rows if is_dpo else tokens)
            return super().training_step(model, inputs, *rest)

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begin = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.begin)

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    common = dict(output_dir=str(folder / "trl"), max_length=options.sequence, max_steps=options.steps,
                  per_device_train_batch_size=options.rows, learning_rate=1e-4, use_cpu=True, bf16=False,
                  gradient_checkpointing=False, report_to=[], logging_strategy="no", save_strategy="no",
                  dataloader_pin_memory=False)
    settings = trl.DPOConfig(precompute_ref_log_probs=True, **common) if is_dpo else trl.SFTConfig(
        packing=True, packing_strategy="bfd", completion_only_loss=True, **common)
    further: dict[str, Any] = {}
    if options.method == "lora":
        import peft
        further["peft_config"] = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear",
                                                 task_type="CAUSAL_LM")
    trainer = Timed(model=transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), args=settings,
                    train_dataset=datasets.Dataset.from_list(samples_of(options)), processing_class=tokenizer,
                    callbacks=[Clock()], **further)
    trainer.train()
    rates = [count / second for count, second in zip(units, seconds)][options.warmup:]
    return {"rate": statistics.median(rates), "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def with_colossal(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, float]:
    data = folder / "lines.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in samples_of(options)), encoding="utf-8")
    run = folder / "run"
    config = folder / "run.toml"
    method = "dpo" if options.method == "dpo" else "sft"
    config.write_text(f"[alignment]\nmethod = \"{method}\"\n", encoding="utf-8")
    own = {"sft": [], "lora": ["--adapter.kind=lora", "--adapter.rank=16"],
           "dpo": ["--reference.precompute=true"]}[options.method]
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    done = subprocess.run(
        [options.colossal, "train", str(config), f"--model.from={folder}", f"--data.path={data}", "--data.held_out=0",
         f"--data.sequence={options.sequence}", f"--training.batch_size={options.rows}",
         f"--training.steps={options.steps}", "--optimizer.learning_rate=1e-4", "--training.evaluate_batches=0",
         "--training.sample_tokens=0", f"--run.folder={run}", *own, *options.flag], env=environment,
        capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][options.warmup:]
    rates = [options.rows / step["seconds"] if method == "dpo" else step["tokens_per_second"] for step in steps]
    return {"rate": statistics.median(rates), "peak_mib": max(step["peak_bytes"] for step in steps) / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--colossal", default="build/release/colossal")
    parser.add_argument("--method", choices=["sft", "lora", "dpo"], default="sft")
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--pairs", type=int, default=200, help="pairs of the file that dpo uses")
    parser.add_argument("--flag", action="append", default=[])
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
            if system not in results or result["rate"] > results[system]["rate"]:
                results[system] = result
    results["ratio"] = results["colossal"]["rate"] / results["trl"]["rate"]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
