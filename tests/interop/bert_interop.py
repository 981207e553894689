"""Imports and exports random BERTs of transformers with masked-token and class objectives. Logits, loss and every
gradient equal theirs in fp64, and so do loss, gradient norm, held-out loss and accuracy of a run, and the weights that
it exports. The script recomputes which tokens we mask in a text."""

import json
import random
import subprocess

import interop

torch, transformers = interop.need("torch", "transformers")

LENGTH = 48
CLASSES = 3
NAMES = ["bad", "fair", "good"]
END = 256  # the byte tokenizer's token for the begin and end of a text
MASK = 257  # the first id after its vocabulary
ALL = (1 << 64) - 1
LAYOUTS = [[], ["--parallel.tensor=2"]]
SEQUENCE = ["--parallel.tensor.size=2", "--parallel.tensor.sequence=true"]  # not used with a class objective
TWO_DIMENSIONS = ["--parallel.tensor.size=4", "--parallel.tensor.mode=2d"]  # needs at least two rows


def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) & ALL
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & ALL
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & ALL
    return x ^ (x >> 31)


def derive_seed(seed, child):
    """The same as base/seed.h."""
    if isinstance(child, int):
        return splitmix64(splitmix64(seed) ^ splitmix64(~child & ALL))
    hashed = 0xCBF29CE484222325
    for c in child.encode():
        hashed = ((hashed ^ c) * 0x100000001B3) & ALL
    return splitmix64(splitmix64(seed) ^ hashed)


def hidden(ids, seed):
    """The same as data/texts/samples.h: returns the masked tokens of a sample without end tokens, and its labels."""
    shown, labels, places = list(ids), [-100] * len(ids), list(range(len(ids)))
    for k in range(max(1, round(0.15 * len(ids)))):
        other = k + derive_seed(seed, 2 * k) % (len(ids) - k)
        places[k], places[other] = places[other], places[k]
        place, draw = places[k], derive_seed(seed, 2 * k + 1)
        labels[place] = ids[place]
        chance = (draw >> 11) * 2.0**-53
        if chance >= 0.1:
            shown[place] = derive_seed(draw, 0) % 257 if chance < 0.2 else MASK
    return torch.tensor([shown]), torch.tensor([labels])


def config(**more):
    return transformers.BertConfig(vocab_size=258, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                                   intermediate_size=88, max_position_embeddings=64, hidden_dropout_prob=0,
                                   attention_probs_dropout_prob=0, **more)


def train(name, folder, parallel, data, batch_size, evaluate_batches, model=""):
    """Returns the run folder and the metrics of one step with a learning rate of 0."""
    run = interop.temp_dir / f"{name}-run"
    file = interop.temp_dir / "config.toml"
    file.write_text(f"""
        [run]
        folder = "{run}"
        [model]
        from = "{folder}"
        {model}
        [data]
        sequence = {LENGTH}
        {data}
        [parallel]
        {parallel}
        [optimizer]
        learning_rate = 0
        warmup_steps = 0
        [training]
        steps = 1
        batch_size = {batch_size}
        evaluate_batches = {evaluate_batches}
        """)
    interop.colossal("train", file)
    return run, json.loads((run / "metrics.jsonl").read_text())


def compare(name, ours, loss, norm):
    assert abs(ours["loss"] - loss.item()) < 1e-4, (name, ours["loss"], loss.item())
    assert abs(ours["grad_norm"] - norm) < 1e-4 * norm, (name, ours["grad_norm"], norm)


def gradient_norm(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm().item()


def check_masked_tokens():
    model = transformers.BertForMaskedLM(config())
    folder = interop.save("masked", model)
    generator = random.Random(2)
    text = bytes(generator.randrange(97, 123) for _ in range(LENGTH + 1))
    (interop.temp_dir / "text.txt").write_bytes(text)
    shown, labels = hidden(text[:LENGTH], derive_seed(derive_seed(derive_seed(0, "samples"), 0), 0))
    assert (shown == MASK).any()
    model.double()
    made = model(input_ids=shown, labels=labels)
    interop.compare_model("masked", model, folder, shown, labels, made.loss, made.logits, [*LAYOUTS, SEQUENCE])
    run, ours = train("masked", folder, "pipeline = { size = 2, micro_batches = 1 }",
                      f"path = '{interop.temp_dir}/text.txt'\nheld_out = 0", 1, 0)
    compare("masked", ours, made.loss, gradient_norm(model))
    interop.compare_export("masked", run, model, input_ids=shown)
    done = subprocess.run([interop.binary, "generate", "--from", str(run), "--prompt", "a"], capture_output=True,
                          text=True)
    assert done.returncode == 1 and "bert, which fills in masked tokens" in done.stderr, done
    return folder


def check_untied():
    """The head has its own weight and bias. The other bias is never added, for any values."""
    model = transformers.BertForMaskedLM(config(tie_word_embeddings=False))
    folder = interop.save("untied", model)
    shown = torch.tensor([[random.Random(5).randrange(97, 123) for _ in range(LENGTH)]])
    labels = shown.roll(1)
    model.double()
    made = model(input_ids=shown, labels=labels)
    interop.compare_model("untied", model, folder, shown, labels, made.loss, made.logits, LAYOUTS)
    (interop.temp_dir / "untied.txt").write_bytes(bytes(shown[0].tolist()) + b"a")
    run, _ = train("untied", folder, "", f"path = '{interop.temp_dir}/untied.txt'\nheld_out = 0", 1, 0)
    interop.colossal("export", "--from", run, "--to", f"{run}-export")
    again = transformers.BertForMaskedLM.from_pretrained(f"{run}-export").double().eval()
    with torch.no_grad():
        assert torch.equal(model(input_ids=shown).logits, again(input_ids=shown).logits)
    # Folders of transformers before version 5 have one bias, under the other name.
    from safetensors.torch import load_file, save_file
    weights = load_file(folder / "model.safetensors")
    weights["cls.predictions.bias"] = weights.pop("cls.predictions.decoder.bias")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    loss, logits, _, _ = interop.probe(folder, shown, labels)
    assert (logits.view(made.logits.shape) - made.logits).abs().max() < 1e-9 and abs(loss - made.loss.item()) < 1e-9


def encoded(texts):
    rows = [[END, *text.encode()[:LENGTH - 2], END] for text in texts]
    ids = torch.tensor([row + [END] * (LENGTH - len(row)) for row in rows])
    seen = torch.tensor([[1] * len(row) + [0] * (LENGTH - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": seen}


def check_classes(masked_folder):
    model = transformers.BertForSequenceClassification(config(num_labels=CLASSES, hidden_act="relu"))
    folder = interop.save("class", model)
    generator = random.Random(3)
    rows = [(generator.randrange(CLASSES),
             "".join(chr(generator.randrange(97, 123)) for _ in range(generator.randrange(1, 60)))) for _ in range(30)]
    (interop.temp_dir / "texts.tsv").write_text("".join(f"{NAMES[label]}\t{text}\n" for label, text in rows))
    is_held_out = [(derive_seed(derive_seed(0, "held out"), i) >> 11) * 2.0**-53 < 0.3 for i in range(len(rows))]
    training = [row for row, out in zip(rows, is_held_out) if not out]
    held_out = [row for row, out in zip(rows, is_held_out) if out]
    batch_size = len(training) // 2 * 2
    assert 0 < len(held_out) < batch_size == len(training), (len(held_out), len(training))

    def results(part):
        labels = torch.tensor([label for label, _ in part])
        logits = model(**encoded([text for _, text in part])).logits
        return torch.nn.functional.cross_entropy(logits, labels), logits, labels

    model.double()
    loss, logits, labels = results(training)
    texts = encoded([text for _, text in training])
    interop.compare_model("class", model, folder, texts["input_ids"], labels[:, None], loss, logits,
                          [*LAYOUTS, TWO_DIMENSIONS],
                          documents=1 - texts["attention_mask"])
    wanted, found, labels = results(held_out)  # each sample counts once, although a batch has more rows
    accuracy = (found.argmax(-1) == labels).double().mean().item()
    data = f"path = '{interop.temp_dir}/texts.tsv'\nheld_out = 0.3"
    run, ours = train("class", folder, "data = 2\nzero = 3", data, batch_size, 1)
    compare("class", ours, loss, gradient_norm(model))
    assert abs(ours["eval_loss"] - wanted.item()) < 1e-4, (ours["eval_loss"], wanted.item())
    assert abs(ours["accuracy"] - accuracy) < 1e-9, (ours["accuracy"], accuracy)
    assert interop.compare_export("class", run, model, **texts).id2label == dict(enumerate(NAMES))

    # Trained layers with a new head.
    run, _ = train("new-head", masked_folder, "", data, batch_size, 0, f'objective = "class"\nclasses = {CLASSES}')
    interop.colossal("export", "--from", run, "--to", f"{run}-export")
    ours = transformers.BertForSequenceClassification.from_pretrained(f"{run}-export").state_dict()
    theirs = transformers.BertForMaskedLM.from_pretrained(masked_folder).state_dict()
    shared = [key for key in ours if key in theirs]
    assert len(shared) > 30 and all(torch.equal(ours[key], theirs[key]) for key in shared)
    assert ours["classifier.weight"].shape == (CLASSES, 48) and ours["classifier.weight"].std() > 0.01
    print("classes agree: loss", loss.item(), "held-out loss", wanted.item(), "accuracy", accuracy)


check_untied()
check_classes(check_masked_tokens())
