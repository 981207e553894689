#!/usr/bin/env python3
"""Answers of one model by `colossal` and by llama.cpp, one after another in the same run.

    pip install llama-cpp-python    # builds llama.cpp for this processor, five to seven minutes
    python benchmarks/inference_beside_llama_cpp.py --colossal build/release/colossal --from FOLDER --work gguf

FOLDER is a Hugging Face folder of a LLaMA; its GGUF files are written into --work by `colossal export`. Each round runs
both programs for each type of weights, with the same number of threads; medians over rounds and their ratio are printed.
Prompts are random tokens: what a model of random weights says takes as long as what a trained one says.
"""

import argparse
import ctypes
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

TYPES = {  # name: flags of colossal, type of the GGUF file
    "fp32": (["--precision=fp32"], "f32"),
    "bf16": (["--precision=bf16"], "bf16"),
    "8 bits": (["--precision=bf16", "--quantize=int8"], "q8_0"),
    "4 bits": (["--precision=bf16", "--quantize=int4"], "q4_0"),
}
MEASURES = ["decode 1", "prefill", "decode many", "first"]


def ours(arguments, folder, flags):
    command = [arguments.colossal, "bench", "inference", "--from", folder, *flags, "--json", "--rounds", "2",
               "--prompt-tokens", str(arguments.prompt), "--new-tokens", str(arguments.new), "--requests", "1",
               "--sequences", f"1,{arguments.many}"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    one, many = result["sequences"]
    start = time.time()
    with subprocess.Popen([arguments.colossal, "generate", "--from", folder, *flags, "--tokenizer=bytes", "--ids",
                           "--prompt=Once", "--max-tokens=2"], stdout=subprocess.PIPE, text=True) as program:
        program.stdout.readline()
        first = time.time() - start
        program.stdout.read()
    return {"prefill": one["prompt_tokens_per_second"], "decode 1": one["tokens_per_second"],
            "decode many": many["tokens_per_second"], "first": first}


def theirs_here(path, prompt, new, many, threads):
    """In a process of its own: llama.cpp through its C interface, with no Python between two tokens but the call."""
    import llama_cpp as c

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what it says while it loads
    words = random.Random(0)
    start = time.time()
    model_options = c.llama_model_default_params()
    model = c.llama_model_load_from_file(path.encode(), model_options)
    options = c.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch = many * (prompt + new + 8), 512, 512
    options.n_seq_max, options.n_threads, options.n_threads_batch = many, threads, threads
    context = c.llama_init_from_model(model, options)
    vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
    batch = c.llama_batch_init(max(prompt, many), 0, many)

    def run(tokens):  # (position, sequence, logits wanted) of each
        batch.n_tokens = len(tokens)
        for i, (position, sequence, wanted) in enumerate(tokens):
            batch.token[i] = words.randrange(vocabulary)
            batch.pos[i], batch.n_seq_id[i], batch.logits[i] = position, 1, wanted
            batch.seq_id[i][0] = sequence
        if c.llama_decode(context, batch) != 0:
            sys.exit("llama_decode failed")
        logits = c.llama_get_logits(context)  # waits
        return ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))[0]

    def forget():
        c.llama_memory_clear(c.llama_get_memory(context), True)

    run([(i, 0, i == 3) for i in range(4)])
    first = time.time() - start
    prefills, decodes, manys = [], [], []
    for _ in range(2):
        forget()
        start = time.time()
        run([(i, 0, i == prompt - 1) for i in range(prompt)])
        prefills.append(prompt / (time.time() - start))
        start = time.time()
        for i in range(new):
            run([(prompt + i, 0, True)])
        decodes.append(new / (time.time() - start))
        forget()
        for sequence in range(many):
            run([(i, sequence, i == prompt - 1) for i in range(prompt)])
        start = time.time()
        for i in range(new):
            run([(prompt + i, sequence, True) for sequence in range(many)])
        manys.append(many * new / (time.time() - start))
    print(json.dumps({"prefill": statistics.median(prefills), "decode 1": statistics.median(decodes),
                      "decode many": statistics.median(manys), "first": first}))


def theirs(arguments, gguf):
    command = [sys.executable, __file__, "--theirs", str(gguf), "--prompt", str(arguments.prompt), "--new",
               str(arguments.new), "--many", str(arguments.many), "--threads", str(arguments.threads)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--colossal")
    parser.add_argument("--from", dest="folder")
    parser.add_argument("--work")
    parser.add_argument("--theirs", help=argparse.SUPPRESS)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=48)
    parser.add_argument("--many", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--types", nargs="*", default=list(TYPES))
    parser.add_argument("--same-files", action="store_true", help="colossal reads the GGUF files, too, in their codes")
    arguments = parser.parse_args()
    if arguments.theirs:
        return theirs_here(arguments.theirs, arguments.prompt, arguments.new, arguments.many, arguments.threads)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    work = pathlib.Path(arguments.work)
    work.mkdir(parents=True, exist_ok=True)
    units = {"first": "s"}
    print("| weights | what | llama.cpp | colossal | ratio |\n|---|---|---|---|---|")
    for name in arguments.types:
        flags, kind = TYPES[name]
        gguf = work / f"{kind}.gguf"
        if not gguf.exists():
            subprocess.run([arguments.colossal, "export", "--from", arguments.folder, "--tokenizer=bytes", "--to", gguf,
                            "--type", kind], check=True, stdout=subprocess.DEVNULL)
        own = (gguf, flags[:1]) if arguments.same_files else (arguments.folder, flags)
        rounds = [(theirs(arguments, gguf), ours(arguments, *own)) for _ in range(arguments.rounds)]
        for measure in MEASURES:
            their, our = (statistics.median(r[i][measure] for r in rounds) for i in (0, 1))
            ratio = their / our if measure == "first" else our / their
            what = {"decode 1": "decode, 1 sequence", "decode many": f"decode, {arguments.many} sequences",
                    "prefill": f"prefill, {arguments.prompt} tokens", "first": "load to the first token"}[measure]
            print(f"| {name} | {what} | {their:.2f} {units.get(measure, 'tokens/s')} | {our:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
