#!/usr/bin/env python3
"""Answers of one model by `colossal` and by llama.cpp, one after another in the same run.

    pip install llama-cpp-python    # builds llama.cpp for this processor, five to seven minutes
    python benchmarks/inference_beside_llama_cpp.py --colossal build/release/colossal --from FOLDER --work gguf

FOLDER is a Hugging Face folder of a LLaMA; its GGUF files are written into --work by `colossal export`. Each round runs
both programs for each type of weights, with the same number of threads. The script prints medians over rounds and their
ratio.
Prompts are random tokens: what a model of random weights says takes as long as what a trained one says.

llama.cpp has no weights and no cache in fp8, so these rows show ours alone. "of bound" is our decoding speed divided by
the one at which reading all weights and the cached keys and values would take the whole memory bandwidth, which
`colossal bench inference` measures in the same process. "behind N tokens" decodes after a prompt of N tokens, with each
type of cache; llama.cpp's cache has fp16 where ours has the model's dtype, and Q8_0 where ours has int8.
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
    "fp8": (["--precision=bf16", "--quantize=fp8"], None),
    "8 bits": (["--precision=bf16", "--quantize=int8"], "q8_0"),
    "4 bits": (["--precision=bf16", "--quantize=int4"], "q4_0"),
}
CACHES = {"model": 1, "int8": 8, "fp8": None}  # --kv-cache-dtype: llama.cpp's number of the type, None = it has none
STEP = 512  # tokens that llama.cpp reads at a time, colossal's default, too
MEASURES = ["decode 1", "prefill", "decode many", "first"]


def bench(arguments, folder, flags, prompt, sequences, rounds=2):
    """What `colossal bench inference` measures, without the load of random requests."""
    command = [arguments.colossal, "bench", "inference", "--from", folder, *flags, "--json", "--rounds", str(rounds),
               "--prompt-tokens", str(prompt), "--new-tokens", str(arguments.new), "--requests", "0", "--sequences",
               ",".join(map(str, sequences)), "--kernels", arguments.kernels]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def of_bound(result, row, new):
    """The speed of a row of bench(), divided by what the memory bandwidth allows for its weights and cached tokens."""
    held = row["count"] * (result["prompt_tokens"] + new / 2)  # cached tokens of the mean step
    bytes_read = result["weight_bytes"] + held * result["cache_bytes_per_token"]
    return row["tokens_per_second"] * bytes_read / (row["count"] * result["bandwidth_bytes_per_second"])


def ours(arguments, folder, flags):
    result = bench(arguments, folder, flags, arguments.prompt, [1, arguments.many])
    one, many = result["sequences"]
    start = time.time()
    subprocess.run([arguments.colossal, "info", "--no-measure"], check=True, stdout=subprocess.DEVNULL)
    libraries = time.time() - start  # llama.cpp's clock starts after its libraries are loaded
    start = time.time()
    with subprocess.Popen([arguments.colossal, "generate", "--from", folder, *flags, "--tokenizer=bytes", "--ids",
                           "--prompt=Once", "--max-tokens=2"], stdout=subprocess.PIPE, text=True) as program:
        program.stdout.readline()
        first = time.time() - start - libraries
        program.stdout.read()
    return {"prefill": one["prompt_tokens_per_second"], "decode 1": one["tokens_per_second"],
            "decode many": many["tokens_per_second"], "first": first,
            "of bound": {"decode 1": of_bound(result, one, arguments.new),
                         "decode many": of_bound(result, many, arguments.new)}}


def ours_behind(arguments, folder, flags, cache):
    result = bench(arguments, folder, [*flags, "--kv-cache-dtype", cache], arguments.behind, [1], rounds=1)
    row = result["sequences"][0]
    return {"decode": row["tokens_per_second"], "of bound": {"decode": of_bound(result, row, arguments.new)}}


class Peer:
    """llama.cpp in this process, through its C interface, with no Python between two tokens but the call."""

    def __init__(self, path):
        import llama_cpp

        self.c = llama_cpp
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what it says while it loads
        self.words = random.Random(0)
        self.model = self.c.llama_model_load_from_file(path.encode(), self.c.llama_model_default_params())
        self.vocabulary = self.c.llama_vocab_n_tokens(self.c.llama_model_get_vocab(self.model))

    def begin(self, sequences, tokens, threads, cache=CACHES["model"]):
        """Makes a context for so many sequences of so many tokens."""
        options = self.c.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = sequences * tokens, STEP, STEP
        options.n_seq_max, options.n_threads, options.n_threads_batch = sequences, threads, threads
        options.type_k = options.type_v = cache
        self.context = self.c.llama_init_from_model(self.model, options)
        if not self.context:
            sys.exit("llama_init_from_model failed")
        self.batch = self.c.llama_batch_init(max(STEP, sequences), 0, sequences)

    def run(self, tokens):
        """Runs (position, sequence, logits wanted) of each token, and waits for the last logits."""
        for first in range(0, len(tokens), STEP):
            part = tokens[first:first + STEP]
            self.batch.n_tokens = len(part)
            for i, (position, sequence, wanted) in enumerate(part):
                self.batch.token[i] = self.words.randrange(self.vocabulary)
                self.batch.pos[i], self.batch.n_seq_id[i], self.batch.logits[i] = position, 1, wanted
                self.batch.seq_id[i][0] = sequence
            if self.c.llama_decode(self.context, self.batch) != 0:
                sys.exit("llama_decode failed")
        logits = self.c.llama_get_logits(self.context)
        return ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))[0]

    def read(self, prompt, sequence=0):
        self.run([(i, sequence, i == prompt - 1) for i in range(prompt)])

    def decode(self, prompt, new, sequences=1):
        """Returns the tokens per second of all sequences."""
        start = time.time()
        for i in range(new):
            self.run([(prompt + i, sequence, True) for sequence in range(sequences)])
        return sequences * new / (time.time() - start)

    def forget(self):
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)


def theirs_here(path, prompt, new, many, threads):
    import llama_cpp  # noqa: F401, so that the clock starts after its libraries are loaded

    start = time.time()
    peer = Peer(path)
    peer.begin(many, prompt + new + 8, threads)
    peer.read(4)
    first = time.time() - start
    prefills, decodes, manys = [], [], []
    for _ in range(2):
        peer.forget()
        start = time.time()
        peer.read(prompt)
        prefills.append(prompt / (time.time() - start))
        decodes.append(peer.decode(prompt, new))
        peer.forget()
        for sequence in range(many):
            peer.read(prompt, sequence)
        manys.append(peer.decode(prompt, new, many))
    print(json.dumps({"prefill": statistics.median(prefills), "decode 1": statistics.median(decodes),
                      "decode many": statistics.median(manys), "first": first}))


def theirs_behind_here(path, behind, new, threads, cache):
    peer = Peer(path)
    peer.begin(1, behind + new + 8, threads, CACHES[cache])
    peer.read(behind)
    print(json.dumps({"decode": peer.decode(behind, new)}))


def theirs(arguments, gguf, more=()):
    """Runs llama.cpp in a process of its own. Returns None if it ends with an error, as it does for Q8_0 with AMX."""
    command = [sys.executable, __file__, "--theirs", str(gguf), "--prompt", str(arguments.prompt), "--new",
               str(arguments.new), "--many", str(arguments.many), "--threads", str(arguments.threads), *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"llama.cpp ended with status {done.returncode} for {gguf}: {done.stderr[-200:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout)


def theirs_behind(arguments, gguf, cache):
    return theirs(arguments, gguf, ["--behind", str(arguments.behind), "--caches", cache, "--only-behind"])


def median_of(rounds, measure):
    return statistics.median(values[measure] for values in rounds)


def print_row(weights, what, measure, rounds):
    """rounds: (theirs or None, ours) of each."""
    our = [mine for _, mine in rounds]
    their = [peer for peer, _ in rounds if peer]
    unit = "s" if measure == "first" else "tokens/s"
    value, ratio = "-", "-"
    if their:
        peer, mine = median_of(their, measure), median_of(our, measure)
        value, ratio = f"{peer:.2f} {unit}", f"{peer / mine if measure == 'first' else mine / peer:.2f}"
    bounds = [mine["of bound"][measure] for mine in our if measure in mine["of bound"]]
    bound = f"{statistics.median(bounds):.2f}" if bounds else ""
    print(f"| {weights} | {what} | {value} | {median_of(our, measure):.2f} | {ratio} | {bound} |", flush=True)


def measure_type(arguments, name, work):
    flags, kind = TYPES[name]
    gguf = work / f"{kind}.gguf" if kind else None
    if gguf and not gguf.exists():
        subprocess.run([arguments.colossal, "export", "--from", arguments.folder, "--tokenizer=bytes", "--to", gguf,
                        "--type", kind], check=True, stdout=subprocess.DEVNULL)
    own = (gguf, flags[:1]) if arguments.same_files and gguf else (arguments.folder, flags)
    rounds = [(theirs(arguments, gguf) if gguf else None, ours(arguments, *own)) for _ in range(arguments.rounds)]
    for measure in MEASURES:
        what = {"decode 1": "decode, 1 sequence", "decode many": f"decode, {arguments.many} sequences",
                "prefill": f"prefill, {arguments.prompt} tokens", "first": "load to the first token"}[measure]
        print_row(name, what, measure, rounds)
    if name not in arguments.behind_types or arguments.behind == 0:
        return
    for cache in arguments.caches:
        rounds = [(theirs_behind(arguments, gguf, cache) if gguf and CACHES[cache] is not None else None,
                   ours_behind(arguments, *own, cache)) for _ in range(arguments.rounds)]
        kept = flags[0].split("=")[1] if cache == "model" else cache
        print_row(name, f"decode behind {arguments.behind:,} tokens, cache in {kept}", "decode", rounds)


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
    parser.add_argument("--types", nargs="*", default=list(TYPES), choices=list(TYPES))
    parser.add_argument("--behind", type=int, default=1900, help="tokens of a long prompt; 0 = do not measure it")
    parser.add_argument("--behind-types", nargs="*", default=["bf16"], choices=list(TYPES))
    parser.add_argument("--caches", nargs="*", default=list(CACHES), choices=list(CACHES))
    parser.add_argument("--only-behind", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--kernels", default="auto",
                        help="of colossal, as avx2: what an older processor would use; llama.cpp has "
                        "those that it was built for. The time to the first token is always that of the best kernels")
    parser.add_argument("--same-files", action="store_true", help="colossal reads the GGUF files, too, in their codes")
    arguments = parser.parse_args()
    if arguments.theirs and arguments.only_behind:
        return theirs_behind_here(arguments.theirs, arguments.behind, arguments.new, arguments.threads,
                                  arguments.caches[0])
    if arguments.theirs:
        return theirs_here(arguments.theirs, arguments.prompt, arguments.new, arguments.many, arguments.threads)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    work = pathlib.Path(arguments.work)
    work.mkdir(parents=True, exist_ok=True)
    subprocess.run([arguments.colossal, "info", "--no-measure"], check=True)  # names the processor and the kernels
    print("\n| weights | what | llama.cpp | colossal | ratio | of bound |\n|---|---|---|---|---|---|", flush=True)
    for name in arguments.types:
        measure_type(arguments, name, work)


if __name__ == "__main__":
    main()
