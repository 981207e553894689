#!/usr/bin/env python3
"""Scores of one model by `colossal evaluate` and by lm-evaluation-harness, on the same files, in the same run.

    pip install "lm-eval[hf]==0.4.13"
    python benchmarks/evaluation_beside_lm_eval.py --colossal build/release/colossal --from FOLDER --data EVAL \\
        --tasks mmlu_anatomy,hellaswag,gsm8k --limit 100

FOLDER is a Hugging Face folder, and EVAL has the files that docs/how-to/evaluate.md lists. The harness reads them
instead of the Hub; its shots are the first other lines, as ours are. The script prints both sides' metrics, the largest
difference of a sum of log-probabilities, the number of answers that differ, and the time that each side took for
loading and running. Both sides have the same number of threads.
"""

import argparse
import csv
import json
import os
import pathlib
import subprocess
import tempfile
import time

LETTERS = "ABCD"


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def table(path, names=None):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, names))


def mmlu(path):
    rows = table(path, ["question", *LETTERS, "answer"])
    rows = [row for row in rows if row["answer"] != "answer"]  # a header, which copies of the files have
    return [{"question": row["question"], "choices": [row[letter] for letter in LETTERS],
             "answer": LETTERS.index(row["answer"]) if row["answer"] in LETTERS else int(row["answer"])}
            for row in rows]


def splits(task, data):
    """The data set of a task as the Hub has it, from the files of its publisher."""
    if task == "gsm8k":
        rows = lines(data / "gsm8k-test.jsonl")
        return {"train": rows, "test": rows}
    if task == "hellaswag":
        names = {"train": "hellaswag_train.jsonl", "validation": "hellaswag_val.jsonl"}
        if not (data / names["train"]).exists():
            names["train"] = names["validation"]  # the harness wants this split, even without shots
        return {split: [{**row, "label": str(row["label"])} for row in lines(data / name)]
                for split, name in names.items()}
    name, subject = task.split("_", 1)
    if name == "mmlu":
        return {"dev": mmlu(data / f"mmlu/dev/{subject}_dev.csv"), "test": mmlu(data / f"mmlu/test/{subject}_test.csv")}
    if name == "cmmlu":
        return {split: table(data / f"cmmlu/{split}/{subject}.csv") for split in ("dev", "test")}
    if name == "ceval-valid":
        return {split: table(data / f"ceval/{split}/{subject}_{split}.csv") for split in ("dev", "val")}
    raise SystemExit(f"no files for {task}")


def theirs(arguments, task):
    """The harness's results, its scores or answers of each item, and its seconds."""
    import datasets
    import lm_eval
    from lm_eval.api import samplers
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    rows = splits(task, arguments.data)
    datasets.load_dataset = lambda *_, **__: datasets.DatasetDict(
        {split: datasets.Dataset.from_list(docs) for split, docs in rows.items()})

    class OtherLines(samplers.ContextSampler):
        """The first shots that are not the item itself."""

        def sample(self, n, eval_doc=None, df=None, **_):
            docs = list(self.df if df is None else df)
            return [doc for doc in docs if doc != self.now][:n]

    began = time.time()
    model = HFLM(pretrained=arguments.model, dtype="float32", batch_size=arguments.batch, device="cpu")
    manager = TaskManager()
    if arguments.shots > 0 and task == "gsm8k":
        from lm_eval.api.task import ConfigurableTask
        plain = ConfigurableTask.fewshot_context

        def with_others(self, doc, num_fewshot, *args, **kwargs):
            self.sampler = OtherLines(list(self.fewshot_docs()))
            self.sampler.now, self.sampler.df = doc, list(self.fewshot_docs())
            return plain(self, doc, num_fewshot, *args, **kwargs)

        ConfigurableTask.fewshot_context = with_others
    result = lm_eval.simple_evaluate(model=model, tasks=[task], num_fewshot=arguments.shots, limit=arguments.limit,
                                     task_manager=manager, log_samples=True, bootstrap_iters=0)
    seconds = time.time() - began
    samples = result["samples"][task]
    samples = sorted((sample for sample in samples if sample["filter"] == samples[0]["filter"]),
                     key=lambda sample: sample["doc_id"])
    kept = [[response[0][0] for response in sample["resps"]] for sample in samples]
    if task == "gsm8k":
        kept = [sample["resps"][0][0] for sample in samples]
    return result["results"][task], kept, seconds


def ours(arguments, task):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "samples.jsonl")
        began = time.time()
        name = task.replace("ceval-valid", "ceval")
        words = [arguments.colossal, "evaluate", "--from", arguments.model, "--tasks", name, "--data",
                 arguments.data, "--shots", str(arguments.shots), "--samples", file, "--json"]
        words += ["--limit", str(arguments.limit)] if arguments.limit else []
        out = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
        seconds = time.time() - began
        samples = lines(file)
    result = next(iter(json.loads(out).values()))
    return result, [sample.get("scores", sample.get("answer")) for sample in samples], seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--colossal", default="build/release/colossal")
    parser.add_argument("--from", dest="model", required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--tasks", default="mmlu_anatomy,hellaswag,gsm8k")
    parser.add_argument("--shots", type=int, default=0)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--batch", type=int, default=16, help="batch of the harness")
    arguments = parser.parse_args()
    os.environ["HF_DATASETS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"
    for task in arguments.tasks.split(","):
        our_result, our_items, our_seconds = ours(arguments, task)
        their_result, their_items, their_seconds = theirs(arguments, task)
        print(f"\n{task}, {arguments.shots} shots, {len(our_items)} items")
        print("  ours  ", json.dumps(our_result))
        print("  theirs", json.dumps({key: value for key, value in their_result.items() if "," in key}))
        if isinstance(our_items[0], str):
            differ = sum(a.strip() != b.strip() for a, b in zip(our_items, their_items, strict=True))
            print(f"  answers that differ: {differ}")
        else:
            pairs = zip(our_items, their_items, strict=True)
            worst = max(abs(a - b) for ours_, theirs_ in pairs for a, b in zip(ours_, theirs_, strict=True))
            print(f"  largest difference of a sum of log-probabilities: {worst:.3g}")
        print(f"  seconds: ours {our_seconds:.1f}, theirs {their_seconds:.1f}: {their_seconds / our_seconds:.2f}x")


if __name__ == "__main__":
    main()
