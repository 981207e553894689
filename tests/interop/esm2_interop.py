"""Imports and exports random ESM-2s of transformers, with and without a head. Logits, loss, gradients, ids of sequences
and embeddings equal theirs, also with padding and masks, and a run on a FASTA file exports their weights."""

import json

import interop

np, torch, transformers = interop.need("numpy", "torch", "transformers")

TOKENS = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>".split()
CHAINS = ["MKTAYIAKQRQISFVK", "MK<mask>TA<mask>", "QRS", "mkX GAVLI<null_1>-."]
LAYOUTS = [[], ["--parallel.tensor=2"], ["--parallel.sequence.size=2", "--parallel.sequence.mode=ring"]]


def config(**more):
    return transformers.EsmConfig(vocab_size=len(TOKENS), mask_token_id=32, pad_token_id=1, hidden_size=24,
                                  num_hidden_layers=3, num_attention_heads=4, intermediate_size=50,
                                  hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                                  max_position_embeddings=40, layer_norm_eps=1e-5, position_embedding_type="rotary",
                                  emb_layer_norm_before=False, token_dropout=True, **more)


def tokenizer_of(folder):
    (interop.temp_dir / "vocab.txt").write_text("\n".join(TOKENS))
    tokenizer = transformers.EsmTokenizer(str(interop.temp_dir / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    return tokenizer


def check_ids(tokenizer, folder):
    (interop.temp_dir / "chains.txt").write_text("".join(f"{chain}\n" for chain in CHAINS))
    lines = interop.colossal("tokenize", "--tokenizer", folder, "--special", interop.temp_dir / "chains.txt")
    ours = [json.loads(line) for line in lines.splitlines()]
    assert ours == [tokenizer(chain)["input_ids"] for chain in CHAINS], ours


def check_model(model, folder, tokenizer):
    batch = tokenizer(["MK<mask>TAYIAK", "AVX<mask>L<mask>KTQ"], return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["input_ids"] < 4, -100)
    made = model.double()(**batch, labels=labels)
    # rotary positions and the share of masks are computed in fp32 there
    return interop.compare_model("esm2", model, folder, batch["input_ids"], labels, made.loss, made.logits, LAYOUTS,
                                 roundoff=2**-24)


def check_vectors(model, folder, tokenizer):
    batch = tokenizer(CHAINS, return_tensors="pt", padding=True)
    with torch.no_grad():
        hidden = model.double()(**batch).last_hidden_state
    seen = batch["attention_mask"][..., None]
    wanted = ((hidden * seen).sum(1) / seen.sum(1)).numpy()
    lines = interop.colossal("embed", "--from", folder, "--input", interop.temp_dir / "chains.txt").splitlines()
    ours = np.array([json.loads(line)["embedding"] for line in lines])
    off = np.abs(ours - wanted).max() / np.abs(wanted).max()
    assert off < interop.rounding(model, batch["input_ids"], 2**-24), off
    print("vectors agree within", off)


def check_run(model, folder, tokenizer):
    run = interop.temp_dir / "run"
    (interop.temp_dir / "chains.fasta").write_text("".join(f">{i}\n{'MKTAYIAKQR' * 3}\n" for i in range(4)))
    interop.colossal("train", interop.source_dir / "examples/esm2.toml", f"--model.from={folder}",
                     f"--data.path={interop.temp_dir}/chains.fasta", f"--data.tokenizer={folder}",
                     f"--run.folder={run}", "--data.sequence=16", "--optimizer.learning_rate=0",
                     "--optimizer.warmup_steps=0", "--training.steps=1", "--training.batch_size=2")
    interop.colossal("export", "--from", run, "--to", f"{run}-export")
    again, report = type(model).from_pretrained(f"{run}-export", output_loading_info=True)
    computed = ("contact_head", "inv_freq")  # the first is not ours, and the second follows from config.json
    assert all(any(part in key for part in computed) for key in report["missing_keys"]), report
    assert not report["unexpected_keys"], report
    with torch.no_grad():
        batch = tokenizer(CHAINS, return_tensors="pt", padding=True)
        assert torch.equal(model.double()(**batch).logits, again.double().eval()(**batch).logits), again.config
    again = transformers.AutoTokenizer.from_pretrained(f"{run}-export")
    assert again(CHAINS[1])["input_ids"] == tokenizer(CHAINS[1])["input_ids"]
    print("exports agree")


model = transformers.EsmForMaskedLM(config())
folder = interop.save("masked", model)
tokenizer = tokenizer_of(folder)
check_ids(tokenizer, folder)
check_model(model, folder, tokenizer)
check_vectors(model.esm, folder, tokenizer)
check_run(model, folder, tokenizer)
base = transformers.EsmModel(config())
folder = interop.save("base", base)
tokenizer_of(folder)
check_vectors(base, folder, tokenizer)
