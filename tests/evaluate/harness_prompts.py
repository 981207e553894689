#!/usr/bin/env python3
"""Writes what lm-evaluation-harness makes of small files of data, which task_test.cpp compares with ours.

    pip install lm-eval==0.4.13
    python tests/evaluate/harness_prompts.py tests/evaluate/harness_prompts.json
"""

import csv
import io
import json
import sys

import datasets
from lm_eval.api import samplers
from lm_eval.tasks import TaskManager

SHOTS = (0, 1)
ARC = [
    {"id": "q1", "answerKey": "A", "question": {"stem": "Which gas do plants take in?", "choices": [
        {"text": "carbon dioxide", "label": "A"}, {"text": "helium", "label": "B"}, {"text": "neon", "label": "C"},
        {"text": "argon", "label": "D"}]}},
    {"id": "q2", "answerKey": "2", "question": {"stem": "What melts at 0 \u00b0C? ", "choices": [
        {"text": "iron", "label": "1"}, {"text": "ice", "label": "2"}, {"text": "salt", "label": "3"}]}},
]  # yapf: disable
ARC_SHOTS = [{"id": "t1", "answerKey": "A", "question": {"stem": "Where do fish live?", "choices": [
    {"text": "in water", "label": "A"}, {"text": "in sand", "label": "B"}]}}]  # yapf: disable
HELLASWAG = [
    {"activity_label": "Baking bread", "ctx_a": "[header] How to bake [title] Mix flour  and water.", "label": 0,
     "ctx_b": "the DOUGH", "endings": ["rises [substeps] slowly  in   the sun.", " is [title] cold [step].", "sinks.",
                                       "] odd [ ends."]},
    {"activity_label": "Running", "ctx_a": "A man runs.", "ctx_b": "", "label": 3,
     "endings": ["He stops.", "He flies.", "He [a [b] c] sits.", "He melts."]},
]  # yapf: disable
HELLASWAG_SHOTS = [{"activity_label": "Cooking", "ctx_a": "A pot boils.", "ctx_b": "a lid", "label": 1,
                    "endings": ["rattles.", "sings.", "reads.", "sleeps."]}]  # yapf: disable
MMLU = [
    [" Which bone, if any, is in the arm?\n", 'the "humerus"', "femur", "tibia", "skull", "A"],
    ["How many ribs?", "12", "24", "36", "48", "B"],
]
MMLU_SHOTS = [["Where is the heart?", "chest", "head", "leg", "arm", "A"], ["unused?", "a", "b", "c", "d", "D"]]
CHINESE = [
    ["\u6c34\u7a3b\u5c5e\u4e8e\u54ea\u4e00\u79d1\uff1f ", "\u79be\u672c\u79d1", "\u8c46\u79d1", "\u83ca\u79d1",
     "\u767e\u5408\u79d1", "A"],
    ["\u4e00\u5e74\u6709\u51e0\u5b63\uff1f", "\u4e8c", "\u4e09", "\u56db", "\u4e94", "C"],
]  # yapf: disable
CHINESE_SHOTS = [["\u5c0f\u9ea6\u662f\uff1f", "\u7cae\u98df", "\u91d1\u5c5e", "\u77f3\u5934", "\u6c14\u4f53", "A"]]
CMMLU_COLUMNS = ["Question", "A", "B", "C", "D", "Answer"]
CEVAL_COLUMNS = ["question", "A", "B", "C", "D", "answer"]
GSM8K = [
    {"question": "Ann has 2 pens and buys 3. How many?", "answer": "She has 2+3=<<2+3=5>>5 pens.\n#### 5"},
    {"question": "A box holds 1,000 nuts. Two boxes?", "answer": "2*1000=2000\n#### 2,000"},
]


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def table(rows, head=None):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows] if head else rows)
    return text.getvalue()


def leaves(tasks):
    for value in tasks.values():
        yield from leaves(value) if isinstance(value, dict) else [value]


def made(name, splits, shots):
    """The harness's prompt, continuations and target of each item. Shots are the first lines of their split."""
    datasets.load_dataset = lambda *_, **__: datasets.DatasetDict(
        {split: datasets.Dataset.from_list(rows) for split, rows in splits.items()})
    task = next(leaves(TaskManager().load_task_or_group([name])))
    task.sampler = samplers.FirstNSampler(list(task.fewshot_docs()) if shots else [])
    items = []
    for doc in task.eval_docs:
        prompt = task.fewshot_context(doc, num_fewshot=shots)
        requests = task.construct_requests(doc, prompt)
        if isinstance(requests, list):
            continuations = [request.args[1] for request in requests]
            items.append({"prompt": prompt, "continuations": continuations, "right": task.doc_to_target(doc)})
        else:
            items.append({"prompt": prompt, "until": requests.args[1]["until"], "target": task.doc_to_target(doc)})
    return items


def by_shots(name, splits):
    return {str(shots): made(name, splits, shots) for shots in SHOTS}


def of_hub_arc(rows):
    return [{"id": row["id"], "answerKey": row["answerKey"], "question": row["question"]["stem"],
             "choices": {key: [choice[key] for choice in row["question"]["choices"]] for key in ("text", "label")}}
            for row in rows]  # yapf: disable


def of_hub_mmlu(rows):
    return [{"question": row[0], "subject": "anatomy", "choices": row[1:5], "answer": "ABCD".index(row[5])}
            for row in rows]  # yapf: disable


def main():
    files, tasks = {}, {}
    for name in ("Easy", "Challenge"):
        files |= {f"ARC-{name}-Test.jsonl": lines(ARC), f"ARC-{name}-Train.jsonl": lines(ARC_SHOTS)}
        splits = {"train": of_hub_arc(ARC_SHOTS), "validation": of_hub_arc(ARC), "test": of_hub_arc(ARC)}
        tasks[f"arc_{name.lower()}"] = by_shots(f"arc_{name.lower()}", splits)
    files |= {"hellaswag_val.jsonl": lines(HELLASWAG), "hellaswag_train.jsonl": lines(HELLASWAG_SHOTS)}
    of_hub = [[{**row, "label": str(row["label"])} for row in rows] for rows in (HELLASWAG_SHOTS, HELLASWAG)]
    tasks["hellaswag"] = by_shots("hellaswag", dict(zip(("train", "validation"), of_hub)))
    files |= {"mmlu/test/anatomy_test.csv": table(MMLU), "mmlu/dev/anatomy_dev.csv": table(MMLU_SHOTS)}
    tasks["mmlu_anatomy"] = by_shots("mmlu_anatomy", {"dev": of_hub_mmlu(MMLU_SHOTS), "test": of_hub_mmlu(MMLU)})
    for file, rows, extra in (("test", CHINESE, False), ("val", CHINESE, False), ("dev", CHINESE_SHOTS, True)):
        numbered = [[number, *row] for number, row in enumerate(rows)]
        if file != "val":
            files[f"cmmlu/{file}/agronomy.csv"] = table(numbered, ["", *CMMLU_COLUMNS])
        if file != "test":
            explained = [[*row, "why"] for row in numbered] if extra else numbered
            head = ["id", *CEVAL_COLUMNS] + ["explanation"] * extra
            files[f"ceval/{file}/accountant_{file}.csv"] = table(explained, head)
    of_hub = {names[0]: [[dict(zip(names, row)) for row in rows] for rows in (CHINESE_SHOTS, CHINESE)]
              for names in (CMMLU_COLUMNS, CEVAL_COLUMNS)}  # yapf: disable
    tasks["cmmlu_agronomy"] = by_shots("cmmlu_agronomy", dict(zip(("dev", "test"), of_hub["Question"])))
    tasks["ceval_accountant"] = by_shots("ceval-valid_accountant", dict(zip(("dev", "val"), of_hub["question"])))
    files["gsm8k-test.jsonl"] = lines(GSM8K)
    others = [made("gsm8k", {"train": [GSM8K[1 - i]], "test": [GSM8K[i]]}, 1)[0] for i in (0, 1)]
    tasks["gsm8k"] = {"0": made("gsm8k", {"train": GSM8K, "test": GSM8K}, 0), "1": others}
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump({"files": files, "tasks": tasks}, out, ensure_ascii=False, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
