"""Compares language models of a family with those of transformers, with random weights and odd shapes. Logits, loss and
every gradient equal theirs in fp64, on one process and with tensor 2. So do greedy tokens, also of many prompts at
once, and the logits of the folder that we write. For every key of a family's config class, one of three things is true:
another value changes our model, or the key is refused by name, or the key is listed below as one that changes no
values. If a folder lacks a key, has null for it or has an older form, we read it like transformers' config class, or
refuse it by the key's name.

A script has rows, one for each family, and calls check()."""

import copy
import dataclasses
import json
import os
import subprocess
import typing

import interop

torch, transformers = interop.need("torch", "transformers")

LENGTH = 21
PROMPT = "abcdefghijklmnopq"
TENSOR_2 = ["--parallel.tensor=2"]
FOUR_RANKS = ["--parallel.tensor=2", "--parallel.pipeline=2"]
PIPELINE_2 = ["--parallel.pipeline=2"]
TWO_DIMENSIONS = ["--parallel.tensor.size=4", "--parallel.tensor.mode=2d"]

# Keys that change no values of the model: information about the folder, initialization, generation, and returned
# outputs.
HARMLESS = {"architectures", "transformers_version", "dtype", "return_dict", "output_hidden_states",
            "output_attentions", "use_cache", "initializer_range", "pad_token_id", "bos_token_id", "eos_token_id",
            "id2label", "label2id", "problem_type", "chunk_size_feed_forward", "is_encoder_decoder", "pretraining_tp",
            "tie_encoder_decoder",
            # only training reads these; `colossal train` refuses them (models::Registry::check_training)
            "attention_dropout", "attn_pdrop", "embd_pdrop", "layerdrop", "router_jitter_noise"}

# Other values for keys whose type does not suggest one, and the keys that must change with them.
OTHERS = {"hidden_size": lambda c: {"hidden_size": 2 * c["hidden_size"]},
          "num_hidden_layers": lambda c: {"num_hidden_layers": c["num_hidden_layers"] + 1, "layer_types": None},
          "num_attention_heads": lambda c: {"num_attention_heads": 2 * c["num_attention_heads"]},
          "num_key_value_heads":
              lambda c: {"num_key_value_heads": 1 if c["num_key_value_heads"] > 1 else c["num_attention_heads"]},
          "head_dim": lambda c: {"head_dim": 2 * c.get("head_dim", 4)},
          "layer_types": lambda c: {"layer_types": ["full_attention"] * c["num_hidden_layers"]},
          "sliding_window": lambda c: {"sliding_window": 9},
          "use_sliding_window": lambda c: {"use_sliding_window": not c["use_sliding_window"], "layer_types": None},
          "max_window_layers": lambda c: {"max_window_layers": 1, "layer_types": None},
          "rope_parameters": lambda c: {"rope_parameters": dict(c["rope_parameters"], rope_theta=77.0)},
          "hidden_act": lambda c: {"hidden_act": "prelu"}}


@dataclasses.dataclass
class Row:
    """A family. `shapes`: arguments of its config; `matters`: for each shape, changes that must affect the logits,
    because otherwise the comparison would not test them. `others`: like OTHERS; `harmless`: additions to HARMLESS, each
    with a reason. `renamed`: names in transformers that differ from the names in folders; `joined`: returns our
    gradients under the names in transformers, where it joins tensors of the folder. `flags`: flags of each training
    step; `layouts`: for every shape, flags of further training steps and generations."""
    name: str
    model: type
    config: type
    shapes: list
    matters: list = dataclasses.field(default_factory=lambda: [{}, {}])
    others: dict = dataclasses.field(default_factory=dict)
    harmless: dict = dataclasses.field(default_factory=dict)
    renamed: dict = dataclasses.field(default_factory=dict)
    joined: typing.Callable = None
    flags: list = dataclasses.field(default_factory=list)
    layouts: list = dataclasses.field(default_factory=list)


def sizes(**more):
    """Returns sizes with heads and groups that are not powers of two, and a vocabulary that is not divisible."""
    return dict(vocab_size=263, hidden_size=48, intermediate_size=77, num_hidden_layers=2, num_attention_heads=6,
                num_key_value_heads=3, max_position_embeddings=64, bos_token_id=256, eos_token_id=256,
                pad_token_id=None) | more


def plain_sizes(**more):
    """Returns the same sizes without groups."""
    return {key: value for key, value in sizes(**more).items() if key != "num_key_value_heads"}


ROPE = {"rope_theta": 500.0}


def rope(kind, **more):
    return {"rope_parameters": ROPE | {"rope_type": kind} | more}


def logits_with(row, model, ids, changes):
    """Returns transformers' logits for the same weights with another config."""
    other = interop.in_fp64(row.model(row.config(**(model.config.to_dict() | changes)))).eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        return other(ids).logits


def check_many_prompts(name, model, folder):
    """Prompts of different lengths at once, in chunks, with draft tokens: each completion equals transformers'
    completion of that prompt alone."""
    no_bytes = list(range(256, model.config.vocab_size))  # ids for which the byte tokenizer has no text
    lines, wanted = [], []
    # Beyond these positions, frequencies depend on the length of a sequence. The engine takes the length that a request
    # may reach, and transformers the tokens so far. With longrope, this is the same for prompts that are longer than
    # these positions.
    scaling = getattr(model.config, "rope_parameters", None) or {}
    even = {"dynamic": getattr(model.config, "max_position_embeddings", None),
            "longrope": scaling.get("original_max_position_embeddings")}
    most = even.get(scaling.get("rope_type"), 64)
    new = min(12, most // 2)
    for length in (1, 9, 30):
        if scaling.get("rope_type") != "longrope" or length <= most:
            length = min(length, most - new)
        prompt = (PROMPT * 2)[:length]
        lines.append(json.dumps({"prompt": prompt, "logprobs": 0,
                                 "logit_bias": {str(token): -1e9 for token in no_bytes}}))
        wanted.append(copy.deepcopy(model).generate(torch.tensor([list(prompt.encode())]), max_new_tokens=new,
                                                    do_sample=False, suppress_tokens=no_bytes)[0, length:].tolist())
    (interop.temp_dir / "prompts.jsonl").write_text("\n".join(lines))
    printed = interop.colossal("generate", "--from", folder, "--tokenizer", "bytes", "--prompts", "prompts.jsonl",
                               "--max-tokens", new, "--step-tokens", 7, "--draft-tokens", 3)
    answers = [[token["id"] for token in json.loads(line)["logprobs"]] for line in printed.splitlines()]
    assert answers == wanted, (name, answers, wanted)


def check_shape(row, index):
    name, shape = f"{row.name}-{index}", row.shapes[index]
    model = interop.with_plain_experts(row.model(row.config(**shape)))
    folder = interop.save(name, model)
    ids = torch.randint(0, shape["vocab_size"], (2, LENGTH + 1), generator=torch.Generator().manual_seed(4))
    # A copy, because tables of dynamic rotary positions keep the longest sequence.
    wanted = copy.deepcopy(model).generate(torch.tensor([list(PROMPT.encode())]), max_new_tokens=24,
                                           do_sample=False)[0, len(PROMPT):].tolist()
    wanted = wanted[:wanted.index(256)] if 256 in wanted else wanted
    check_many_prompts(name, model, folder)
    interop.in_fp64(model)
    logits = model(ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    # transformers computes norms and rotations in fp32 for any dtype.
    layouts = [flags + row.flags for flags in [[], *([TENSOR_2] if index == 0 or row.layouts else []), *row.layouts]]
    written = interop.compare_model(name, model, folder, ids[:, :-1], ids[:, 1:], loss, logits, layouts,
                                    roundoff=2**-24, renamed=row.renamed, joined=row.joined)
    for key, value in row.matters[index].items():
        difference = (logits_with(row, model, ids[:, :-1], {key: value}) - logits).abs().max().item()
        assert difference > 1e-3, (name, key, "changes nothing", difference)
    again, report = transformers.AutoModelForCausalLM.from_pretrained(written, dtype=torch.float32,
                                                                      output_loading_info=True)
    again = interop.in_fp64(again).eval()  # like `model`, whose values other than weights are fp32
    assert not report["missing_keys"] and not report["unexpected_keys"], (name, report)
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items()), name
    off = (again(ids[:, :-1]).logits - logits).abs().max().item()
    bound = interop.rounding(model, ids) * logits.abs().max().item()
    assert off <= bound, (name, "another config", off, model.config, again.config)
    printed = interop.colossal("generate", "--from", folder, "--prompt", PROMPT, "--max-tokens", 24, "--ids",
                               "--tokenizer", "bytes")
    assert [int(word) for word in printed.split()] == wanted, (name, printed, wanted)
    for flags in [*([FOUR_RANKS] if index == 0 else []), *([TENSOR_2] if row.layouts else []), *row.layouts]:
        cut = interop.colossal("generate", "--from", folder, "--prompt", PROMPT, "--max-tokens", 24, "--ids",
                               "--tokenizer", "bytes", *flags)
        assert [int(word) for word in cut.split()] == wanted, (name, flags, cut, wanted)
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        token = getattr(again.config, key, None)
        is_legal = token is None or 0 <= token < shape["vocab_size"]
        assert is_legal, (name, key, token, "is beyond the vocabulary of what we write")
    return folder


def made_of(configs):
    """Returns for each config.json the config that we would write, or our error."""
    (interop.temp_dir / "configs.json").write_text(json.dumps(configs))
    done = subprocess.run([os.environ["COLOSSAL_MODEL_PROBE"], "configs", interop.temp_dir / "configs.json"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def another(key, config, row):
    """Returns the config with another value of `key`, if transformers accepts one."""
    others = OTHERS | row.others
    if key in others:
        return config | others[key](config)
    value = config.get(key)
    assert value is not None and not isinstance(value, (list, dict)), (row.name, key, "has no other value in OTHERS")
    if isinstance(value, bool):
        return config | {key: not value}
    if isinstance(value, str):
        return config | {key: f"{value}_x"}
    return config | {key: value + (1 if isinstance(value, int) else 0.25)}


def check_config(row, folder):
    config = json.loads((folder / "config.json").read_text())
    keys = sorted({field.name for field in dataclasses.fields(row.config)} | config.keys() - {"model_type"})
    changed = [key for key in keys if key not in HARMLESS and key not in row.harmless]
    base, *results = made_of([config] + [another(key, config, row) for key in changed])
    assert "config" in base, (row.name, base)
    honoured, refused = [], []
    for key, result in zip(changed, results, strict=True):
        if "error" in result:
            assert key in result["error"], (row.name, key, "is refused by another name", result)
            refused.append(key)
        else:
            assert result != base, (row.name, key,
                                    "changes nothing, is not refused, and nobody says that it is harmless")
            honoured.append(key)
    print(row.name, "honours", ", ".join(honoured), "and refuses", ", ".join(refused))


def as_transformers_reads(row, config):
    """Returns all keys of the config as its class completes them, or None if the class refuses the config."""
    try:
        whole = row.config(**{key: value for key, value in config.items() if key != "model_type"})
    except Exception:  # exceptions of many types: how transformers fails is not tested here
        return None
    return json.loads(whole.to_json_string(use_diff=False))


def older_forms(row, config):
    """Returns configs with rotary positions as transformers 4 wrote them, and with the alternative names of keys."""
    forms = []
    if isinstance(rope_parameters := config.get("rope_parameters"), dict):
        rest = {key: value for key, value in config.items() if key != "rope_parameters"}
        scaling = {key: value for key, value in rope_parameters.items()
                   if key not in ("rope_theta", "partial_rotary_factor")}
        share = {key: value for key, value in rope_parameters.items() if key == "partial_rotary_factor"}
        kind = scaling.pop("rope_type")
        for name in ("type", "rope_type"):
            old = None if kind == "default" else {name: kind} | scaling
            forms.append(("rope_scaling",
                          rest | share | {"rope_theta": rope_parameters["rope_theta"], "rope_scaling": old}))
    for other, name in getattr(row.config, "attribute_map", {}).items():
        if name in config:
            forms.append((name, {key: value for key, value in config.items() if key != name} | {other: config[name]}))
    return forms


def check_forms(row, folder):
    config = json.loads((folder / "config.json").read_text())
    forms = older_forms(row, config)
    for key in config.keys() - {"model_type", "architectures", "transformers_version", "dtype"}:
        forms.append((key, {other: value for other, value in config.items() if other != key}))
        forms.append((key, config | {key: None}))
    pairs = [(key, form, whole) for key, form in forms if (whole := as_transformers_reads(row, form)) is not None]
    made = made_of([form for _, form, _ in pairs] + [whole for _, _, whole in pairs])
    for (key, form, _), ours, wanted in zip(pairs, made[:len(pairs)], made[len(pairs):], strict=True):
        if "error" in ours:
            assert key in ours["error"] or ours == wanted, (row.name, key, form.get(key, "absent"), ours, wanted)
        else:
            assert ours == wanted, (row.name, key, form.get(key, "absent"), ours, wanted)
    print(row.name, "reads", len(pairs), "forms of its config as transformers does")


def check(rows):
    for row in rows:
        folders = [check_shape(row, index) for index in range(len(row.shapes))]
        check_config(row, folders[-1])
        for folder in folders:
            check_forms(row, folder)
