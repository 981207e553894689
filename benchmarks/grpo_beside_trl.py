"""A GRPO step of the sorting task of examples/sort_grpo.toml by colossal and by TRL, in seconds.

    python benchmarks/grpo_beside_trl.py --colossal build/release/colossal [--from FOLDER] [--rounds 2]

Both start from the same weights: a tiny LLaMA that examples/sort_sft.toml trains first, or the Hugging Face folder
--from, whose tokens must be bytes. Both draw --prompts x --answers answers of at most --tokens tokens at temperature 1,
score an answer by comparing its digits, and make one update in fp32 with AdamW and without a reference model. TRL draws
by `generate` of transformers; its reward is a function of Python, ours is the verifier `exact`. The sides run in turns,
each in a process of its own with --threads threads. The figure of a process is the median of its steps after the first
--warmup. --flag is given to colossal, such as --flag=--rollout.panels=off. Needs trl and transformers.

Prints a JSON object: for each side and round the seconds of a step, the peak of resident memory in MiB, and the mean
reward and answer length of the measured steps; of colossal also every other metric that counts seconds. `speed` is
TRL's seconds over ours.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import python_sides as sides

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import sort_digits  # noqa: E402

RATE = 1e-4


def run(command: list[Any], **more: str) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env={**os.environ, **more})
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def write_lines(path: pathlib.Path, kind: str, count: int, seed: int) -> pathlib.Path:
    path.write_text("".join(line + "\n" for line in sort_digits.lines_of(kind, 8, count, seed)), encoding="utf-8")
    return path


def make_model(options: argparse.Namespace, folder: pathlib.Path) -> pathlib.Path:
    """Trains the first stage and returns its Hugging Face folder."""
    lines = write_lines(folder / "sft.jsonl", "sft", 20000, 0)
    run([options.colossal, "train", ROOT / "examples/sort_sft.toml", f"--data.path={lines}", "--training.tasks=",
         "--training.tasks_data=",
         "--training.sample_prompt=", f"--run.folder={folder / 'sft'}"])
    run([options.colossal, "export", "--from", folder / "sft", "--to", folder / "model"])
    return folder / "model"


def with_trl(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    import datasets
    import torch
    import transformers
    import trl

    torch.set_num_threads(options.threads)
    seconds: list[float] = []
    rewards: list[float] = []
    lengths: list[float] = []

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begin = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.begin)

    def is_sorted(completions: list[str], answer: list[str], completion_ids: list[list[int]],
                  **_: Any) -> list[float]:
        scores = [float(text.strip() == right) for text, right in zip(completions, answer, strict=True)]
        rewards.append(statistics.fmean(scores))
        lengths.append(statistics.fmean(len(ids) for ids in completion_ids))
        return scores

    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    tokenizer.pad_token = tokenizer.eos_token
    settings = trl.GRPOConfig(
        output_dir=str(folder / "trl"), max_steps=options.steps, num_generations=options.answers,
        per_device_train_batch_size=options.prompts * options.answers, max_completion_length=options.tokens,
        temperature=1.0, beta=0.0, num_iterations=1, loss_type="grpo", scale_rewards="group", learning_rate=RATE,
        lr_scheduler_type="constant", adam_beta2=0.95, use_cpu=True, bf16=False, gradient_checkpointing=False,
        report_to=[], logging_strategy="no", save_strategy="no", dataloader_pin_memory=False, disable_tqdm=True)
    lines = write_lines(folder / "trl.jsonl", "prompts", options.prompts * options.steps, 1).read_text().splitlines()
    trainer = trl.GRPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32), args=settings,
        reward_funcs=is_sorted, train_dataset=datasets.Dataset.from_list([json.loads(line) for line in lines]),
        processing_class=tokenizer, callbacks=[Clock()])
    trainer.train()
    return {"seconds": statistics.median(seconds[options.warmup:]),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "reward": statistics.fmean(rewards[options.warmup:]),
            "answer_tokens": statistics.fmean(lengths[options.warmup:])}


def with_colossal(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    lines = write_lines(folder / "prompts.jsonl", "prompts", options.prompts * options.steps, 1)
    output = folder / "grpo"
    run([options.colossal, "train", ROOT / "examples/sort_grpo.toml", "--overwrite", f"--run.folder={output}",
         f"--model.from={options.model}", f"--data.path={lines}", f"--rollout.prompts={options.prompts}",
         f"--rollout.answers={options.answers}", f"--rollout.max_tokens={options.tokens}",
         f"--training.steps={options.steps}", f"--optimizer.learning_rate={RATE}", "--training.tasks=",
         "--training.tasks_data=", "--training.evaluate_every=0", *options.flag], OMP_NUM_THREADS=str(options.threads))
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()][options.warmup:]
    clocks = sorted({key for step in steps for key in step if key == "seconds" or key.endswith("_seconds")})
    return {**{key: statistics.median(step[key] for step in steps if key in step) for key in clocks},
            "peak_mib": max(step["peak_bytes"] for step in steps) / 2**20,
            "reward": statistics.fmean(step["reward"] for step in steps),
            "answer_tokens": statistics.fmean(step["answer_tokens"] for step in steps)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--colossal", default="build/release/colossal")
    parser.add_argument("--from", dest="model", type=pathlib.Path, help="Hugging Face folder; default: trained first")
    parser.add_argument("--flag", action="append", default=[], metavar="--KEY=VALUE", help="another key of colossal")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=12, help="most new tokens of an answer")
    parser.add_argument("--steps", type=int, default=25, help="steps of a process")
    parser.add_argument("--warmup", type=int, default=5, help="first steps, which are not measured")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", choices=["trl", "colossal"], help="one side, one process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = options.model or make_model(options, folder)
        if options.only:
            options.model = model
            print(json.dumps((with_trl if options.only == "trl" else with_colossal)(options, folder)))
            return

        def side(name: str) -> dict[str, Any]:
            told = [f"--{key}={getattr(options, key)}" for key in ("colossal", "prompts", "answers", "tokens", "steps",
                                                                   "warmup", "threads")]
            told += [f"--flag={flag}" for flag in options.flag]
            said = run([sys.executable, __file__, *told, "--from", model, "--only", name],
                       OMP_NUM_THREADS=str(options.threads))
            result: dict[str, Any] = json.loads(said.splitlines()[-1])
            return result

        results = sides.in_turns({"colossal": lambda: side("colossal"), "trl": lambda: side("trl")}, options.rounds)
    speed = sides.ratios(sides.column(results["trl"], "seconds"), sides.column(results["colossal"], "seconds"))
    print(json.dumps({"speed": speed, **results, "machine": sides.machine(),
                      "versions": sides.versions("trl", "transformers", "torch")}, indent=1))


if __name__ == "__main__":
    main()
