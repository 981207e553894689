"""Compares reward models with transformers, both ways: `colossal score` of ...ForSequenceClassification folders, and
transformers' score of folders that a run and `colossal export` write. Adapters of peft bring their head."""

import json

import interop

torch, transformers, peft = interop.need("torch", "transformers", "peft")

END, PAD = 256, 257
SIZES = dict(vocab_size=260, num_labels=1, bos_token_id=END, eos_token_id=END, pad_token_id=PAD)
LLAMA = dict(**SIZES, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False)
MODELS = {
    "llama": (transformers.LlamaForSequenceClassification, transformers.LlamaConfig(**LLAMA)),
    "qwen2": (transformers.Qwen2ForSequenceClassification,
              transformers.Qwen2Config(**{**LLAMA, "tie_word_embeddings": True})),
    "gpt2": (transformers.GPT2ForSequenceClassification,
             transformers.GPT2Config(**SIZES, n_embd=32, n_layer=2, n_head=4, n_positions=128)),
    "opt": (transformers.OPTForSequenceClassification,
            transformers.OPTConfig(**SIZES, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
                                   max_position_embeddings=128, word_embed_proj_dim=16)),
}
PAIRS = [{"prompt": f"Add {i}: ", "chosen": f"It is {i}." + " So it is." * (i % 3), "rejected": "no" * (i % 4 + 1)}
         for i in range(12)]

# Updates below the rounding of the weights change nothing.
UNCHANGED = ["--training.steps=1", "--optimizer.learning_rate=1e-15"]


def ids_of(text):
    return [*text.encode(), END]


def texts_of(pairs):
    return [pair["prompt"] + pair[answer] for pair in pairs for answer in ("chosen", "rejected")]


def theirs(model, texts):
    """Returns the scores of a batch with padding on the right, of which transformers reads the last other token."""
    model.config.pad_token_id = PAD
    rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids_of(text)) for text in texts], True, PAD)
    with torch.no_grad():
        return model.eval()(rows, attention_mask=(rows != PAD).long()).logits[:, 0].double()


def ours(folder, pairs, *flags):
    file = interop.temp_dir / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    lines = interop.colossal("score", "--from", folder, "--input", file, "--tokenizer", "bytes", *flags).splitlines()
    return torch.tensor([json.loads(line)[key] for line in lines for key in ("chosen", "rejected")]).double()


def compare(name, got, wanted, model):
    limit = interop.rounding(model, torch.zeros(1, 64), 2**-24) * wanted.abs().max().item()
    off = (got - wanted).abs().max().item()
    assert got.shape == wanted.shape and off <= limit, (name, got, wanted, off, limit)
    assert wanted.std() > 100 * limit, (name, "all texts have the same score")
    print(name, "agrees within", off)


def run_from(folder, name, *flags):
    """Trains a reward model from a folder for a few steps, and returns the run folder."""
    run = interop.temp_dir / name
    data = interop.temp_dir / "train.jsonl"
    data.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    config = interop.temp_dir / "reward.toml"
    config.write_text("[alignment]\nmethod = \"reward\"\n")
    interop.colossal("train", config, f"--model.from={folder}", f"--run.folder={run}", f"--data.path={data}",
                     "--data.tokenizer=bytes", "--data.held_out=0", "--data.sequence=64", "--training.steps=6",
                     "--training.batch_size=4", "--training.evaluate_batches=0", "--optimizer.learning_rate=0.01",
                     "--run.device=cpu", *flags)
    return run


folders = {}
for name, (kind, config) in MODELS.items():
    model = kind(config)
    folders[name] = interop.save(name, model)
    wanted = theirs(model, texts_of(PAIRS))
    compare(name, ours(folders[name], PAIRS), wanted, model)
compare("two ranks", ours(folders["opt"], PAIRS, "--parallel.tensor=2"), wanted, model)
compare("two stages", ours(folders["opt"], PAIRS, "--parallel.pipeline=2"), wanted, model)

# A run from a model that continues text writes a folder that transformers reads.
causal = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, "pad_token_id": END}))
base = interop.save("causal", causal)
run = run_from(base, "run")
interop.colossal("export", "--from", run, "--to", interop.temp_dir / "hf")
folder = interop.temp_dir / "hf"
config = json.loads((folder / "config.json").read_text())
assert config["architectures"] == ["LlamaForSequenceClassification"] and config["pad_token_id"] is None, config
read, notes = transformers.LlamaForSequenceClassification.from_pretrained(folder, output_loading_info=True)
assert not notes["missing_keys"] and not notes["unexpected_keys"], notes
assert read.score.weight.shape == (1, 32) and read.score.weight.abs().max() > 0
compare("a run", ours(run, PAIRS), theirs(read, texts_of(PAIRS)), read)
compare("its export", ours(folder, PAIRS), theirs(read, texts_of(PAIRS)), read)

# A published reward model is trained further with its head.
further = run_from(folders["llama"], "further", *UNCHANGED)
kind, _ = MODELS["llama"]
published = kind.from_pretrained(folders["llama"])
compare("a run that starts with a head", ours(further, PAIRS), theirs(published, texts_of(PAIRS)), published)

# Adapters of peft, whose head is a module that was trained whole.
model = peft.get_peft_model(kind.from_pretrained(base, num_labels=1, pad_token_id=PAD),
                            peft.LoraConfig(task_type="SEQ_CLS", r=3, target_modules=["q_proj", "v_proj"]))
torch.manual_seed(5)
with torch.no_grad():
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter) * 0.1)
model.save_pretrained(interop.temp_dir / "peft")
compare("adapters of peft", ours(base, PAIRS, "--adapter", interop.temp_dir / "peft"), theirs(model, texts_of(PAIRS)),
        causal)
run = run_from(base, "from-peft", f"--adapter.from={interop.temp_dir / 'peft'}", *UNCHANGED)
compare("a run that starts with adapters of peft", ours(run, PAIRS), theirs(model, texts_of(PAIRS)), causal)
run = run_from(base, "lora", "--adapter.kind=lora", "--adapter.rank=3")
interop.colossal("export", "--from", run, "--adapter-only", "--to", interop.temp_dir / "ours")
read = peft.PeftModel.from_pretrained(kind.from_pretrained(base, num_labels=1, pad_token_id=PAD),
                                      interop.temp_dir / "ours")
compare("adapters of a run", ours(run, PAIRS), theirs(read, texts_of(PAIRS)), causal)
