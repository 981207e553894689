"""Compares T5s of transformers with random weights, in the form of the paper and in v1.1. Loss, logits and every
gradient of padded pairs equal theirs in fp64, on one process and with tensor 2. So do greedy completions, and the
logits of the folder that we write. For every key of config.json, another value changes the model, or the key is refused
by name, or it is listed here as one that changes no values. A run on pairs of texts is exported, and transformers
generates the same completions."""

import copy
import dataclasses
import json
import os
import subprocess

import interop

torch, transformers = interop.need("torch", "transformers")

SOURCE, TARGET, PADDED = 21, 13, 6
PROMPT = "translate: abcdefgh"
END = 256  # end token of the byte tokenizer
SIZES = dict(vocab_size=263, dropout_rate=0.0, pad_token_id=0, eos_token_id=END, decoder_start_token_id=0)
SHAPES = {"v1.0": dict(SIZES, d_model=40, d_kv=6, d_ff=77, num_layers=2, num_decoder_layers=3, num_heads=5),
          "v1.1": dict(SIZES, d_model=48, d_kv=10, d_ff=50, num_layers=3, num_heads=3, feed_forward_proj="gated-gelu",
                       relative_attention_num_buckets=12, relative_attention_max_distance=18)}
# Initialization, generation and other heads, and returned outputs.
HARMLESS = {"initializer_factor", "use_cache", "eos_token_id", "classifier_dropout", "architectures",
            "transformers_version", "dtype", "return_dict", "output_hidden_states", "output_attentions", "id2label",
            "label2id", "problem_type", "bos_token_id", "chunk_size_feed_forward", "n_positions",
            "is_gated_act", "dense_act_fn",  # follows from feed_forward_proj
            "pad_token_id"}  # follows from decoder_start_token_id
OTHERS = {"feed_forward_proj": "gated-silu", "num_decoder_layers": 5, "tie_word_embeddings": True, "is_decoder": True,
          "is_encoder_decoder": False, "scale_decoder_outputs": True}


def untie(model, folder):
    """Gives the model its own head, as in folders of v1.1; transformers itself writes tied heads today."""
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    config.pop("scale_decoder_outputs", None)
    (folder / "config.json").write_text(json.dumps(config))
    return type(model).from_pretrained(folder).eval()


def batch():
    generator = torch.Generator().manual_seed(4)
    source = torch.randint(1, 263, (2, SOURCE), generator=generator)
    target = torch.randint(1, 263, (2, TARGET), generator=generator)
    mask = torch.ones_like(source)
    mask[0, -PADDED:] = 0
    labels = target.clone()
    labels[1, -3:] = -100
    read = torch.cat([torch.zeros(2, 1, dtype=torch.long), target[:, :-1]], 1)
    documents = torch.cat([1 - mask, torch.zeros_like(read)], 1)
    return source, mask, read, labels, documents


def check_answers(name, model):
    """Compares greedy completions. The weights are larger than the initial ones, with which all completions repeat one
    token."""
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "block" in key and parameter.dim() > 1:
                parameter.mul_(4)
    folder = interop.temp_dir / f"{name}-answers"
    model.save_pretrained(folder)
    ids = torch.tensor([list(PROMPT.encode()) + [END]])
    # transformers generates without a cache, because theirs has as many layers as the encoder.
    wanted = model.generate(ids, max_new_tokens=24, do_sample=False, use_cache=False)[0, 1:].tolist()
    wanted = wanted[:wanted.index(END)] if END in wanted else wanted
    assert len(set(wanted)) > 1, wanted
    for flags in [[], ["--parallel.tensor=2"], ["--parallel.pipeline=2"]]:
        printed = interop.colossal("generate", "--from", folder, "--prompt", PROMPT, "--max-tokens", 24, "--ids",
                                   "--tokenizer", "bytes", *flags)
        assert [int(word) for word in printed.split()] == wanted, (name, flags, printed, wanted)


def check_shape(name, shape):
    # With three of ten seeds one of the models repeats a single token, for any size of its weights.
    torch.manual_seed(6)
    config = transformers.T5Config(**shape, **({} if name == "v1.0" else {"tie_word_embeddings": False}))
    model = transformers.T5ForConditionalGeneration(config)
    folder = interop.save(name, model)
    check_answers(name, copy.deepcopy(model))
    if name == "v1.1":
        model = untie(model, folder)
    model.double()
    source, mask, read, labels, documents = batch()
    logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=read).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    of_source = f"--model.source_tokens={SOURCE}"
    # transformers computes norms and softmax in fp32 for any dtype.
    written = interop.compare_model(name, model, folder, torch.cat([source, read], 1), labels, loss, logits,
                                    [[of_source], [of_source, "--parallel.tensor=2"]], documents=documents,
                                    roundoff=2**-24)
    again, report = transformers.T5ForConditionalGeneration.from_pretrained(written, dtype=torch.float32,
                                                                            output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], (name, report)
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.double().state_dict()[key]), (name, key)
    off = (again.double().eval()(input_ids=source, attention_mask=mask, decoder_input_ids=read).logits
           - logits).abs().max().item()
    assert off <= interop.rounding(model, source, 2**-24) * logits.abs().max().item(), (name, "another config", off)
    return folder


def made_of(configs):
    (interop.temp_dir / "configs.json").write_text(json.dumps(configs))
    done = subprocess.run([os.environ["COLOSSAL_MODEL_PROBE"], "configs", interop.temp_dir / "configs.json"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_config(folder):
    config = json.loads((folder / "config.json").read_text())
    keys = sorted(({field.name for field in dataclasses.fields(transformers.T5Config)} | config.keys() | OTHERS.keys())
                  - HARMLESS - {"model_type"})

    def another(key):
        value = config.get(key)
        return config | {key: OTHERS[key] if key in OTHERS else value + (1 if isinstance(value, int) else 0.25)}

    base, *results = made_of([config] + [another(key) for key in keys
                                         if key in OTHERS or isinstance(config.get(key), (int, float))])
    assert "config" in base, base
    checked = [key for key in keys if key in OTHERS or isinstance(config.get(key), (int, float))]
    assert {"d_model", "d_kv", "layer_norm_epsilon", "relative_attention_max_distance",
            "decoder_start_token_id"} <= set(checked), checked
    for key, result in zip(checked, results, strict=True):
        if "error" in result:
            is_named = key in result["error"] or key.split("_")[-1] in result["error"]
            assert is_named, (key, "is refused by another name", result)
        else:
            assert result != base, (key, "changes nothing, is not refused, and nobody says that it is harmless")


def check_run():
    """Trains on pairs of words and their letters in reverse order."""
    words = ["abc", "bcd", "cde", "dea", "eab", "acb", "bda", "ced", "dbe", "eca"]
    (interop.temp_dir / "pairs.jsonl").write_text("".join(json.dumps({"text": w, "target": w[::-1]}) + "\n"
                                                          for w in words * 4))
    interop.colossal("train", interop.source_dir / "examples" / "t5_pairs.toml", "--run.folder=t5-run",
                     "--model.layers=2", "--model.hidden=64", "--model.source_tokens=6", "--data.path=pairs.jsonl",
                     "--data.sequence=12", "--training.evaluate_every=60", "--training.steps=60",
                     "--training.batch_size=8", "--training.evaluate_batches=1", "--training.sample_tokens=0",
                     "--optimizer.learning_rate=3e-3", "--training.save_every=60")
    interop.colossal("export", "--from", "t5-run", "--to", "t5-out")
    model, report = transformers.T5ForConditionalGeneration.from_pretrained(interop.temp_dir / "t5-out",
                                                                            output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    for word in words[:3]:
        wanted = model.eval().generate(torch.tensor([list(word.encode()) + [END]]), max_new_tokens=5, do_sample=False,
                                       eos_token_id=END)
        wanted = wanted[0, 1:].tolist()
        wanted = wanted[:wanted.index(END)] if END in wanted else wanted
        printed = interop.colossal("generate", "--from", "t5-run", "--prompt", word, "--max-tokens", 5, "--ids",
                                   "--temperature", 0)
        assert [int(id) for id in printed.split()] == wanted, (word, printed, wanted)


folders = [check_shape(name, shape) for name, shape in SHAPES.items()]
check_config(folders[-1])
check_run()
