#!/usr/bin/env python3
"""Completions by `colossal serve` and by the servers of llama.cpp and llama-cpp-python, one after another in one run.

    pip install 'llama-cpp-python[server]' numpy cmake    # builds llama.cpp for this processor, five to seven minutes
    python benchmarks/server_beside_llama_cpp.py --colossal build/release/colossal --work FOLDER [--clients 4 16]
        [--prompt 128] [--new 128] [--threads 2] [--rounds 2] [--starts 5] [--llama-server PROGRAM]

The model is a LLaMA of 551 M parameters with random weights and a tokenizer of its own, in which each digit of a prompt
is a token. The script writes it to FOLDER as a Hugging Face folder, and `colossal export` makes GGUF files of it. All
servers read the same Q8_0 file. `colossal bench serve --ignore-eos` drives each of them: every client sends its next
request after the answer to the last one, and no two prompts begin alike. llama-server has as many slots as there are
clients. The script builds it from the source package of llama-cpp-python in FOLDER, unless --llama-server names it.

"engine" is `colossal generate --prompts` with as many prompts as there are clients: the same engine without HTTP.
"start" is the time from the start of a process to the first 200 of /health, and "start to first token" to the end of
an answer of one token, which is asked for then: weights may be made ready at their first use. "small model" is
stories260K, if ../shared/data has it, or a model of similar sizes with random weights; its rows have the built-in
prompts.

A ratio is ours divided by the peer's, so that more is better for tokens/s and less is better for seconds. The script
prints the median over rounds, and the lowest and highest ratio of a round.
"""

import argparse
import contextlib
import dataclasses
import http.client
import itertools
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tarfile
import time

import mixture_decoding

ROOT = pathlib.Path(__file__).resolve().parent.parent
STORIES = ROOT.parent / "shared/data/stories260K-hf"
END = 256  # id of the end token, which follows the 256 bytes
PATIENCE = 300  # seconds for a server to become ready
SMALL_CLIENTS, SMALL_REQUESTS, SMALL_TOKENS = 16, 1600, 16


@dataclasses.dataclass
class Sizes:
    hidden: int
    layers: int
    heads: int
    ffn: int
    vocabulary: int
    positions: int


LARGE = Sizes(hidden=1536, layers=16, heads=12, ffn=4096, vocabulary=32000, positions=2048)
SMALL = Sizes(hidden=64, layers=5, heads=8, ffn=192, vocabulary=512, positions=512)


def shapes(sizes):
    """Names and shapes of all tensors of a LLaMA."""
    yield "model.embed_tokens.weight", (sizes.vocabulary, sizes.hidden)
    for layer in range(sizes.layers):
        block = f"model.layers.{layer}"
        for name in "qkvo":
            yield f"{block}.self_attn.{name}_proj.weight", (sizes.hidden, sizes.hidden)
        for name in ("gate", "up"):
            yield f"{block}.mlp.{name}_proj.weight", (sizes.ffn, sizes.hidden)
        yield f"{block}.mlp.down_proj.weight", (sizes.hidden, sizes.ffn)
        yield f"{block}.input_layernorm.weight", (sizes.hidden,)
        yield f"{block}.post_attention_layernorm.weight", (sizes.hidden,)
    yield "model.norm.weight", (sizes.hidden,)
    yield "lm_head.weight", (sizes.vocabulary, sizes.hidden)


def scale_of(name, shape):
    """The logits of bytes and of the end token are 0, so that greedy answers have only words, which are whole texts."""
    import numpy

    if name != "lm_head.weight":
        return shape[1] ** -0.5
    scale = numpy.full((shape[0], 1), shape[1] ** -0.5)
    scale[:END + 1] = 0
    return scale


def byte_letters():
    """GPT-2's letters of the 256 bytes, in the order of the bytes."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = itertools.count(256)
    return [chr(byte if byte in shown else next(other)) for byte in range(256)]


def write_tokenizer(folder, vocabulary):
    """Writes a byte-level BPE without merges: each byte is a token. The other tokens are words of four letters."""
    words = ("".join(word) for word in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=4))
    tokens = [*byte_letters(), "<|endoftext|>", *itertools.islice(words, vocabulary - END - 1)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": END, "content": tokens[END], "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokens[END]}))


def write_folder(folder, sizes):
    """Writes a Hugging Face folder with random bf16 weights, unless it is there."""
    if (folder / "tokenizer_config.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden, "intermediate_size": sizes.ffn, "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.heads,
        "max_position_embeddings": sizes.positions, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "eos_token_id": END, "torch_dtype": "bfloat16"}))
    mixture_decoding.write_weights(folder / "model.safetensors", list(shapes(sizes)), scale_of)
    write_tokenizer(folder, sizes.vocabulary)


def export(options, folder, kind):
    """Returns the GGUF file of a folder, which is written unless it is there."""
    gguf = options.work / f"{folder.name}-{kind}.gguf"
    if not gguf.exists():
        subprocess.run([options.colossal, "export", "--from", folder, "--to", gguf, "--type", kind], check=True,
                       stdout=subprocess.DEVNULL)
    return gguf


def write_prompts(path, count, tokens, seed):
    """Writes prompts of random digits, each of which is a token, so that servers find no common prefixes."""
    digits = random.Random(seed)
    path.write_text("".join("".join(digits.choices("0123456789", k=tokens)) + "\n" for _ in range(count)))
    return path


def build_llama_server(options):
    """Returns the program, which is built from the source package of the installed llama-cpp-python."""
    program = options.work / "llama-server-build/bin/llama-server"
    if program.exists():
        return program
    version = subprocess.run([options.peer_python, "-c", "import llama_cpp; print(llama_cpp.__version__)"], check=True,
                             capture_output=True, text=True).stdout.strip()
    subprocess.run([sys.executable, "-m", "pip", "download", "--no-binary=llama-cpp-python", "--no-deps", "--dest",
                    options.work, f"llama-cpp-python=={version}"], check=True, stdout=sys.stderr)
    with tarfile.open(options.work / f"llama_cpp_python-{version}.tar.gz") as archive:
        archive.extractall(options.work, filter="data")
    source = options.work / f"llama_cpp_python-{version}/vendor/llama.cpp"
    build = options.work / "llama-server-build"
    subprocess.run(["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_UI=OFF",
                    "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"],
                   check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", build, "--target", "llama-server", "--parallel", str(options.threads)],
                   check=True, stdout=sys.stderr)
    return program


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def answers_200(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextlib.contextmanager
def running(options, name, command, port, ready="/health"):
    """Runs a server. Yields the seconds from the start of its process to its first 200."""
    log = options.work / f"{name}.log"
    with open(log, "w") as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while not answers_200(port, ready):
                if process.poll() is not None or time.perf_counter() - start > PATIENCE:
                    sys.exit(f"{name} did not become ready:\n{log.read_text()[-2000:]}")
                time.sleep(0.005)
            yield time.perf_counter() - start
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ours(options, model, clients, port):
    return [options.colossal, "serve", "--from", model, "--port", str(port), *options.flags]


def llama_server(options, model, clients, port):
    tokens = clients * options.slot_tokens
    return [options.llama_server, "--model", model, "--host", "127.0.0.1", "--port", str(port), "--parallel",
            str(clients), "--ctx-size", str(tokens), "--threads", str(options.threads), "--cache-ram", "0"]


def python_server(options, model, clients, port):
    return [options.peer_python, "-m", "llama_cpp.server", "--model", model, "--host", "127.0.0.1", "--port", str(port),
            "--n_ctx", str(options.slot_tokens), "--n_threads", str(options.threads), "--n_threads_batch",
            str(options.threads), "--interrupt_requests", "false", "--logits_all", "false", "--verbose", "false"]


SERVERS = {  # name: its command, a path that answers 200 after the model is loaded, whether it answers one by one
    "colossal": (ours, "/health", False),
    "llama-server": (llama_server, "/health", False),
    "llama-cpp-python": (python_server, "/v1/models", True),
}


def load(options, port, clients, requests, new, more=()):
    """Returns what `colossal bench serve` measures. Fails if a request fails."""
    command = [options.colossal, "bench", "serve", "--url", f"http://127.0.0.1:{port}", "--clients", str(clients),
               "--requests", str(requests), "--max-tokens", str(new), "--ignore-eos", "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or done.stderr:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def measure_server(options, name, model, clients, seed):
    """Loads one server with prompts of options.prompt tokens, after a warm-up."""
    command, ready, one_by_one = SERVERS[name]
    port = free_port()
    requests = clients * (1 if one_by_one else options.waves)
    prompts = [write_prompts(options.work / f"prompts-{what}.txt", count, options.prompt, f"{name} {seed} {what}")
               for what, count in (("warm", clients), ("timed", requests))]
    with running(options, name, command(options, model, clients, port), port, ready):
        warm = min(clients, 2) if one_by_one else clients
        load(options, port, clients, warm, options.new, ["--prompts", prompts[0]])
        result = load(options, port, clients, requests, options.new, ["--prompts", prompts[1]])
    if not one_by_one and result["tokens"] != requests * options.new:
        sys.exit(f"{name} must answer {options.new} tokens to each of {requests} requests: got {result['tokens']}")
    return {"tokens/s": result["tokens_per_second"], "first, median": result["first_token_seconds"]["p50"],
            "first, 95 %": result["first_token_seconds"]["p95"]}


def measure_engine(options, model, clients, seed):
    """Completes one prompt per client without HTTP."""
    prompts = write_prompts(options.work / "prompts-engine.txt", clients, options.prompt, f"engine {seed}")
    done = subprocess.run([options.colossal, "generate", "--from", model, "--prompts", prompts, "--max-tokens",
                           str(options.new), *options.flags], capture_output=True, text=True)
    said = re.search(r"prompts, (\d+) tokens in .*: ([0-9.]+) tokens/s; (\d+) prompt tokens", done.stderr)
    wanted = (clients * options.new, clients * options.prompt)
    if done.returncode or not said or (int(said[1]), int(said[3])) != wanted:
        sys.exit(f"colossal generate must make {wanted[0]} tokens from {wanted[1]}: {done.stderr}")
    return {"tokens/s": float(said[2])}


def measure_small(options, name, model):
    """Loads one server with the built-in prompts. The warm-up has others, so that no prefix is found in a cache."""
    command, ready, _ = SERVERS[name]
    port = free_port()
    count = 10 * SMALL_CLIENTS
    warm = write_prompts(options.work / "prompts-warm.txt", count, 64, name)
    with running(options, name, command(options, model, SMALL_CLIENTS, port), port, ready):
        load(options, port, SMALL_CLIENTS, count, SMALL_TOKENS, ["--prompts", warm])
        result = load(options, port, SMALL_CLIENTS, options.small_requests, SMALL_TOKENS)
    return {"requests/s": result["requests_per_second"]}


def measure_start(options, name, model):
    command, ready, _ = SERVERS[name]
    port = free_port()
    with running(options, name, command(options, model, 1, port), port, ready) as seconds:
        asked = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "12345", "max_tokens": 1}),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"{name} did not answer its first request: {answer.status} {answer.read()[:500]}")
        answer.read()
        connection.close()
        return {"start": seconds, "start to first token": seconds + time.perf_counter() - asked}


def alternating(rounds, measures):
    """Returns the results of each side. Every other round is in the opposite order, because a machine warms up."""
    results = {side: [] for side in measures}
    for i in range(rounds):
        for side in (list(measures) if i % 2 == 0 else list(measures)[::-1]):
            results[side].append(measures[side](i))
            print(f"round {i + 1}, {side}: {json.dumps(results[side][-1])}", file=sys.stderr, flush=True)
    return results


def print_rows(what, results, wanted):
    """wanted: a measure and a peer, and the ratio that is wanted."""
    for (measure, peer), limit in wanted.items():
        if peer not in results:
            continue
        our, their = ([side[measure] for side in results[name]] for name in ("colossal", peer))
        ratios = [a / b for a, b in zip(our, their)]
        unit = "" if measure.endswith("/s") else " s"
        print(f"| {what}: {measure} | {peer} | {statistics.median(their):.4g}{unit} | "
              f"{statistics.median(our):.4g}{unit} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
              f"{max(ratios):.2f}) | {limit} |", flush=True)


def measure_loads(options, model, clients):
    measures = {name: lambda i, name=name: measure_server(options, name, model, clients, i)
                for name in SERVERS if name not in options.without}
    measures["engine"] = lambda i: measure_engine(options, model, clients, i)
    results = alternating(options.rounds, measures)
    print_rows(f"{clients} clients", results, {
        ("tokens/s", "llama-server"): f">= {1.8 if clients < 16 else 2}", ("tokens/s", "llama-cpp-python"): ">= 3",
        ("tokens/s", "engine"): ">= 0.97", ("first, median", "llama-server"): "<= 0.5",
        ("first, 95 %", "llama-server"): "<= 0.5"})


def measure_starts(options, what, own, theirs, limit):
    """The first start of each side reads the file from the disk and is left out."""
    results = alternating(options.starts + 1, {
        "colossal": lambda i: measure_start(options, "colossal", own),
        "llama-server": lambda i: measure_start(options, "llama-server", theirs)})
    print_rows(what, {side: values[1:] for side, values in results.items()}, {
        ("start", "llama-server"): limit, ("start to first token", "llama-server"): "-"})


def measure_small_model(options):
    name, folder = "stories260K", STORIES
    if not STORIES.exists():
        name, folder = "random LLaMA of 0.3 M", options.work / "llama-small"
        write_folder(folder, SMALL)
    options = argparse.Namespace(**{**vars(options), "flags": ["--precision=fp32"], "slot_tokens": SMALL.positions})
    gguf = export(options, folder, "f32")
    results = alternating(options.rounds, {side: lambda i, side=side: measure_small(options, side, gguf)
                                           for side in ("colossal", "llama-server")})
    print_rows(f"{name}, {SMALL_CLIENTS} clients, {SMALL_TOKENS} tokens", results,
               {("requests/s", "llama-server"): ">= 5"})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--colossal", required=True, type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--llama-server", metavar="PROGRAM", help="llama.cpp's server; default: built in --work")
    parser.add_argument("--peer-python", default=sys.executable, help="Python that has llama-cpp-python[server]")
    parser.add_argument("--clients", type=int, nargs="*", default=[4, 16])
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--waves", type=int, default=4, help="requests per client; the package's server gets 1")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--starts", type=int, default=5, help="starts of each server; 0 = do not measure them")
    parser.add_argument("--small-requests", type=int, default=SMALL_REQUESTS, help="0 = do not measure the small model")
    parser.add_argument("--without", nargs="*", default=[], choices=["llama-server", "llama-cpp-python"])
    parser.add_argument("--type", default="q8_0", help="type of the file's weights, if a peer fails with Q8_0")
    parser.add_argument("--trial", action="store_true", help="a small model instead of that of 551 M")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    options.flags = ["--precision=bf16"]
    options.slot_tokens = options.prompt + options.new + 64
    if "llama-server" not in options.without:
        options.llama_server = options.llama_server or build_llama_server(options)
    folder = options.work / ("llama-small" if options.trial else "llama-551m")
    write_folder(folder, SMALL if options.trial else LARGE)
    gguf = export(options, folder, options.type)
    subprocess.run([options.colossal, "info", "--no-measure"], check=True)  # names the processor and the kernels
    print(f"\n{folder.name}, {options.type}, prompts of {options.prompt} tokens, answers of {options.new}, "
          f"{options.threads} threads, {options.rounds} rounds\n")
    print("| what | peer | peer's | colossal | ratio, by round | wanted |\n|---|---|---|---|---|---|", flush=True)
    for clients in options.clients:
        measure_loads(options, gguf, clients)
    if options.starts and "llama-server" not in options.without:
        measure_starts(options, "bf16", folder, export(options, folder, "bf16"), "<= 0.8")
        measure_starts(options, f"{options.type} file", gguf, gguf, "<= 1.5")
    if options.small_requests and "llama-server" not in options.without:
        measure_small_model(options)


if __name__ == "__main__":
    main()
