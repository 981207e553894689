"""Compares DeepSeek-V2 and V3 of transformers with random weights and odd shapes: with and without a latent of queries,
groups, balance biases, and yarn with an mscale on the scores. Logits, loss and every gradient equal theirs in fp64, on
one process and under tensor and pipeline parallelism. So do greedy tokens, and the folder that we write. A folder's
multi-token layer is left out, and weights in fp8 blocks are refused."""

import json
import os
import shutil
import subprocess

import interop

torch, transformers, safetensors = interop.need("torch", "transformers", "safetensors.torch")

LENGTH = 21
PROMPT = "abcdefghijklmnopq"
BIAS = "e_score_correction_bias"
LAYOUTS = [[], ["--parallel.tensor=2"], ["--parallel.pipeline=2"],
           ["--parallel.tensor.size=4", "--parallel.tensor.mode=2d"]]
FOUR_RANKS = ["--parallel.tensor=2", "--parallel.pipeline=2"]
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.9,
        "mscale_all_dim": 0.7}
SIZES = dict(vocab_size=263, hidden_size=40, intermediate_size=77, moe_intermediate_size=24, num_hidden_layers=3,
             kv_lora_rank=12, max_position_embeddings=64, bos_token_id=256, eos_token_id=256, pad_token_id=None,
             experts_implementation="eager")
HEADS = dict(num_attention_heads=5, num_key_value_heads=5, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8)
EVEN_HEADS = dict(num_attention_heads=4, num_key_value_heads=4, qk_nope_head_dim=8, qk_rope_head_dim=6, v_head_dim=10)
V2 = (transformers.DeepseekV2ForCausalLM, transformers.DeepseekV2Config)
V3 = (transformers.DeepseekV3ForCausalLM, transformers.DeepseekV3Config)
# Name, classes, shape, and changes of which each must affect the logits.
ROWS = [
    ("v2-lite", V2, dict(SIZES, **HEADS, q_lora_rank=None, n_routed_experts=5, num_experts_per_tok=2,
                         n_shared_experts=2, first_k_dense_replace=1, topk_method="greedy", rope_parameters=YARN),
     [{"routed_scaling_factor": 3.0}, {"rope_parameters": YARN | {"mscale_all_dim": 0.3}}]),
    ("v2", V2, dict(SIZES, **EVEN_HEADS, q_lora_rank=20, n_routed_experts=6, num_experts_per_tok=3, n_shared_experts=1,
                    n_group=3, topk_group=2, topk_method="group_limited_greedy", routed_scaling_factor=2.0,
                    rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
     [{"topk_method": "greedy"}]),
    ("v3", V3, dict(SIZES, **HEADS, q_lora_rank=20, n_routed_experts=6, num_experts_per_tok=3, n_shared_experts=2,
                    n_group=3, topk_group=2, first_k_dense_replace=1, num_mtp_layers=0, rope_parameters=YARN),
     [{"n_group": 1, "topk_group": 1}, {"norm_topk_prob": False}, {"rope_interleave": False},
      {"rope_parameters": YARN | {"mscale_all_dim": 0.3}}]),
    ("v3-plain", V3,
     dict(SIZES, **EVEN_HEADS, q_lora_rank=None, n_routed_experts=5, num_experts_per_tok=2, n_shared_experts=1,
          n_group=1, topk_group=1, first_k_dense_replace=0, num_mtp_layers=0, rope_interleave=False,
          norm_topk_prob=False, rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
     [{"rope_interleave": True}, {"routed_scaling_factor": 1.0}]),
]
# For each class, values that we refuse by their key.
REFUSED = {"v2": [("norm_topk_prob", True), ("scoring_func", "sigmoid"), ("topk_method", "noaux_tc"),
                  ("mlp_bias", True)],
           "v3": [("scoring_func", "softmax"), ("topk_method", "greedy"), ("attention_bias", True),
                  ("moe_layer_freq", 2), ("num_key_value_heads", 1)]}


def as_in_folder(tensors):
    """Splits the stacks of transformers' model into the tensors of a folder."""
    split = {}
    for name, stack in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            split[name] = stack
            continue
        base, matrix = name.rsplit(".", 1)
        for expert, value in enumerate(stack):
            parts = zip(("gate_proj", "up_proj"), value.chunk(2)) if matrix == "gate_up_proj" else [(matrix, value)]
            split |= {f"{base}.{expert}.{part}.weight": its for part, its in parts}
    return split


def expect_close(name, got, wanted, limit):
    off = (got - wanted).abs().max().item()
    assert off <= limit, (name, off, limit)


def compare_step(name, model, folder, ids):
    """Compares one step in all layouts and returns a folder that we wrote."""
    inputs, labels = ids[:, :-1], ids[:, 1:]
    logits = model(inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    wanted = as_in_folder({key: p.grad for key, p in model.named_parameters()})
    largest = max(x.abs().max().item() for x in wanted.values())
    # transformers computes the logits of routers, norms and rotations in fp32 for any dtype.
    limit = interop.rounding(model, inputs, 2**-24)
    for flags in LAYOUTS:
        losses_off = [] if name.startswith("v3") else ["--model.experts.balance_loss=0"]
        our_loss, our_logits, gradients, written = interop.probe(folder, inputs, labels, *losses_off, *flags)
        assert abs(our_loss - loss.item()) <= limit * loss.item(), (name, flags, our_loss, loss.item())
        expect_close((name, flags, "logits"), our_logits.view(logits.shape), logits, limit * logits.abs().max().item())
        gradients = {key: x for key, x in gradients.items() if not key.endswith(BIAS)}
        assert gradients.keys() == wanted.keys(), (name, flags, gradients.keys() ^ wanted.keys())
        for key, gradient in gradients.items():
            own = wanted[key].abs().max().item()
            expect_close((name, flags, key), gradient, wanted[key], limit * (own if own > limit * largest else largest))
    print(name, "agrees: logits and", len(wanted), "gradients in", len(LAYOUTS), "layouts, within", limit)
    return logits.detach(), written


def check_matters(name, classes, model, ids, logits, changes):
    for change in changes:
        config = classes[1](**(model.config.to_dict() | {"experts_implementation": "eager"} | change))
        other = classes[0](config).double().eval()
        other.load_state_dict(model.state_dict())
        with torch.no_grad():
            difference = (other(ids[:, :-1]).logits - logits).abs().max().item()
        assert difference > 1e-3, (name, change, "changes nothing", difference)


def check_written(name, model, written, ids, logits):
    again, report = transformers.AutoModelForCausalLM.from_pretrained(
        written, dtype=torch.float32, experts_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], (name, report)
    again = again.double().eval()
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), (name, key)
    with torch.no_grad():
        expect_close((name, "another config"), again(ids[:, :-1]).logits, logits,
                     interop.rounding(model, ids) * logits.abs().max().item())


def check_tokens(name, model, folder):
    with torch.no_grad():
        wanted = model.generate(torch.tensor([list(PROMPT.encode())]), max_new_tokens=24,
                                do_sample=False)[0, len(PROMPT):].tolist()
    wanted = wanted[:wanted.index(256)] if 256 in wanted else wanted
    for flags in [*LAYOUTS, FOUR_RANKS]:
        printed = interop.colossal("generate", "--from", folder, "--prompt", PROMPT, "--max-tokens", 24, "--ids",
                                   "--tokenizer", "bytes", *flags)
        assert [int(word) for word in printed.split()] == wanted, (name, flags, printed, wanted)


def copy_of(folder, name, **changes):
    """Returns a copy of the folder whose config.json has the changes."""
    other = shutil.copytree(folder, interop.temp_dir / name)
    config = json.loads((folder / "config.json").read_text()) | changes
    (other / "config.json").write_text(json.dumps(config))
    return other


def check_multi_token_layer(folder, ids):
    """The multi-token layer of a folder changes nothing."""
    other = copy_of(folder, "multi-token", num_nextn_predict_layers=1)
    tensors = safetensors.load_file(other / "model.safetensors")
    layer = f"model.layers.{SIZES['num_hidden_layers']}."
    tensors |= {layer + "eh_proj.weight": torch.randn(40, 80), layer + "shared_head.norm.weight": torch.ones(40)}
    safetensors.save_file(tensors, other / "model.safetensors", {"format": "pt"})
    without, beside = (interop.probe(its, ids[:, :-1], ids[:, 1:]) for its in (folder, other))
    assert torch.equal(without[1], beside[1])


def check_refusals(name, folder):
    config = json.loads((folder / "config.json").read_text())
    (interop.temp_dir / "configs.json").write_text(json.dumps([config | {key: value} for key, value in REFUSED[name]]))
    done = subprocess.run([os.environ["COLOSSAL_MODEL_PROBE"], "configs", interop.temp_dir / "configs.json"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for (key, value), made in zip(REFUSED[name], json.loads(done.stdout), strict=True):
        assert key in made.get("error", ""), (name, key, value, made)


def check_fp8_blocks(folder):
    other = copy_of(folder, "fp8",
                    quantization_config={"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})
    done = subprocess.run([interop.binary, "generate", "--from", other, "--prompt", "a", "--tokenizer", "bytes"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode != 0 and "bf16" in done.stderr, done


for name, classes, shape, changes in ROWS:
    model = classes[0](classes[1](**shape))
    generator = torch.Generator().manual_seed(4)
    for key, bias in model.named_buffers():
        if key.endswith(BIAS):
            bias.copy_(torch.randn(bias.shape, generator=generator) * 0.3)
    folder = interop.save(name, model)
    check_tokens(name, model, folder)
    ids = torch.randint(0, shape["vocab_size"], (2, LENGTH + 1), generator=generator)
    model.double()
    logits, written = compare_step(name, model, folder, ids)
    check_matters(name, classes, model, ids, logits, changes)
    check_written(name, model, written, ids, logits)
    if name in REFUSED:
        check_refusals(name, folder)
    if name == "v3":
        check_multi_token_layer(folder, ids)
        check_fp8_blocks(folder)
