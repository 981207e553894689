"""Tokens per second of Engine.generate() with several prompts and of llama-cpp-python with as many sequences, in turns.

    pip install llama-cpp-python    # into the environment of --peer-python; builds llama.cpp, five to seven minutes
    python benchmarks/python_generation.py --work FOLDER --peer-python VENV/bin/python [--prompts 8] [--length 128]
        [--new 48] [--threads 2] [--rounds 3] [--same-file] [--trial]

The model is the LLaMA of 551 M parameters of server_beside_llama_cpp.py, with random weights, in FOLDER. Ours rounds it
to 8 bits while loading, or reads the peer's Q8_0 file with --same-file. Prompts are random tokens, none used twice. The
peer evaluates all prompts together and then one token of every sequence in each batch, through its C interface
(inference_beside_llama_cpp.py), and takes random tokens. Ours decodes greedily.

Prints a JSON object. "speed" is our tokens per second over the peer's, of new tokens in the time from prompts to
answers. "decoding" leaves the time of prompts out.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import time
import types

import inference_beside_llama_cpp as llama
import python_sides as sides
import server_beside_llama_cpp as models



def rates(options, read, generate):
    """Returns tokens per second: of read() and what follows, and of what follows. generate() returns both times."""
    whole, decoding = [], []
    for _ in range(options.repeats):
        prompts, total = read(), generate()
        whole.append(options.prompts * options.new / total)
        decoding.append(options.prompts * (options.new - 1) / (total - prompts))
    return {"tokens_per_second": statistics.median(whole), "decoding": statistics.median(decoding)}


def measure_ours(options):
    """read() answers with one token, so the difference of both is the time of the other tokens."""
    import colossal

    words = random.Random(0)
    sizes = models.SMALL if options.trial else models.LARGE
    how = {} if options.model.endswith(".gguf") else {"quantize": "int8"}
    engine = colossal.Engine(options.model, precision="bf16", **how)

    def seconds(new):
        prompts = [[words.randrange(models.END + 1, sizes.vocabulary) for _ in range(options.length)]
                   for _ in range(options.prompts)]
        begin = time.perf_counter()
        answers = engine.generate(prompts, max_tokens=new)
        elapsed = time.perf_counter() - begin
        lengths = [len(answer.ids) for answer in answers]
        if lengths != [new] * options.prompts:
            sys.exit(f"every answer must have {new} tokens: got {lengths}")
        return elapsed

    seconds(2)  # weights are packed at their first use
    return rates(options, lambda: seconds(1), lambda: seconds(options.new))


def measure_peer(options):
    peer = llama.Peer(options.model)
    peer.begin(options.prompts, options.length + options.new + 8, options.threads)

    def read():
        peer.forget()
        begin = time.perf_counter()
        peer.run([(i, sequence, i == options.length - 1) for sequence in range(options.prompts)
                  for i in range(options.length)])
        return time.perf_counter() - begin

    def generate():
        prompts, begin = read(), time.perf_counter()
        peer.decode(options.length, options.new - 1, options.prompts)
        return prompts + time.perf_counter() - begin

    generate()
    return rates(options, read, generate)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=48, help="tokens of an answer, 2 or more")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="calls of a process, of which the median counts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--same-file", action="store_true", help="ours reads the peer's file")
    parser.add_argument("--trial", action="store_true", help="a small model instead")
    parser.add_argument("--side", choices=["colossal", "llama.cpp"], help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return print(json.dumps(measure_ours(options) if options.side == "colossal" else measure_peer(options)))
    if not options.work:
        parser.error("--work must name a folder for the model")
    options.work.mkdir(parents=True, exist_ok=True)
    program = sides.program()
    folder = options.work / ("llama-small" if options.trial else "llama-551m")
    models.write_folder(folder, models.SMALL if options.trial else models.LARGE)
    gguf = models.export(types.SimpleNamespace(colossal=program, work=options.work), folder, "q8_0")

    def measure(side):
        python, model = (sys.executable, gguf if options.same_file else folder) if side == "colossal" else (
            options.peer_python, gguf)
        flags = [f"--{name}={getattr(options, name)}" for name in ("prompts", "length", "new", "threads", "repeats")]
        command = [python, __file__, f"--side={side}", f"--model={model}", *flags, *["--trial"] * options.trial]
        done = sides.output_of(command, env=sides.environment(OMP_NUM_THREADS=str(options.threads)))
        return sides.figures_of(done)[0]

    results = sides.in_turns({side: lambda side=side: measure(side) for side in ("colossal", "llama.cpp")},
                             options.rounds)
    over = lambda name: sides.ratios(  # noqa: E731
        sides.column(results["colossal"], name), sides.column(results["llama.cpp"], name))
    sides.show(f"Engine.generate() with {options.prompts} prompts, {folder.name} in 8 bits, against llama-cpp-python",
               {"speed": over("tokens_per_second"), "decoding": over("decoding"), **results},
               **sides.versions("torch"), **sides.versions("llama-cpp-python", python=options.peer_python))


if __name__ == "__main__":
    main()
