"""Encoding text with GPT-2's vocabulary and with one like LLaMA 3's (its pattern, cl100k_base's ranks): ours beside
Hugging Face `tokenizers` and tiktoken, in one run.

    .venv/bin/python benchmarks/tokenizing.py --text FOLDER [--megabytes 100] [--threads 2] [--rounds 1]
        [--vocabulary gpt2|llama3] [--lines]

Takes the first megabytes of the files below --text that are UTF-8, a file a text, or with --lines a line a text. Ours
is `colossal tokenize --json --count` with a JSON string a line, less the time that it takes on an empty file (reading
the vocabulary): reading the file and parsing JSON count. The others' are their batch calls, 8 MB at a time, the texts
being in memory. Each is the best of the rounds, which alternate. Tokens are counted and must be as many. Needs
./colossal.sh build, ../shared/data and tests/interop/requirements.txt.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = SOURCE / "build/release/colossal"
TOKENIZERS = SOURCE / "../shared/data/tokenizers"
R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
BINARY = {".gz", ".png", ".jpg", ".bin", ".safetensors", ".gguf", ".model", ".tiktoken", ".so", ".a", ".pyc", ".npz",
          ".whl"}


def texts_of(folder, wanted, lines):
    texts, size = [], 0
    for file in sorted(pathlib.Path(folder).rglob("*")):
        if size >= wanted:
            break
        if file.suffix in BINARY or not file.is_file() or file.is_symlink():
            continue
        try:
            text = file.read_bytes().decode()
        except UnicodeDecodeError:
            continue
        for part in text.splitlines() if lines else [text]:
            if part and size < wanted:
                texts.append(part)
                size += len(part.encode())
    return texts, size


def chunks_of(texts, size=8_000_000):
    chunks, room = [[]], size
    for text in texts:
        chunks[-1].append(text)
        room -= len(text)
        if room <= 0:
            chunks.append([])
            room = size
    return chunks


def seconds(work):
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def ours(vocabulary, file, threads):
    command = [PROGRAM, "tokenize", "--tokenizer", vocabulary, "--threads", str(threads), "--json", "--count", file]
    took, done = seconds(lambda: subprocess.run(command, check=True, capture_output=True, text=True))
    return took, int(done.stdout)


def in_chunks(chunks, encode):
    took = count = 0
    for chunk in chunks:
        spent, made = seconds(lambda: encode(chunk))
        took += spent
        count += sum(map(len, made))
    return took, count


def byte_alphabet():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return {byte: chr(byte if byte in printable else next(others)) for byte in range(256)}


def as_tokenizer(ranks, pattern):
    """The package's BPE of tiktoken's ranks: each join that makes a token, in order of what it makes."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    alphabet = byte_alphabet()
    spelled = {token: "".join(alphabet[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(spelled[left], spelled[right])
                   for left, right in sorted(cuts, key=lambda cut: (ranks[cut[0]], ranks[cut[1]]))]
    tokenizer = Tokenizer(models.BPE(vocab={spelled[token]: rank for token, rank in ranks.items()}, merges=merges,
                                     ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return tokenizer


def compare(name, texts, size, options, folder):
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
    original = TOKENIZERS / ("gpt2/gpt2.tiktoken" if name == "gpt2" else "tiktoken/cl100k_base/cl100k_base.tiktoken")
    vocabulary = original
    if name == "llama3":
        vocabulary = folder / "ranks.tiktoken"
        vocabulary.write_bytes(original.read_bytes())
        (folder / "encoding.json").write_text(json.dumps({"pattern": LLAMA3}))
    ranks = load_tiktoken_bpe(str(original))
    encoding = tiktoken.Encoding(name, pat_str=R50K if name == "gpt2" else LLAMA3, mergeable_ranks=ranks,
                                 special_tokens={})
    tokenizer = as_tokenizer(ranks, GPT2 if name == "gpt2" else LLAMA3)
    file, empty = folder / "texts", folder / "empty"
    file.write_text("".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts))
    empty.write_text("")
    chunks, best = chunks_of(texts), {}
    for _ in range(options.rounds):
        load, _ = ours(vocabulary, empty, options.threads)
        took, count = ours(vocabulary, file, options.threads)
        times = {"colossal": took - load}
        times["tiktoken"], theirs = in_chunks(
            chunks, lambda chunk: encoding.encode_ordinary_batch(chunk, num_threads=options.threads))
        assert theirs == count, (name, theirs, count)
        times["tokenizers"], theirs = in_chunks(
            chunks, lambda chunk: tokenizer.encode_batch_fast(chunk, add_special_tokens=False))
        assert theirs == count, (name, theirs, count)
        best = {peer: min(spent, best.get(peer, spent)) for peer, spent in times.items()}
    peers = min(spent for peer, spent in best.items() if peer != "colossal")
    rates = ", ".join(f"{peer} {size / spent / 1e6:.1f} MB/s" for peer, spent in best.items())
    print(f"{name}: {len(texts)} {'lines' if options.lines else 'files'}, {size / 1e6:.1f} MB, "
          f"{options.threads} threads, {count} tokens: {rates}; "
          f"{peers / best['colossal']:.2f}x the faster")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--vocabulary", choices=("gpt2", "llama3"))
    parser.add_argument("--lines", action="store_true", help="a line is a text, not a file")
    options = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)
    texts, size = texts_of(options.text, options.megabytes * 1e6, options.lines)
    with tempfile.TemporaryDirectory() as folder:
        for name in [options.vocabulary] if options.vocabulary else ("gpt2", "llama3"):
            compare(name, texts, size, options, pathlib.Path(folder))


if __name__ == "__main__":
    main()
