"""Compares the effect of keys in tokenizer_config.json, together with a tokenizer.json, with AutoTokenizer: both values
of each key, for each class that reads it, with and without config.json. If we refuse a key, we name it."""

import json
import os

import interop

os.environ["HF_HUB_OFFLINE"] = "1"
tokenizers, transformers = interop.need("tokenizers", "transformers")
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

CORPUS = ["Hello world the café naïve don't HELLO 12345 你好 world. the The thé résumé hello cafe naive resume "
          "你 好"] * 3
TEXTS = ["Hello world", " HELLO café thé 你好", "the  The <s> x</s> [MASK] y<mask>z <new> <|endoftext|>q",
         "don't 12345", ""]
MARK = "\u2581"


def learned(kind, pre, special, **options):
    tokenizer = Tokenizer(kind)
    tokenizer.pre_tokenizer = pre
    trainer = {models.BPE: trainers.BpeTrainer, models.WordPiece: trainers.WordPieceTrainer}[type(kind)]
    tokenizer.train_from_iterator(CORPUS,
                                  trainer(vocab_size=420, special_tokens=special, show_progress=False, **options))
    return tokenizer


def byte_level(prefix=False, special=("<|endoftext|>", "<s>", "</s>", "<pad>", "<mask>", "<unk>")):
    made = learned(models.BPE(), pre_tokenizers.ByteLevel(prefix), list(special),
                   initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.decoder = decoders.ByteLevel()
    return made


def bert(lower):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = learned(models.WordPiece(unk_token="[UNK]"), pre_tokenizers.BertPreTokenizer(), special)
    made.normalizer, made.decoder = normalizers.BertNormalizer(lowercase=lower), decoders.WordPiece()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def llama(old):
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    made = json.loads(learned(models.BPE(unk_token="<unk>"), pre_tokenizers.Metaspace(),
                              ["<unk>", "<s>", "</s>", *bytes_]).to_str())
    made["added_tokens"] = made["added_tokens"][:3]
    made["model"].update(fuse_unk=True, byte_fallback=True)
    made = Tokenizer.from_str(json.dumps(made))
    made.pre_tokenizer = None if old else pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    if old:
        made.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    made.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                      decoders.Strip(" ", 1, 0)])
    made.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 1)])
    return made


def roberta(prefix):
    made = byte_level(prefix)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    return made


def qwen():
    made = byte_level(special=["<|endoftext|>"])
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
                                                  pre_tokenizers.ByteLevel(False, use_regex=False)])
    return made


def neox(prefix):
    made = byte_level(prefix, ["<|endoftext|>", "<|padding|>", "<s>"])
    made.normalizer = normalizers.NFC()
    made.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 2)])
    return made


def folder_of(tokenizer, config, model):
    folder = interop.temp_dir / "folder"
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if model is not None:
        (folder / "config.json").write_text(json.dumps(model))
    return folder


def ours(folder):
    """Returns ids, or the error message."""
    lines = interop.temp_dir / "in.jsonl"
    lines.write_text("".join(json.dumps(text) + "\n" for text in TEXTS))
    try:
        got = interop.colossal("tokenize", "--tokenizer", folder, "--json", "--special", lines)
    except AssertionError as error:
        return str(error)
    return [json.loads(line) for line in got.split("\n")[:-1]]


def compare(tokenizer, config, model, may_refuse=None):
    folder = folder_of(tokenizer, config, model)
    got = ours(folder)
    if may_refuse:
        assert isinstance(got, str) and may_refuse in got, (config, model, got)
        return
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    wanted = [auto(text)["input_ids"] for text in TEXTS]
    assert got == wanted, (type(auto).__name__, config, model,
                           list(zip(TEXTS, wanted, got)) if isinstance(got, list) else got)


FLAGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space", "add_bos_token",
         "add_eos_token", "legacy")
CASES = [
    *((bert(lower), name, kind) for lower in (True, False) for name, kind in (
        ("BertTokenizer", "bert"), ("DistilBertTokenizerFast", "distilbert"), ("ElectraTokenizer", None),
        (None, "bert"),
        ("PreTrainedTokenizerFast", None), ("PreTrainedTokenizerFast", "bert"))),
    *((byte_level(prefix), name, kind) for prefix in (True, False) for name, kind in (
        ("GPT2Tokenizer", "gpt2"), ("GPT2TokenizerFast", "llama"), (None, "gpt2"), ("CodeGenTokenizer", None),
        ("GPT2Tokenizer", "stablelm"),
        ("TokenizersBackend", "gpt2"), ("LlamaTokenizer", "llama"), ("BloomTokenizerFast", "bloom"))),
    *((roberta(prefix), name, kind) for prefix in (True, False)
      for name, kind in (("RobertaTokenizer", "roberta"), ("BartTokenizerFast", None))),
    *((neox(prefix), name, kind) for prefix in (True, False)
      for name, kind in (("GPTNeoXTokenizerFast", None), (None, "gpt_neox"))),
    *((qwen(), name, kind)
      for name, kind in (("Qwen2Tokenizer", "qwen2"), ("PreTrainedTokenizerFast", "qwen2"), (None, "qwen3"))),
    *((llama(old), name, kind) for old in (True, False) for name, kind in (
        ("LlamaTokenizer", "llama"), ("LlamaTokenizerFast", None), ("LlamaTokenizer", "phi3"),
        ("LlamaTokenizer", "mistral"))),
]
for tokenizer, name, kind in CASES:
    config, model = ({"tokenizer_class": name} if name else {}), ({"model_type": kind} if kind else None)
    compare(tokenizer, config, model)
    for flag in FLAGS:
        for value in (True, False):
            compare(tokenizer, {**config, flag: value}, model)
print("flags agree for", len(CASES), "folders")

# A class that we do not know: values that the file states are read, and contradictions with it are refused.
compare(bert(False), {"tokenizer_class": "FunnelTokenizer", "do_lower_case": True}, None, "do_lower_case")
compare(byte_level(), {"tokenizer_class": "BlenderbotTokenizer", "add_prefix_space": True}, None, "add_prefix_space")
compare(byte_level(), {"tokenizer_class": "GPT2Tokenizer", "split_special_tokens": True}, None, "split_special_tokens")

# added_tokens_decoder
tokenizer = byte_level()
size, stored = tokenizer.get_vocab_size(), json.loads(tokenizer.to_str())["added_tokens"]


def token(content, **options):
    return {"content": content, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False,
            "special": True, **options}


own = {str(row["id"]): token(row["content"]) for row in stored}
for name in ("PreTrainedTokenizerFast", "GPT2Tokenizer"):
    for changed in ({}, {"1": token("<s>", lstrip=True, rstrip=True)}, {"4": token("<mask>", lstrip=True)},
                    {str(size): token("<new>")},
                    {str(size): token("<new>", rstrip=True, special=False, normalized=True)},
                    {"2": token("</s>", single_word=True)}):
        compare(tokenizer, {"tokenizer_class": name, "added_tokens_decoder": {**own, **changed}},
                {"model_type": "gpt2"})
    for changed in ({str(size + 5): token("<new>")}, {"1": token("<new>")}):
        compare(tokenizer, {"tokenizer_class": name, "added_tokens_decoder": {**own, **changed}}, None,
                "added_tokens_decoder")
compare(tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {"0": own["0"]}}, None)
compare(tokenizer, {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"0": own["0"]}}, None,
        "added_tokens_decoder")
print("added tokens agree")
