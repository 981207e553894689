"""Writes lines that ask for the digits of a number in order, for examples/sort_sft.toml and examples/sort_grpo.toml.

    python3 examples/sort_digits.py --kind sft --count 20000 --output runs/sort-data/sft.jsonl
    python3 examples/sort_digits.py --kind prompts --count 20000 --seed 1 --output runs/sort-data/prompts.jsonl
    python3 examples/sort_digits.py --kind prompts --count 300 --seed 2 --output runs/sort-data/held_out.jsonl

sft: {"prompt": "31415926=", "completion": "11234569\\n"}, texts to learn. prompts: {"prompt": "31415926=", "answer":
"11234569"}, for rollouts, where the verifier `exact` reads the answer, and for the task of
examples/tasks/sort_digits.toml.
Equal arguments write equal lines. Different seeds share almost no line of 8 digits.
"""

import argparse
import json
import pathlib
import random
import sys


def lines_of(kind: str, digits: int, count: int, seed: int) -> list[str]:
    """Returns `count` lines of JSON for numbers of `digits` random digits."""
    generator = random.Random(seed)
    lines = []
    for _ in range(count):
        number = "".join(generator.choice("0123456789") for _ in range(digits))
        answer = "".join(sorted(number))
        own = {"completion": answer + "\n"} if kind == "sft" else {"answer": answer}
        lines.append(json.dumps({"prompt": number + "=", **own}))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["sft", "prompts"], default="prompts")
    parser.add_argument("--digits", type=int, default=8)
    parser.add_argument("--count", type=int, default=20000, help="number of lines")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=pathlib.Path, help="file to write; default: standard output")
    options = parser.parse_args()
    text = "".join(line + "\n" for line in lines_of(options.kind, options.digits, options.count, options.seed))
    if options.output is None:
        sys.stdout.write(text)
        return
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
