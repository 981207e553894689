"""Time of `import colossal` beyond that of `import torch`.

    python benchmarks/python_import.py [--rounds 20]

A process of its own per round imports torch and then colossal. A second one then also loads `launch`, `initialize` and
`Engine`, which load the compiled module. Prints a JSON object with the medians in milliseconds.
"""

import argparse
import json
import statistics
import sys

import python_sides as sides

TIMED = """
import json, sys, time
begin = time.perf_counter()
import torch
after_torch = time.perf_counter()
import colossal
after_colossal = time.perf_counter()
if sys.argv[1] == "names":
    colossal.launch, colossal.initialize, colossal.Engine
print(json.dumps({"torch_ms": (after_torch - begin) * 1e3, "colossal_ms": (after_colossal - after_torch) * 1e3,
                  "names_ms": (time.perf_counter() - after_torch) * 1e3}))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="after one that fills the page cache")
    options = parser.parse_args()
    measure = lambda what: json.loads(sides.output_of([sys.executable, "-c", TIMED, what]))  # noqa: E731
    measure("names")
    results = sides.in_turns({"import": lambda: measure("import"), "names": lambda: measure("names")}, options.rounds)
    median = lambda what, name: round(statistics.median(sides.column(results[what], name)), 2)  # noqa: E731
    sides.show("import colossal beyond import torch, in milliseconds",
               {"import_torch": median("import", "torch_ms"), "import_colossal": median("import", "colossal_ms"),
                "with_compiled_module": median("names", "names_ms"), "rounds": options.rounds},
               **sides.versions("torch"))


if __name__ == "__main__":
    main()
