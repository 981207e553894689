"""Compares mixtures of experts, Mixtral and Qwen3-MoE, with those of transformers (family_checks.py): 5 experts, and 6
of which each token uses 3. Both forms of folders that transformers 5 writes are one model.

A new family is a row of ROWS."""

import re

import interop
from family_checks import LENGTH, PIPELINE_2, TWO_DIMENSIONS, Row, check, rope, sizes

torch, transformers = interop.need("torch", "transformers")

from safetensors.torch import load_file  # noqa: E402

EXPERT = re.compile(r"(.*)\.(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(\w+)\.weight")
KINDS = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
# transformers adds its balance loss only on request, and it differs from ours, which is therefore off.
NO_LOSS = ["--model.experts.balance_loss=0"]
HARMLESS = {"output_router_logits": "returned outputs, and a loss that we do not have",
            "router_aux_loss_coef": "of that loss"}


def joined(tensors):
    """Returns the tensors of a folder under the names of transformers' parameters: one for all experts of a layer."""
    made, experts = {}, {}
    for name, value in tensors.items():
        if match := EXPERT.fullmatch(name):
            layer, expert, matrix = match.groups()
            experts.setdefault(f"{layer}.mlp.experts", {}).setdefault(KINDS[matrix], {})[int(expert)] = value
        else:
            made[name.replace(".block_sparse_moe.gate.", ".mlp.gate.")] = value
    for name, kinds in experts.items():
        gate, up, down = (torch.stack([kinds[kind][expert] for expert in range(len(kinds[kind]))])
                          for kind in ("gate", "up", "down"))
        made[f"{name}.gate_up_proj"] = torch.cat([gate, up], 1)
        made[f"{name}.down_proj"] = down
    return made


ROWS = [
    Row("mixtral", transformers.MixtralForCausalLM, transformers.MixtralConfig,
        [sizes(num_local_experts=5, num_experts_per_tok=2, sliding_window=7, hidden_act="gelu",
               tie_word_embeddings=True),
         sizes(num_local_experts=6, num_experts_per_tok=3, num_attention_heads=3, num_key_value_heads=1, head_dim=10,
               **rope("linear", factor=3.0))],
        matters=[{"num_experts_per_tok": 1, "sliding_window": None}, {"num_experts_per_tok": 2}],
        others={"num_experts": lambda c: {"num_experts": 7}},
        harmless=HARMLESS, joined=joined, flags=NO_LOSS, layouts=[PIPELINE_2, TWO_DIMENSIONS]),
    Row("qwen3_moe", transformers.Qwen3MoeForCausalLM, transformers.Qwen3MoeConfig,
        [sizes(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=30, head_dim=12, num_hidden_layers=3,
               mlp_only_layers=[0],
               norm_topk_prob=True),
         sizes(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=22, num_attention_heads=5,
               num_key_value_heads=1, hidden_size=40, head_dim=6, num_hidden_layers=4, decoder_sparse_step=2,
               attention_bias=True, use_sliding_window=True, sliding_window=5, tie_word_embeddings=True)],
        matters=[{"num_experts_per_tok": 1, "norm_topk_prob": False}, {"norm_topk_prob": True, "sliding_window": 6}],
        others={"num_experts": lambda c: {"num_experts": 7}, "mlp_only_layers": lambda c: {"mlp_only_layers": [1]}},
        harmless=HARMLESS, joined=joined, flags=NO_LOSS, layouts=[PIPELINE_2, TWO_DIMENSIONS]),
]


def check_stacked_form(row, index):
    """A folder with one tensor for all experts of a layer is the same model, and is exported with a tensor for each
    expert."""
    name = f"{row.name}-{index}"
    model = row.model.from_pretrained(interop.temp_dir / name)
    stacked = interop.temp_dir / f"{name}-stacked"
    model.save_pretrained(stacked, save_original_format=False)
    tensors = load_file(stacked / "model.safetensors")
    assert any(key.endswith(".experts.gate_up_proj") for key in tensors), (name, list(tensors))
    ids = torch.randint(0, row.shapes[index]["vocab_size"], (2, LENGTH), generator=torch.Generator().manual_seed(5))
    interop.compare_export(name, stacked, model.eval(), input_ids=ids)
    exported = load_file(interop.temp_dir / f"{stacked}-export" / "model.safetensors")
    assert exported.keys() == load_file(interop.temp_dir / name / "model.safetensors").keys(), name
    print(name, "is read from one tensor for all experts, too")


check(ROWS)
for row in ROWS:
    for index in range(len(row.shapes)):
        check_stacked_form(row, index)
