"""Compares folders of peft with ours, both ways: a model with adapters that peft wrote computes the same here, merged
and apart, and peft reads what we write. Experts have adapters of whole stacks (target_parameters), or, in folders of
transformers 4, of their single matrices."""

import json

import interop

torch, transformers, peft, safetensors = interop.need("torch", "transformers", "peft", "safetensors")

from safetensors.torch import load_file, save_file  # noqa: E402

TEXT = "an adapter of rank three changes a small model\n" * 2
LIMIT = 1e-5

LLAMA = transformers.LlamaConfig(vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                 num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                                 bos_token_id=256, eos_token_id=256, tie_word_embeddings=False)
TIED = transformers.LlamaConfig(**{**LLAMA.to_dict(), "tie_word_embeddings": True})
GPT2 = transformers.GPT2Config(vocab_size=260, n_embd=32, n_layer=2, n_head=4, n_positions=128, bos_token_id=256,
                               eos_token_id=256)
SIZES = dict(vocab_size=260, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, bos_token_id=256, eos_token_id=256, tie_word_embeddings=False)
MIXTRAL = transformers.MixtralConfig(**SIZES, intermediate_size=24, num_local_experts=4, num_experts_per_tok=2)
QWEN = transformers.Qwen3MoeConfig(**SIZES, intermediate_size=40, moe_intermediate_size=20, num_experts=5, head_dim=8,
                                   num_experts_per_tok=2, mlp_only_layers=[0])
STACKS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
BASES = {"llama": (transformers.LlamaForCausalLM, LLAMA), "tied": (transformers.LlamaForCausalLM, TIED),
         "gpt2": (transformers.GPT2LMHeadModel, GPT2), "mixtral": (transformers.MixtralForCausalLM, MIXTRAL),
         "qwen": (transformers.Qwen3MoeForCausalLM, QWEN)}

# name: base, keys of LoraConfig, whether a run can train the adapters further
CASES = {
    "lora": ("llama", {"target_modules": "all-linear"}, True),
    "rslora": ("llama", {"target_modules": ["q_proj", "v_proj"], "use_rslora": True}, True),
    "dora": ("llama", {"target_modules": ["q_proj", "down_proj"], "use_dora": True}, True),
    "patterns": ("llama", {"target_modules": ["q_proj", "k_proj", "up_proj"],
                           "rank_pattern": {"k_proj": 5, r"layers\.1\..*up_proj": 2},
                           "alpha_pattern": {"q_proj": 11}}, True),
    "head": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"]}, True),
    "some layers": ("llama", {"target_modules": ["o_proj"], "layers_to_transform": [1]}, True),
    "tied head": ("tied", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, False),
    "tied embedding": ("tied", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, False),
    "gpt2": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}, True),
    "gpt2 dora": ("gpt2", {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, "use_dora": True}, True),
    "experts": ("mixtral", {"target_modules": ["q_proj"], "target_parameters": STACKS,
                            "rank_pattern": {r".*\.gate_up_proj": 5}}, True),
    "down alone": ("qwen", {"target_modules": [], "target_parameters": STACKS[1:], "use_rslora": True}, True),
    "a layer": ("qwen", {"target_modules": ["o_proj"],
                         "target_parameters": [f"model.layers.1.{name}" for name in STACKS]}, True),
}


def base_of(name):
    kind, config = BASES[name]
    folder = interop.temp_dir / f"base-{name}"
    if not folder.exists():
        torch.manual_seed(3)
        interop.save(f"base-{name}", kind(config))
    return folder, read(kind, folder)


def read(kind, folder):
    return interop.with_plain_experts(kind.from_pretrained(folder).eval())


def logits_of(model):
    ids = torch.tensor([list(TEXT.encode())])
    with torch.no_grad():
        return model(ids).logits[0]


def nll_of(logits):
    ids = torch.tensor(list(TEXT.encode()))
    return torch.nn.functional.cross_entropy(logits[:-1].double(), ids[1:]).item()


def off(got, wanted):
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


def evaluate(*flags):
    printed = interop.colossal("evaluate", "--perplexity", "text.txt", "--tokenizer", "bytes", "--json", "--window=128",
                               *flags)
    return json.loads(printed)["nll"]


def write_with_peft(name, model, keys):
    torch.manual_seed(7)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=3, lora_alpha=7, task_type="CAUSAL_LM", **keys))
    with torch.no_grad():
        for key, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                scale = 0.02 if "magnitude" in key or "modules_to_save" in key else 0.2
                parameter.add_(torch.randn_like(parameter) * scale)
    folder = interop.temp_dir / f"peft {name}"
    adapted.eval().save_pretrained(folder)
    return folder, logits_of(adapted)


def check_reading(name, kind, base, folder, wanted):
    merged = interop.temp_dir / f"merged {name}"
    interop.colossal("export", "--from", base, "--adapter", folder, "--to", merged)
    ours = logits_of(read(kind, merged))
    assert off(ours, wanted) < LIMIT, (name, off(ours, wanted))
    nll = nll_of(wanted)
    for flags in [["--from", base, "--adapter", folder], ["--from", merged],
                  ["--from", base, "--adapter", f"mine={folder}:1", "--parallel.tensor=2"]]:
        got = evaluate(*flags)
        assert abs(got - nll) < LIMIT * nll, (name, flags, got, nll)


def check_writing(name, kind, base, folder, wanted, compares_files=True):
    run, out = interop.temp_dir / f"run {name}", interop.temp_dir / f"out {name}"
    interop.colossal("train", "config.toml", f"--model.from={base}", f"--adapter.from={folder}", f"--run.folder={run}")
    interop.colossal("export", "--from", run, "--adapter-only", "--to", out)
    for file in ("generation_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (out / file).is_file() == (run / file).is_file(), (name, file)
    again = peft.PeftModel.from_pretrained(read(kind, base), out).eval()
    assert off(logits_of(again), wanted) < LIMIT, (name, off(logits_of(again), wanted))
    if not compares_files:
        return
    first, second = (load_file(path / "adapter_model.safetensors") for path in (folder, out))
    assert first.keys() == second.keys(), (name, first.keys() ^ second.keys())
    for key, value in first.items():
        # m is stored as its difference from the norms of W, so it has one rounding more.
        close = torch.allclose(value, second[key], rtol=1e-6) if "magnitude" in key else torch.equal(value, second[key])
        assert close, (name, key)
    assert (peft.LoraConfig.from_pretrained(out).to_dict().keys()
            == peft.LoraConfig.from_pretrained(folder).to_dict().keys()), name
    got = evaluate("--from", run)
    assert abs(got - nll_of(wanted)) < LIMIT * got, (name, got)


def write_experts_apart(name, base_name, matrices):
    """Writes a folder as peft wrote it with transformers 4, whose experts were modules of their own."""
    folder, (_, config) = interop.temp_dir / f"peft {name}", BASES[base_name]
    folder.mkdir()
    torch.manual_seed(8)
    inner, tensors = config.intermediate_size, {}
    for layer in range(config.num_hidden_layers):
        for expert in range(config.num_local_experts):
            for matrix in matrices:
                rows, columns = (32, inner) if matrix == "w2" else (inner, 32)
                module = f"base_model.model.model.layers.{layer}.block_sparse_moe.experts.{expert}.{matrix}"
                tensors[f"{module}.lora_A.weight"] = torch.randn(3, columns) * 0.2
                tensors[f"{module}.lora_B.weight"] = torch.randn(rows, 3) * 0.2
    save_file(tensors, folder / "adapter_model.safetensors")
    keys = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 3, "lora_alpha": 7, "target_modules": matrices,
            "inference_mode": True}
    (folder / "adapter_config.json").write_text(json.dumps(keys))
    return folder


(interop.temp_dir / "text.txt").write_text(TEXT)
(interop.temp_dir / "config.toml").write_text("""
[data]
path = "text.txt"
tokenizer = "bytes"
sequence = 16
[training]
steps = 1
batch_size = 1
evaluate_batches = 0
[optimizer]
learning_rate = 0.0
[run]
device = "cpu"
""")
for name, (base_name, keys, trains) in CASES.items():
    kind = BASES[base_name][0]
    base, model = base_of(base_name)
    folder, wanted = write_with_peft(name, model, keys)
    check_reading(name, kind, base, folder, wanted)
    if trains:
        check_writing(name, kind, base, folder, wanted)
    print(name, "agrees", "both ways" if trains else "as it is read")

# peft joins the adapters of single experts when transformers 5 reads them, and so do we.
kind = BASES["mixtral"][0]
base, model = base_of("mixtral")
folder = write_experts_apart("experts apart", "mixtral", ["w1", "w2", "w3"])
wanted = logits_of(peft.PeftModel.from_pretrained(model, folder).eval())
check_reading("experts apart", kind, base, folder, wanted)
check_writing("experts apart", kind, base, folder, wanted, compares_files=False)
print("experts apart agrees both ways")
