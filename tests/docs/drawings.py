#!/usr/bin/env python3
"""Draws the pictures of docs/img again and compares them with the files: the same elements and texts, coordinates to
one unit.

    COLOSSAL_BINARY=build/release/colossal COLOSSAL_SOURCE_DIR=. tests/docs/drawings.py [--write]

With --write the files are replaced. Numbers inside texts are not compared: losses differ in their last digits between
processors.
"""
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

BINARY, SOURCE = os.path.abspath(os.environ["COLOSSAL_BINARY"]), os.path.abspath(os.environ["COLOSSAL_SOURCE_DIR"])
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")
LAYOUTS = {
    "data=2": [],
    "tensor=2": ["--parallel.data=1", "--parallel.tensor=2"],
    "pipeline=2": ["--parallel.data=1", "--parallel.pipeline=2"],
    "sequence=2": ["--parallel.data=1", "--parallel.sequence.size=2", "--parallel.sequence.mode=ring"],
    "zero=3": ["--parallel.zero=3"],
}


def colossal(*words):
    done = subprocess.run([BINARY, *words], cwd=SOURCE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"FAILED: colossal {' '.join(words)}\n{done.stdout}")


def draw_layouts(file, folder):
    """The quickstart's model under five layouts. Its text is the licence, because the project's own text changes."""
    runs = [os.path.join(folder, name) for name in LAYOUTS]
    for run, flags in zip(runs, LAYOUTS.values()):
        colossal("train", "examples/quickstart.toml", f"--run.folder={run}", "--data.path=LICENSE",
                 "--training.steps=100", "--training.evaluate_every=0", "--training.save_every=0",
                 "--training.sample_every=0", *flags)
    colossal("report", *runs, "--output", os.path.join(folder, "report.html"), "--svg", file)


def draw_pipeline(file, _):
    colossal("schedule", "--name", "zero-bubble-v", "--stages", "4", "--micro-batches", "8", "--svg", file)


# docs/img/memory-timeline.svg is missing here, because the transfers that a step completes in time differ between runs.
PICTURES = {"layouts.svg": draw_layouts, "pipeline.svg": draw_pipeline}


def difference(old, new, where="svg"):
    """The first difference between two elements, or None."""
    tag = re.sub(r"\{.*\}", "", new.tag)
    where += "/" + tag
    if old.tag != new.tag or len(old) != len(new) or set(old.attrib) != set(new.attrib):
        return f"{where}: other elements or attributes"
    if tag != "style" and NUMBER.sub("#", old.text or "") != NUMBER.sub("#", new.text or ""):
        return f"{where}: the text is {new.text!r}, not {old.text!r}"
    for name, value in new.attrib.items():
        if NUMBER.sub("#", old.attrib[name]) != NUMBER.sub("#", value):
            return f"{where}: {name} is {value[:80]!r}, not {old.attrib[name][:80]!r}"
        for a, b in zip(NUMBER.findall(old.attrib[name]), NUMBER.findall(value)):
            if abs(float(a) - float(b)) > 1:
                return f"{where}: {name} has the coordinate {b}, not {a}"
    return next((found for pair in zip(old, new) if (found := difference(*pair, where))), None)


def main():
    failed = False
    for name, draw in PICTURES.items():
        file = os.path.join(SOURCE, "docs", "img", name)
        with tempfile.TemporaryDirectory(prefix="colossal-pictures-") as folder:
            drawn = file if "--write" in sys.argv else os.path.join(folder, name)
            draw(drawn, folder)
            found = difference(xml.parse(file).getroot(), xml.parse(drawn).getroot())
            if not found and os.path.getsize(file) > 200_000:
                found = f"it has {os.path.getsize(file)} bytes, more than 200,000"
            print(f"{name}: {'as in docs/img' if not found else found}")
            failed = failed or bool(found)
    if failed:
        sys.exit("FAILED: if the change is meant, write the pictures anew: tests/docs/drawings.py --write")


if __name__ == "__main__":
    main()
