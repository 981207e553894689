"""Compares our tokenizers with the packages that wrote the files: `tokenizers`, `sentencepiece` and `tiktoken`. The
vocabularies are small ones made here with every section and option, and the ones in ../shared/data if they exist.
Compares ids and decoded texts of random texts (COLOSSAL_TOKENIZER_TEXTS of them, default 500)."""

import gzip
import json
import os
import random
import unicodedata

import interop

tokenizers, sentencepiece, tiktoken = interop.need("tokenizers", "sentencepiece", "tiktoken")
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,  # noqa: E402
                        processors, trainers)

SHARED = interop.source_dir / ".." / "shared" / "data" / "tokenizers"
COUNT = int(os.environ.get("COLOSSAL_TOKENIZER_TEXTS", "500"))
# Characters of Unicode 3.2: later ones have another class in one of the packages' tables.
OLD = [c for c in map(chr, range(1, 0x30000)) if unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Cs", "Co")]
# Characters whose class changed since then, in the oldest of these tables.
OLD = [c for c in OLD if c not in "\u1734\u166d" and unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c)]
ODD = list(
    "\u200b\u200c\u200d\u200e\u202e\ufeff\u00ad\u0301\u0323\u0308\u20dd\u3000\u00a0\u0085\u2028\u05d0\u0627\u0e33"
    "\u1100\u1161\u11a8\U0001f469\U0001f468\U0001f3fd\ufe0f\U0001f1e9\U0001f1ea\u0130\u0131\u00df\u017f\ufb01"
    "\u212b\u1e9b\u03a3\u0391\u0345\u4e2d\uac00\uff21\u2460\u00bd\u2581\u0120"
    "\ufffd\x01\x07\x1b\x7f\u009f\t\r\n '\"`.,!?-_<>|/\\0123456789")
WORDS = ("the of and Hello world I'll don't we've 'S 12345 3.14 x=y; naïve café résumé <s> </s> [MASK] "
         "<|endoftext|> <pad> [CLS] ROMEO: "
         "the  and   antidisestablishmentarianism 你好 мир שלום مرحبا नमस्ते 한국어 do "
         "not can't ... -- :) ``quoted'' \n\n \t").split(" ")


def text_of(rng):
    parts = []
    for _ in range(rng.randint(0, 12)):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(WORDS))
        elif kind < 0.6:
            parts.append("".join(rng.choice(ODD) for _ in range(rng.randint(1, 5))))
        elif kind < 0.75:
            parts.append("".join(rng.choice(OLD) for _ in range(rng.randint(1, 5))))
        elif kind < 0.9:
            parts.append("".join(chr(rng.randint(32, 126)) for _ in range(rng.randint(1, 8))))
        else:
            parts.append(" " * rng.randint(1, 4))
        if rng.random() < 0.5:
            parts.append(" ")
    return "".join(parts)


def texts(seed, count):
    rng = random.Random(seed)
    return [text_of(rng) for _ in range(count)]


def lossy_runs(text):
    """The packages write one U+FFFD per byte. We write one for as many bytes as a UTF-8 decoder replaces at once."""
    while "\ufffd\ufffd" in text:
        text = text.replace("\ufffd\ufffd", "\ufffd")
    return text


def ours(name, lines, *flags):
    file = interop.temp_dir / "in.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [json.loads(line)
            for line in interop.colossal("tokenize", "--tokenizer", name, *flags, file).split("\n")[:-1]]


def survives(encode, text):
    """tokenizers 0.23.3 panics on some texts in which an added token strips white space."""
    try:
        encode(text)
        return True
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return False


def compare(what, name, given, encode, decode, encode_special=None):
    given = [text for text in given if survives(encode, text)]
    wanted = [encode(text) for text in given]
    got = ours(name, given, "--json")
    for text, a, b in zip(given, wanted, got, strict=True):
        assert a == b, (what, text, a, b)
    decoded = ours(name, wanted, "--decode") if decode else []
    for ids, a, b in zip(wanted, map(decode, wanted) if decode else [], decoded):
        assert lossy_runs(a) == lossy_runs(b), (what, ids, a, b)
    if encode_special:
        some = given[: max(100, len(given) // 10)]
        for text, b in zip(some, ours(name, some, "--json", "--special"), strict=True):
            assert encode_special(text) == b, (what, text, encode_special(text), b)
    print(what, "agrees on", len(given), "texts")


def clip_text(text):
    """CLIP's tokenizer of transformers makes a space of the end of a word, which the package leaves."""
    return text.replace("</w>", " ").removesuffix(" ")


def compare_hf(what, tokenizer, name, count, decodes=True):
    tokenizer.no_padding(), tokenizer.no_truncation()
    compare(what, name, texts(what, count), lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
            decodes and (lambda ids: (clip_text if what == "clip" else str)(
                tokenizer.decode(ids, skip_special_tokens=True))),
            lambda text: tokenizer.encode(text).ids)


# --- every section, on vocabularies of a few hundred tokens

CORPUS = [" ".join(WORDS)] * 3 + ["".join(c if c.isascii() else "é" for c in text) for text in texts("corpus", 400)]
SPECIAL = ["<unk>", "<s>", "</s>", "[MASK]", "[CLS]", "[SEP]"]


def trained(kind, **options):
    common = {"vocab_size": 2500, "special_tokens": SPECIAL, "show_progress": False}
    made = {"bpe": (models.BPE(unk_token="<unk>"), trainers.BpeTrainer),
            "unigram": (models.Unigram(), trainers.UnigramTrainer),
            "wordpiece": (models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer),
            "wordlevel": (models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer)}[kind]
    tokenizer = Tokenizer(made[0])
    tokenizer.pre_tokenizer = options.pop("pre", pre_tokenizers.Whitespace())
    if kind == "unigram":
        common["unk_token"] = "<unk>"
    tokenizer.train_from_iterator(CORPUS, made[1](**common, **options))
    return json.loads(tokenizer.to_str())


def with_sections(base, **sections):
    made = json.loads(json.dumps(base))
    for key, section in sections.items():
        part = Tokenizer(models.BPE())
        setattr(part, key, section)
        made[key] = json.loads(part.to_str())[key]
    return made


def check(what, description, count=150, decodes=True):
    file = interop.temp_dir / "tokenizer.json"
    file.write_text(json.dumps(description))
    compare_hf(what, Tokenizer.from_str(json.dumps(description)), file, count, decodes)


bpe, unigram, wordpiece = trained("bpe"), trained("unigram"), trained("wordpiece", continuing_subword_prefix="##")
byte_level = trained("bpe", pre=pre_tokenizers.ByteLevel(), initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
suffixed = trained("bpe", end_of_word_suffix="</w>")
prefixed = trained("bpe", continuing_subword_prefix="@@")
for name, base in (("bpe", bpe), ("unigram", unigram), ("wordpiece", wordpiece), ("byte level", byte_level),
                   ("suffix", suffixed),
                   ("prefix", prefixed), ("wordlevel", trained("wordlevel"))):
    check(name, base)
for option in ("fuse_unk", "byte_fallback", "ignore_merges"):
    for base in (bpe, byte_level):
        changed = json.loads(json.dumps(base))
        changed["model"][option] = True
        check(option, changed)
fallback = json.loads(json.dumps(unigram))
fallback["model"]["vocab"] += [[f"<0x{byte:02X}>", -9.0] for byte in range(256)]
fallback["model"]["byte_fallback"] = True
check("unigram bytes", with_sections(fallback, decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])))

N, P, D = normalizers, pre_tokenizers, decoders
for normalizer in (N.NFC(), N.NFD(), N.NFKC(), N.NFKD(), N.Lowercase(), N.Strip(), N.Strip(True, False),
                   N.Strip(False, True), N.Sequence([N.NFD(), N.StripAccents()]), N.BertNormalizer(),
                   N.BertNormalizer(False, True, None, False), N.BertNormalizer(True, False, True, False), N.Nmt(),
                   N.Prepend("_"), N.Replace("a", "bb"), N.Replace(Regex(r"\s+"), " "), N.Replace(Regex(r"x*"), "-"),
                   N.Replace(Regex(r"\b"), "|"), N.ByteLevel()):
    for base in (bpe, unigram):
        check(str(normalizer)[:60], with_sections(base, normalizer=normalizer))
splits = [P.Split(pattern, behavior, invert)
          for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")
          for invert in (False, True) for pattern in (" ", Regex(r"[.,!?]+"), Regex(r"(?=\p{Lu})"))]
splits += [P.Split(Regex(pattern), "isolated") for pattern in (
    " ?[^(\\s|[.,!?…。，、।۔،])]+", r"[a[b-d-]z]+", r"[[\d\]]x]+", r"(?:\p{L}\p{M}*)+", r"\p{L}+", r"\pL+",
    r"[\pLe]+", r"\d{1,3}+", r"\s?\p{P}+", r"[a-z]{2}?", r"a{,2}", r"[[:punct:]]+", r"\v",
    "[一-龥ࠀ-一가-\ud7ff]+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s")]
for cut in (*splits, P.Whitespace(), P.WhitespaceSplit(), P.BertPreTokenizer(), P.Punctuation(),
            P.Punctuation("contiguous"), P.Punctuation("merged_with_next"), P.Digits(), P.Digits(True),
            P.CharDelimiterSplit("e"), P.FixedLength(3), P.Metaspace(), P.Metaspace(prepend_scheme="first"),
            P.Metaspace(prepend_scheme="never", split=False), P.Metaspace(replacement="_"),
            P.Sequence([P.WhitespaceSplit(), P.Metaspace(prepend_scheme="first")]),
            P.Sequence([P.Punctuation(), P.Digits()])):
    check(str(cut)[:60], with_sections(bpe, pre_tokenizer=cut), 60)
for cut in (P.ByteLevel(), P.ByteLevel(False), P.ByteLevel(False, use_regex=False),
            P.Sequence([P.ByteLevel(False), P.Digits(True)]),
            P.Sequence([P.Punctuation("contiguous"), P.ByteLevel(False), P.Digits(),
                        P.Split(Regex("[0-9][0-9]"), "isolated")]), P.Sequence([P.Metaspace(), P.ByteLevel()]),
            P.Sequence([P.ByteLevel(), P.Metaspace()]), P.Sequence([P.ByteLevel(), P.ByteLevel()])):
    check(str(cut)[:60], with_sections(byte_level, pre_tokenizer=cut))
    check(str(cut)[:60], with_sections(wordpiece, pre_tokenizer=cut), 60)
for decoder in (D.ByteLevel(), D.WordPiece(), D.WordPiece("@@", False), D.Metaspace(),
                D.Metaspace(prepend_scheme="never"), D.BPEDecoder(), D.ByteFallback(), D.Fuse(), D.Strip("t", 1, 0),
                D.Strip("t", 0, 1), D.Replace("a", "b"), D.Replace(Regex("[aeiou]"), ""), D.CTC(),
                D.Sequence([D.Replace("a", " "), D.Fuse(), D.Strip(" ", 1, 0)])):
    for base in (bpe, wordpiece):
        check(str(decoder)[:60], with_sections(base, decoder=decoder), 60)
for processor in (processors.BertProcessing(("[SEP]", 5), ("[CLS]", 4)),
                  processors.RobertaProcessing(("[SEP]", 5), ("[CLS]", 4)), processors.ByteLevel(),
                  processors.TemplateProcessing("<s> $A </s> </s>", None, [("<s>", 1), ("</s>", 2)])):
    check(str(processor)[:60], with_sections(bpe, post_processor=processor), 60)
for seed in range(12):
    rng = random.Random(seed)
    added = Tokenizer.from_str(json.dumps(with_sections(bpe, normalizer=N.Lowercase())))
    for content in rng.sample(["Hello", "the", " the", "café", "<s>x", "an", "and", "12", "  ", "\n", "I'll", "ROMEO"],
                              5):
        added.add_tokens([AddedToken(content, single_word=rng.random() < 0.4, lstrip=rng.random() < 0.4,
                                     rstrip=rng.random() < 0.4, normalized=rng.random() < 0.5,
                                     special=rng.random() < 0.3)])
    # tokenizers 0.23.3 decodes a normalized token to its normalized content, and prints it although it is special. We
    # use the file's content.
    check(f"added tokens {seed}", json.loads(added.to_str()), decodes=False)

# --- vocabularies that we train

(interop.temp_dir / "learn.txt").write_text("\n".join(CORPUS + texts("learn", 2000)))
for size, least in ((1500, 0), (100000, 2)):
    wanted = Tokenizer(models.BPE())
    wanted.pre_tokenizer = P.ByteLevel(add_prefix_space=False)
    wanted.train([str(interop.temp_dir / "learn.txt")], trainers.BpeTrainer(
        vocab_size=size, min_frequency=least, special_tokens=SPECIAL, initial_alphabet=P.ByteLevel.alphabet(),
        show_progress=False))
    folder = interop.temp_dir / f"learnt{size}"
    special = [word for token in SPECIAL for word in ("--special", token)]
    interop.colossal("tokenizer", "train", "--vocabulary", size, "--min-frequency", least, "--to", folder, "--threads",
                     2, *special, "--end", SPECIAL[0], interop.temp_dir / "learn.txt")
    got, model = json.loads((folder / "tokenizer.json").read_text()), json.loads(wanted.to_str())["model"]
    assert got["model"]["merges"] == model["merges"] and got["model"]["vocab"] == model["vocab"], size
    print("learns the same", len(model["vocab"]), "tokens")
    check("learnt", got)

# pieces of words: all initial pieces, and the remaining ones of many
lines = interop.temp_dir / "lines.txt"
lines.write_text("".join(" ".join(random.Random(i).choices(WORDS[:40], k=9)).replace("\n", "") + "\n"
                         for i in range(400)))
syllables, prose = ["ba", "ko", "lim", "tra", "ne", "su", "caf\u00e9", "st", "ing"], interop.temp_dir / "prose.txt"
prose.write_text("".join(
    " ".join("".join(random.Random(word).choices(syllables, k=1 + word % 4))
             for word in random.Random(i).choices(range(500), k=12)) + "\n" for i in range(400)))
for file, size in (lines, 4000), (prose, 600), (prose, 150), (prose, 60):
    wanted = Tokenizer(models.Unigram())
    wanted.normalizer = N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(" {2,}"), " ")])
    wanted.pre_tokenizer = P.Metaspace()
    wanted.train([str(file)], trainers.UnigramTrainer(vocab_size=size, special_tokens=["</s>"], unk_token="<unk>",
                                                      show_progress=False))
    folder = interop.temp_dir / f"pieces{size}"
    interop.colossal("tokenizer", "train", "--kind", "unigram", "--vocabulary", size, "--to", folder, file)
    wanted, got = (dict(map(tuple, made["model"]["vocab"])) for made in (
        json.loads(wanted.to_str()), json.loads((folder / "tokenizer.json").read_text())))
    assert wanted.keys() == got.keys(), (size, wanted.keys() ^ got.keys())
    # A removed character has a score that depends on an order, which is random there.
    is_same = all(len(piece) == 1 or abs(score - got[piece]) < 1e-6 for piece, score in wanted.items())
    assert is_same, "learned scores differ"
    print("learns the same", len(wanted), "pieces")

# --- sentencepiece, trained here

(interop.temp_dir / "corpus.txt").write_text("\n".join(CORPUS).replace("\0", ""))
for kind in ("unigram", "bpe", "char", "word"):
    for options in ({}, {"normalization_rule_name": "nmt_nfkc_cf", "treat_whitespace_as_suffix": True},
                    {"normalization_rule_name": "identity", "remove_extra_whitespaces": False,
                     "user_defined_symbols": ["<x>", "the"]},
                    {"byte_fallback": True, "add_dummy_prefix": False, "control_symbols": ["[CLS]"],
                     "split_digits": True}):
        if kind in ("char", "word") and "byte_fallback" in options:
            continue
        sentencepiece.SentencePieceTrainer.train(input=str(interop.temp_dir / "corpus.txt"),
                                                 model_prefix=str(interop.temp_dir / "sp"), model_type=kind,
                                                 vocab_size=2500, hard_vocab_limit=False, minloglevel=2, **options)
        model = sentencepiece.SentencePieceProcessor(model_file=str(interop.temp_dir / "sp.model"))
        compare(f"sentencepiece {kind} {options}", interop.temp_dir / "sp.model", texts(kind, 300), model.encode,
                model.decode)

# --- published vocabularies

if not SHARED.exists():
    print("no vocabularies that people use: there is no", SHARED)
else:
    for folder in sorted((SHARED / "hf").iterdir()):
        name = folder / "tokenizer.json"
        if not name.exists():
            name = interop.temp_dir / "tokenizer.json"
            name.write_bytes(gzip.decompress((folder / "tokenizer.json.gz").read_bytes()))
        compare_hf(folder.name, Tokenizer.from_file(str(name)), name, COUNT)
    for name in (*sorted((SHARED / "sentencepiece").glob("*.model")), SHARED / "mistral-v1" / "tokenizer.model"):
        model = sentencepiece.SentencePieceProcessor(model_file=str(name))
        compare(name.name, name, texts(name.name, COUNT), model.encode, model.decode)
    from tiktoken.load import load_tiktoken_bpe
    gpt2_rules = {"pattern": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
                  "special_tokens": {"<|endoftext|>": 50256}}
    cl100k_rules = json.loads((SHARED / "tiktoken/cl100k_base/encoding.json").read_text())
    for name, rules in ("cl100k_base", cl100k_rules), ("gpt2", gpt2_rules):
        file = SHARED / ("tiktoken/cl100k_base/cl100k_base.tiktoken" if name == "cl100k_base" else "gpt2/gpt2.tiktoken")
        encoding = tiktoken.Encoding(name, pat_str=rules["pattern"], mergeable_ranks=load_tiktoken_bpe(str(file)),
                                     special_tokens=rules["special_tokens"])
        compare(f"tiktoken {name}", file, texts(name, COUNT), lambda text: encoding.encode(text, allowed_special="all"),
                lambda ids: encoding.decode([i for i in ids if i not in rules["special_tokens"].values()]))
