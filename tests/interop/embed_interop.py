"""Compares `colossal embed` with transformers: hidden states of a BERT and a GPT-2 with random weights, and every
pooling by the formulas of sentence-transformers (sums over the attention mask of a padded batch). The folders are plain
ones and one that sentence-transformers writes, on one rank and two ranks."""

import json
import random
import subprocess

import interop

np, torch, transformers = interop.need("numpy", "torch", "transformers")

WORDS = ["play", "##ing", "caf", "##e", "the", "cat", "##s", ",", "of", "a", "b", "##c"]
POSITIONS = 24


def texts():
    generator = random.Random(4)
    made = ["the cat", "", "caf\u00e9, playing"]
    made += [" ".join(generator.choice(["play", "playing", "cats", "the", "abc", "of,", "x"])
                      for _ in range(generator.randrange(1, 40))) for _ in range(40)]
    return made


def tokenizer_of(folder):
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (interop.temp_dir / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    key = "vocab" if transformers.__version__ >= "5" else "vocab_file"
    tokenizer = transformers.BertTokenizerFast(**{key: str(interop.temp_dir / "vocab.txt")})
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def pooled(hidden, mask, pooler):
    """Returns {pooling: vectors} from hidden states [B, T, H] of a batch padded on the right."""
    seen = mask[..., None].to(hidden.dtype)
    last = mask.sum(1) - 1
    made = {
        "cls": hidden[:, 0],
        "mean": (hidden * seen).sum(1) / seen.sum(1).clamp(min=1e-9),
        "max": hidden.masked_fill(seen == 0, -1e9).max(1).values,
        "last": hidden[torch.arange(len(hidden)), last],
    }
    return made if pooler is None else made | {"pooler": pooler}


def close(name, ours, theirs, limit):
    off = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert ours.shape == theirs.shape and off <= limit, (name, ours.shape, theirs.shape, off, limit)
    return off


def embed(folder, *flags, output=None):
    words = ["embed", "--from", folder, "--input", interop.temp_dir / "texts.txt", *flags]
    if output:
        interop.colossal(*words, "--output", output)
        return np.load(output)
    return np.array([json.loads(line)["embedding"] for line in interop.colossal(*words).splitlines()])


def check_poolings(name, model, folder, encoded, has_pooler):
    with torch.no_grad():
        made = model.double()(**encoded)
    wanted = pooled(made.last_hidden_state, encoded["attention_mask"], made.pooler_output if has_pooler else None)
    limit = interop.rounding(model, encoded["input_ids"], 2**-24)
    for pooling, theirs in wanted.items():
        theirs = theirs.numpy()
        off = close((name, pooling), embed(folder, "--pooling", pooling), theirs, limit)
        npy = embed(folder, "--pooling", pooling, "--normalize", output=interop.temp_dir / "v.npy")
        assert npy.dtype == np.float32
        close((name, pooling, "normalized"), npy, theirs / np.linalg.norm(theirs, axis=1, keepdims=True), limit)
        print(name, pooling, "agrees within", off)
    ranks = embed(folder, "--pooling", "mean", "--parallel.tensor=2")
    close((name, "two ranks"), ranks, wanted["mean"].numpy(), limit)
    return wanted, limit


def check_sentence_folder(bert, folder, tokenizer):
    """Adds the files of sentence-transformers to the folder: lengths, a prompt, a pooling, normalization."""
    files = {
        "modules.json": [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
                         for i, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"),
                                                           ("2_Normalize", "Normalize")])],
        "1_Pooling/config.json": {"word_embedding_dimension": 48, "pooling_mode_cls_token": False,
                                  "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True,
                                  "pooling_mode_mean_sqrt_len_tokens": False},
        "sentence_bert_config.json": {"max_seq_length": 9, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "the cats: ", "none": ""},
                                              "default_prompt_name": None},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    for flags, prompt in [[], ""], [["--prompt-name", "query"], "the cats: "]:
        encoded = tokenizer([prompt + text for text in texts()], padding=True, truncation=True, max_length=9,
                            return_tensors="pt")
        with torch.no_grad():
            hidden = bert(**encoded).last_hidden_state
        theirs = torch.nn.functional.normalize(pooled(hidden, encoded["attention_mask"], None)["max"], dim=1).numpy()
        close(("sentence-transformers", prompt), embed(folder, *flags), theirs,
              interop.rounding(bert, encoded["input_ids"], 2**-24))
    print("a folder of sentence-transformers agrees")


def check_bert():
    model = transformers.BertModel(
        transformers.BertConfig(vocab_size=5 + len(WORDS), hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                                intermediate_size=88, max_position_embeddings=POSITIONS))
    folder = interop.save("bert", model)
    tokenizer = tokenizer_of(folder)
    encoded = tokenizer(texts(), padding=True, truncation=True, max_length=POSITIONS, return_tensors="pt")
    lengths = encoded["attention_mask"].sum(1)
    assert (lengths == POSITIONS).any() and (lengths == 2).any()
    check_poolings("bert", model, folder, encoded, True)
    check_sentence_folder(model, folder, tokenizer)
    # The command reports the length to which it cuts a text.
    done = subprocess.run([interop.binary, "embed", "--from", folder, "--text", "play " * 50, "--with-text"],
                          capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["text"] == "play " * 50, done
    assert "1 texts have more than 9 tokens and were truncated, first text 1" in done.stderr, done.stderr


def check_heads():
    """A masked-token head is ignored, and a classifier's pooler is found."""
    for kind in transformers.BertForMaskedLM, transformers.BertForSequenceClassification:
        model = kind(transformers.BertConfig(vocab_size=5 + len(WORDS), hidden_size=48, num_hidden_layers=2,
                                             num_attention_heads=4, intermediate_size=88,
                                             max_position_embeddings=POSITIONS))
        folder = interop.save(kind.__name__, model)
        tokenizer = tokenizer_of(folder)
        encoded = tokenizer(texts(), padding=True, truncation=True, max_length=POSITIONS, return_tensors="pt")
        check_poolings(kind.__name__, model.bert, folder, encoded, kind is transformers.BertForSequenceClassification)


def check_gpt2():
    model = transformers.GPT2Model(transformers.GPT2Config(vocab_size=256, n_embd=48, n_layer=2, n_head=4,
                                                           n_positions=64, attn_pdrop=0))
    folder = interop.save("gpt2", model)
    with (interop.temp_dir / "texts.txt").open() as file:
        rows = [list(line.rstrip("\n").encode())[:64] for line in file]
    length = max(map(len, rows))
    encoded = {
        "input_ids": torch.tensor([row + [0] * (length - len(row)) for row in rows]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows]),
    }
    with torch.no_grad():
        hidden = model.double()(**encoded).last_hidden_state
    limit = interop.rounding(model, encoded["input_ids"], 2**-24)
    for pooling, theirs in pooled(hidden, encoded["attention_mask"], None).items():
        close(("gpt2", pooling), embed(folder, "--pooling", pooling, "--tokenizer", "bytes"), theirs.numpy(), limit)
    print("gpt2 agrees")


(interop.temp_dir / "texts.txt").write_text("\n".join(texts()) + "\n")
check_bert()
check_heads()
(interop.temp_dir / "texts.txt").write_text("\n".join(text for text in texts() if text) + "\n")
check_gpt2()
