"""Language models of every family that transformers has, of random weights, in odd shapes: logits, loss and every gradient of ours are
theirs in fp64, on one process and in tensor 2; so are greedy tokens, and the logits of the folder that we write. And of every key of
a family's config class one of three things is true: another value changes the model that we make, or it is refused by the key's name,
or the key is named below as one that changes no numbers.

A new family is a row of ROWS."""

import dataclasses
import json
import os
import subprocess

import interop

torch, transformers = interop.need("torch", "transformers")

LENGTH = 21
PROMPT = "abcdefghijklmnopq"
TENSOR_2 = ["--parallel.tensor=2"]

# Keys that change no numbers of the model: what is said about the folder, how weights begin, what generation does, what is returned.
HARMLESS = {"architectures", "transformers_version", "dtype", "return_dict", "output_hidden_states", "output_attentions", "use_cache",
            "initializer_range", "pad_token_id", "bos_token_id", "eos_token_id", "id2label", "label2id", "problem_type",
            "chunk_size_feed_forward", "is_encoder_decoder", "pretraining_tp", "tie_encoder_decoder"}

# Another value of keys whose type does not say one, and what has to change with it.
OTHERS = {"hidden_size": lambda c: {"hidden_size": 2 * c["hidden_size"]},
          "num_hidden_layers": lambda c: {"num_hidden_layers": c["num_hidden_layers"] + 1, "layer_types": None},
          "num_attention_heads": lambda c: {"num_attention_heads": 2 * c["num_attention_heads"]},
          "num_key_value_heads": lambda c: {"num_key_value_heads": 1 if c["num_key_value_heads"] > 1 else c["num_attention_heads"]},
          "head_dim": lambda c: {"head_dim": 2 * c.get("head_dim", 4)},
          "layer_types": lambda c: {"layer_types": ["full_attention"] * c["num_hidden_layers"]},
          "sliding_window": lambda c: {"sliding_window": 9},
          "use_sliding_window": lambda c: {"use_sliding_window": not c["use_sliding_window"], "layer_types": None},
          "max_window_layers": lambda c: {"max_window_layers": 1, "layer_types": None},
          "rope_parameters": lambda c: {"rope_parameters": dict(c["rope_parameters"], rope_theta=77.0)},
          "hidden_act": lambda c: {"hidden_act": "prelu"}}


@dataclasses.dataclass
class Row:
    """A family. `shapes`: arguments of its config; `matters`: of each shape, changes that must show in the logits, or the comparison
    would prove nothing of them. `others`: as OTHERS; `harmless`: beside HARMLESS, with a reason each."""
    name: str
    model: type
    config: type
    shapes: list
    matters: list = dataclasses.field(default_factory=lambda: [{}, {}])
    others: dict = dataclasses.field(default_factory=dict)
    harmless: dict = dataclasses.field(default_factory=dict)


def sizes(**more):
    """Of 13 heads' worth of oddness: heads and groups that are no powers of two, a vocabulary that nothing divides."""
    return dict(vocab_size=263, hidden_size=48, intermediate_size=77, num_hidden_layers=2, num_attention_heads=6,
                num_key_value_heads=3, max_position_embeddings=64, bos_token_id=256, eos_token_id=256, pad_token_id=None) | more


ROPE = {"rope_theta": 500.0}
SLIDING = ["full_attention", "sliding_attention", "full_attention"]

ROWS = [
    Row("llama", transformers.LlamaForCausalLM, transformers.LlamaConfig,
        [sizes(attention_bias=True, mlp_bias=True, rope_parameters=ROPE | {"rope_type": "default"}),
         sizes(num_attention_heads=5, num_key_value_heads=1, hidden_size=40, head_dim=6, tie_word_embeddings=True)]),
    Row("mistral", transformers.MistralForCausalLM, transformers.MistralConfig,
        [sizes(sliding_window=7), sizes(num_attention_heads=3, num_key_value_heads=1, sliding_window=None, head_dim=10)],
        matters=[{"sliding_window": None}, {}]),
    Row("qwen2", transformers.Qwen2ForCausalLM, transformers.Qwen2Config,
        [sizes(rope_parameters=ROPE | {"rope_type": "default"}),
         sizes(num_attention_heads=7, num_key_value_heads=7, hidden_size=56, num_hidden_layers=3, tie_word_embeddings=True,
               use_sliding_window=True, sliding_window=5, layer_types=SLIDING)],
        matters=[{}, {"sliding_window": 6}]),
    Row("qwen3", transformers.Qwen3ForCausalLM, transformers.Qwen3Config,
        [sizes(head_dim=12, tie_word_embeddings=True),
         sizes(num_attention_heads=5, num_key_value_heads=1, hidden_size=40, head_dim=6, attention_bias=True, num_hidden_layers=3,
               use_sliding_window=True, sliding_window=5, max_window_layers=2)],
        matters=[{}, {"sliding_window": 6}]),
]


def logits_with(row, model, ids, changes):
    """What transformers makes of the same weights under another config."""
    other = row.model(row.config(**(model.config.to_dict() | changes))).double().eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        return other(ids).logits


def check_shape(row, index):
    name, shape = f"{row.name}-{index}", row.shapes[index]
    model = row.model(row.config(**shape))
    folder = interop.save(name, model)
    ids = torch.randint(0, shape["vocab_size"], (2, LENGTH + 1), generator=torch.Generator().manual_seed(4))
    wanted = model.generate(torch.tensor([list(PROMPT.encode())]), max_new_tokens=24, do_sample=False)[0, len(PROMPT):].tolist()
    wanted = wanted[:wanted.index(256)] if 256 in wanted else wanted
    model.double()
    logits = model(ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    # transformers norms and turns in fp32, whatever the dtype
    written = interop.compare_model(name, model, folder, ids[:, :-1], ids[:, 1:], loss, logits, [[], TENSOR_2] if index == 0 else [[]],
                                    roundoff=2**-24)
    for key, value in row.matters[index].items():
        difference = (logits_with(row, model, ids[:, :-1], {key: value}) - logits).abs().max().item()
        assert difference > 1e-3, (name, key, "changes nothing", difference)
    again, report = transformers.AutoModelForCausalLM.from_pretrained(written, dtype=torch.float64, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], (name, report)
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items()), name
    off = (again.eval()(ids[:, :-1]).logits - logits).abs().max().item()
    assert off <= interop.rounding(model, ids) * logits.abs().max().item(), (name, "another config", off, model.config, again.config)
    printed = interop.colossal("generate", "--from", folder, "--prompt", PROMPT, "--max-tokens", 24, "--ids", "--tokenizer", "bytes")
    assert [int(word) for word in printed.split()] == wanted, (name, printed, wanted)
    return folder


def made_of(configs):
    """What our models make of each config.json: one that we would write, or why they refuse it."""
    (interop.temp_dir / "configs.json").write_text(json.dumps(configs))
    done = subprocess.run([os.environ["COLOSSAL_MODEL_PROBE"], "configs", interop.temp_dir / "configs.json"], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def another(key, config, row):
    """The config with another value of `key`, as far as transformers would take it."""
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
            assert result != base, (row.name, key, "changes nothing, is not refused, and nobody says that it is harmless")
            honoured.append(key)
    print(row.name, "honours", ", ".join(honoured), "and refuses", ", ".join(refused))


for row in ROWS:
    folders = [check_shape(row, index) for index in range(len(row.shapes))]
    check_config(row, folders[-1])
