"""Compares GGUF files. In the files that we write from random models of every family, the package gguf finds the
tensors and values that it expects. Read back here, they are the same model: logits equal transformers' in fp64.
Mixtures of experts, which the package writes with one tensor for all experts, also continue a prompt with transformers'
tokens. transformers' own reader and llama.cpp, if it is installed (llama-cpp-python), get the same results from a file
as from the folder. We also read files that the package writes, DeepSeeks in the form of older converters, too. Each
dequantized value equals the package's, and Q8_0 and Q4_0 have the same bytes."""

import contextlib
import importlib.util
import io
import re

import interop

torch, transformers, gguf, np = interop.need("torch", "transformers", "gguf", "numpy")
try:
    import llama_cpp
except ImportError:
    llama_cpp = None
has_accelerate = importlib.util.find_spec("accelerate") is not None  # required by transformers' reader
from safetensors.torch import load_file

PROMPT = "abcdefghijklmnopq"
TOKENS = dict(vocab_size=263, bos_token_id=256, eos_token_id=256, pad_token_id=None)
SIZES = dict(TOKENS, hidden_size=96, intermediate_size=160, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=3, max_position_embeddings=64)
ROPE = {"rope_theta": 500.0, "rope_type": "default"}
GROUPLESS = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
LLAMA3 = dict(rope_theta=500000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)
PHI3 = dict(short_factor=[1.5, 2.0, 3.0, 3.5], long_factor=[1.0, 5.0, 7.0, 8.0])

DEEPSEEK = dict(TOKENS, hidden_size=96, intermediate_size=160, num_hidden_layers=2, num_attention_heads=6,
                num_key_value_heads=6, max_position_embeddings=64, kv_lora_rank=32, qk_nope_head_dim=16,
                qk_rope_head_dim=8, v_head_dim=24, moe_intermediate_size=64, n_shared_experts=2,
                first_k_dense_replace=1, num_experts_per_tok=3)
DEEPSEEK_YARN = ROPE | dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.7,
                            mscale_all_dim=0.7)
# A name, the architecture in the package, transformers' class and its arguments.
ROWS = [
    ("llama", "LLAMA", "Llama", dict(SIZES, attention_bias=True, mlp_bias=True, rope_parameters=ROPE)),
    ("llama3", "LLAMA", "Llama",
     dict(SIZES, head_dim=64, max_position_embeddings=16384, tie_word_embeddings=True, rope_parameters=LLAMA3)),
    ("yarn", "LLAMA", "Llama",
     dict(SIZES, rope_parameters=ROPE | dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16))),
    ("qwen2", "QWEN2", "Qwen2", dict(SIZES, rope_parameters=ROPE)),
    ("qwen3", "QWEN3", "Qwen3", dict(SIZES, head_dim=24, tie_word_embeddings=True)),
    ("mixtral", "LLAMA", "Mixtral",
     dict(SIZES, num_local_experts=5, num_experts_per_tok=2, sliding_window=None, rope_parameters=ROPE)),
    ("qwen3_moe", "QWEN3MOE", "Qwen3Moe",
     dict(SIZES, head_dim=24, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=64, norm_topk_prob=True,
          tie_word_embeddings=True)),
    ("deepseek_v3", "DEEPSEEK2", "DeepseekV3", dict(DEEPSEEK, q_lora_rank=64, n_routed_experts=8, n_group=4,
                                                    topk_group=2, num_mtp_layers=0, rope_parameters=DEEPSEEK_YARN)),
    ("deepseek_v2_lite", "DEEPSEEK2", "DeepseekV2",
     dict(DEEPSEEK, q_lora_rank=None, n_routed_experts=6, topk_method="greedy", rope_parameters=ROPE)),
    ("gemma2", "GEMMA2", "Gemma2", dict(SIZES, head_dim=24, query_pre_attn_scalar=24, sliding_window=5,
                                        attn_logit_softcapping=2.0, final_logit_softcapping=3.0)),
    ("phi3", "PHI3", "Phi3",
     dict(SIZES, max_position_embeddings=512, original_max_position_embeddings=256,
          rope_parameters=ROPE | dict(rope_type="longrope", partial_rotary_factor=0.5, **PHI3))),
    ("gpt2", "GPT2", "GPT2", dict(TOKENS, n_positions=1024, n_layer=2, n_head=6, n_embd=96, n_inner=384, resid_pdrop=0,
                                  embd_pdrop=0, attn_pdrop=0)),
    ("gpt_neox", "GPTNEOX", "GPTNeoX", dict(GROUPLESS, rope_parameters=ROPE | {"partial_rotary_factor": 0.5},
                                            tie_word_embeddings=False)),
    ("bloom", "BLOOM", "Bloom", dict(TOKENS, n_layer=2, n_head=6, hidden_size=96)),
    ("falcon", "FALCON", "Falcon",
     dict(TOKENS, hidden_size=96, num_hidden_layers=2, num_attention_heads=6, max_position_embeddings=64, bias=False)),
    ("falcon_new", "FALCON", "Falcon",
     dict(TOKENS, hidden_size=96, num_hidden_layers=2, num_attention_heads=6, num_kv_heads=2, bias=False,
          max_position_embeddings=64, new_decoder_architecture=True, tie_word_embeddings=False)),
]

# Files for which transformers' reader gives other results than for their folder, and the reason.
NOT_TRANSFORMERS = {"llama3": "it does not read rope_freqs", "yarn": "it does not read rope.scaling",
                    "phi3": "nor factors of frequencies", "gpt_neox": "it does not know gptneox",
                    "falcon_new": "it does not read attn_norm_2", "gemma2": "it does not read attention.sliding_window",
                    "llama": "nor biases", "qwen3": "nor attention.key_length", "mixtral": "it takes it for a LLaMA",
                    "qwen3_moe": "it does not read expert_feed_forward_length",
                    "deepseek_v3": "it does not know deepseek2", "deepseek_v2_lite": "it does not know deepseek2"}
# llama.cpp uses a table of GELU's tanh approximation
NEARLY = {"gemma2", "gpt2", "bloom", "gpt_neox", "falcon", "falcon_new"}


MIXTURES = {"mixtral", "qwen3_moe", "deepseek_v3", "deepseek_v2_lite"}
CORRECTION, LATENT = "e_score_correction_bias", "self_attn.kv_b_proj.weight"
EXPERT = re.compile(r"(.*\.experts)\.(\d+)(\..*)")


def make(name, cls, arguments):
    torch.manual_seed(0)
    model = getattr(transformers, cls + ("LMHeadModel" if cls == "GPT2" else "ForCausalLM"))(
        getattr(transformers, cls + "Config")(**arguments))
    for key, buffer in model.named_buffers():
        if key.endswith(CORRECTION):  # zeros would not affect a choice
            buffer.normal_(std=0.1)
    return model, interop.save(name, model)


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double()


def our_logits(folder, ids):
    inputs = torch.tensor([ids])
    return interop.probe(folder, inputs, inputs.clone())[1].view(len(ids), -1)


def folder_of(path):
    """Returns the folder that we write from a file."""
    interop.colossal("export", "--from", path, "--to", path.with_suffix(".folder"))
    return path.with_suffix(".folder")


def joined(tensors, layer, config):
    """Returns kv_b_proj of a folder from the two tensors of a file, of which the keys of each head are transposed."""
    keys, values = (torch.from_numpy(tensors[f"blk.{layer}.attn_{kind}_b.weight"].copy()) for kind in "kv")
    assert keys.shape == (config.num_attention_heads, config.kv_lora_rank, config.qk_nope_head_dim), keys.shape
    return torch.cat([keys.transpose(1, 2), values], 1).flatten(0, 1)


def place(key):
    """Returns the name of a tensor of a folder without the number of an expert, and the number or None."""
    match = EXPERT.fullmatch(key)
    return (match[1] + match[3], int(match[2])) if match else (key, None)


def their_tokens(model, count=20):
    """Returns the tokens with which transformers continues the prompt, up to the end of the text."""
    tokens = list(PROMPT.encode())
    for _ in range(count):
        following = int(logits_of(model, tokens)[-1].argmax())
        if following == TOKENS["eos_token_id"]:
            break
        tokens.append(following)
    return tokens[len(PROMPT):]


def our_tokens(path, *flags, count=20):
    printed = interop.colossal("generate", "--from", path, "--prompt", PROMPT, "--temperature", 0, "--max-tokens",
                               count, "--ids", *flags)
    return [int(line) for line in printed.split() if int(line) != TOKENS["eos_token_id"]]


def read(path):
    reader = gguf.GGUFReader(path)
    tensors = {t.name: gguf.dequantize(t.data, t.tensor_type).reshape(tuple(reversed(t.shape.tolist())))
               for t in reader.tensors}
    return reader, tensors


def off(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def compare_llama_cpp(name, path, ids, wanted, limit):
    with contextlib.redirect_stderr(io.StringIO()):
        llama = llama_cpp.Llama(str(path), n_ctx=32, n_threads=1, logits_all=True, verbose=False, type_k=0, type_v=0,
                                flash_attn=False)
    assert llama.tokenize(PROMPT.encode(), add_bos=False) == list(PROMPT.encode()), name
    llama.eval(ids)
    theirs = torch.from_numpy(np.array(llama.scores[:len(ids)])).double()
    llama.close()
    assert off(theirs, wanted) < limit, (name, "llama.cpp", off(theirs, wanted))


def llama_cpp_tokens(path, count=20):
    """Returns the tokens with which llama.cpp continues the prompt, up to the end of the text."""
    with contextlib.redirect_stderr(io.StringIO()):
        llama = llama_cpp.Llama(str(path), n_ctx=48, n_threads=1, verbose=False, type_k=0, type_v=0, flash_attn=False)
    tokens = []
    for token in llama.generate(list(PROMPT.encode()), top_k=1, temp=0.0, repeat_penalty=1.0):
        if token == TOKENS["eos_token_id"] or len(tokens) == count:
            break
        tokens.append(token)
    llama.close()
    return tokens


ids = list(PROMPT.encode())
for name, arch, cls, arguments in ROWS:
    model, folder = make(name, cls, arguments)
    path = interop.temp_dir / f"{name}.gguf"
    interop.colossal("export", "--from", folder, "--to", path, "--tokenizer", "bytes")
    reader, tensors = read(path)
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch], 2)
    for key, value in load_file(folder / "model.safetensors").items():
        if key.endswith(LATENT):
            assert torch.equal(joined(tensors, key.split(".")[2], model.config), value), (name, key)
            continue
        key, expert = place(key.replace("_correction_bias", "_correction.bias"))
        theirs = next(filter(None, (known.get_name(k, try_suffixes=(".weight", ".bias"))
                                    for k in (key, key.removeprefix("transformer.")))))
        if key.endswith("lm_head.weight") and theirs not in tensors:
            continue  # tied weights
        stored = torch.from_numpy(tensors[theirs].copy()) - (1 if name == "gemma2" and "norm" in key else 0)
        stored = stored if expert is None else stored[expert]
        assert stored.numel() == value.numel(), (name, key, theirs)
        ours, wanted = (values.flatten().sort()[0] for values in (stored, value))
        assert torch.allclose(ours, wanted, rtol=0, atol=1e-6), (name, key, theirs)
    wanted = logits_of(interop.in_fp64(model), ids)
    before, after = our_logits(folder, ids), our_logits(folder_of(path), ids)
    assert off(before, wanted) <= 1e-5, (name, "ours", off(before, wanted))  # their frequencies are fp32
    # for gemma2, 1 + w was rounded
    assert off(after, before) <= (1e-6 if name == "gemma2" else 0), (name, "ours", off(after, before))
    compared = ["ours"]
    if name in MIXTURES:
        assert our_tokens(path) == their_tokens(model), (name, our_tokens(path), their_tokens(model))
    if has_accelerate and name not in NOT_TRANSFORMERS:
        again = interop.in_fp64(type(model).from_pretrained(interop.temp_dir, gguf_file=path.name)).eval()
        assert off(logits_of(again, ids), wanted) <= 1e-5, (name, "transformers", off(logits_of(again, ids), wanted))
        compared.append("transformers")
    if llama_cpp:
        compare_llama_cpp(name, path, ids, wanted, 1e-2 if name in NEARLY else 1e-4)
        if name in MIXTURES:
            assert llama_cpp_tokens(path) == their_tokens(model), (name, "llama.cpp", llama_cpp_tokens(path))
        compared.append("llama.cpp")
    print(name, "agrees:", *compared)


def blocks(kind, numbers):
    """Returns random blocks of a type, with valid scales: half precision of about 0.01."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    made = np.random.default_rng(kind).integers(0, 256, (numbers // block, size), dtype=np.uint8)
    scale = np.frombuffer(np.float16(0.01).tobytes(), dtype=np.uint8)
    for at in {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2),
               "Q5_K": (0, 2)}.get(kind.name, (0,)):
        made[:, at:at + 2] = scale
    return made


def written_by_the_package(kind):
    """Writes a LLaMA of one layer whose matrices have this type. Returns the package's values of each matrix, by its
    name in a folder."""
    path, wanted = interop.temp_dir / f"package-{kind.name}.gguf", {}
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in dict(context_length=32, embedding_length=256, block_count=1, feed_forward_length=512,
                           head_count=4, head_count_kv=2, layer_norm_rms_eps=1e-5, rope_dimension_count=64).items():
        getattr(writer, f"add_{key}")(value)
    layer, inner = "blk.0.", "model.layers.0."
    shapes = {"token_embd": (40, 256), "output": (40, 256), layer + "attn_v": (128, 256),
              layer + "attn_output": (256, 256), layer + "ffn_gate": (512, 256), layer + "ffn_up": (512, 256),
              layer + "ffn_down": (256, 512), layer + "attn_q": (256, 256), layer + "attn_k": (128, 256)}
    names = {"token_embd": "model.embed_tokens", "output": "lm_head", layer + "attn_v": inner + "self_attn.v_proj",
             layer + "attn_output": inner + "self_attn.o_proj", layer + "ffn_gate": inner + "mlp.gate_proj",
             layer + "ffn_up": inner + "mlp.up_proj", layer + "ffn_down": inner + "mlp.down_proj"}
    for name, shape in shapes.items():
        made = blocks(kind, shape[0] * shape[1]).reshape(shape[0], -1)
        writer.add_tensor(name + ".weight", made, raw_dtype=kind)
        if name in names:
            wanted[names[name] + ".weight"] = gguf.dequantize(made, kind).reshape(shape)
    for name in ("output_norm", layer + "attn_norm", layer + "ffn_norm"):
        writer.add_tensor(name + ".weight", np.ones(256, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, wanted


for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"):
    path, wanted = written_by_the_package(gguf.GGMLQuantizationType[name])
    ours = load_file(folder_of(path) / "model.safetensors")
    for key, value in wanted.items():
        assert torch.equal(ours[key], torch.from_numpy(value.copy())), (name, key)
print("blocks of the package are read to the bit")

def mixture_by_the_package(name, arch, cls, arguments):
    """Writes a mixture as the package does. Returns transformers' model and the file."""
    model, folder = make(f"{name}-by-the-package", cls, arguments)
    path, architecture = interop.temp_dir / f"package-{name}.gguf", gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[arch]]
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch], arguments["num_hidden_layers"])
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    head_dim = arguments.get("head_dim", config.hidden_size // config.num_attention_heads)
    for key, value in dict(context_length=config.max_position_embeddings, embedding_length=config.hidden_size,
                           block_count=config.num_hidden_layers, feed_forward_length=config.intermediate_size,
                           head_count=config.num_attention_heads, head_count_kv=config.num_key_value_heads,
                           layer_norm_rms_eps=config.rms_norm_eps, rope_dimension_count=head_dim, key_length=head_dim,
                           value_length=head_dim, rope_freq_base=config.rope_parameters["rope_theta"],
                           expert_count=arguments.get("num_experts", arguments.get("num_local_experts")),
                           expert_used_count=config.num_experts_per_tok).items():
        getattr(writer, f"add_{key}")(value)
    if name == "qwen3_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    tensors = {}
    for key, value in load_file(folder / "model.safetensors").items():
        key, expert = place(key)
        value = value.float().numpy()
        heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
        for kind, count in heads.items():
            if name == "mixtral" and key.endswith(f"{kind}_proj.weight"):  # pairs of features are adjacent in llama.cpp
                value = value.reshape(count, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(value.shape)
        theirs = known.get_name(key, try_suffixes=(".weight", ".bias"))
        tensors.setdefault(theirs, {})[expert or 0] = value
    for key, parts in tensors.items():
        stack = [parts[index] for index in range(len(parts))]
        writer.add_tensor(key, np.ascontiguousarray(np.stack(stack) if "_exps" in key else stack[0]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return interop.in_fp64(model), path


def deepseek_by_the_package(name, cls, arguments, is_old):
    """Writes a DeepSeek as the package does, or as it did before keys and values of the latent were two tensors.
    Returns transformers' model and the file."""
    model, folder = make(f"{name}-by-the-package", cls, arguments)
    path, config = interop.temp_dir / f"package-{name}-{'old' if is_old else 'new'}.gguf", model.config
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, "deepseek2")
    nope, rotated = config.qk_nope_head_dim, config.qk_rope_head_dim
    rank, heads = config.kv_lora_rank, config.num_attention_heads
    values = dict(context_length=config.max_position_embeddings, embedding_length=config.hidden_size,
                  block_count=config.num_hidden_layers, feed_forward_length=config.intermediate_size, head_count=heads,
                  layer_norm_rms_eps=config.rms_norm_eps, rope_freq_base=500.0, rope_dimension_count=rotated,
                  leading_dense_block_count=config.first_k_dense_replace, kv_lora_rank=rank,
                  expert_count=config.n_routed_experts, expert_used_count=config.num_experts_per_tok,
                  expert_shared_count=config.n_shared_experts, expert_feed_forward_length=config.moe_intermediate_size,
                  expert_weights_scale=config.routed_scaling_factor)
    if config.q_lora_rank:
        values |= dict(q_lora_rank=config.q_lora_rank)
    if name == "deepseek_v3":
        values |= dict(expert_weights_norm=True, expert_gating_func=gguf.ExpertGatingFuncType.SIGMOID,
                       expert_group_count=config.n_group, expert_group_used_count=config.topk_group,
                       rope_scaling_type=gguf.RopeScalingType.YARN, rope_scaling_factor=4.0,
                       rope_scaling_orig_ctx_len=16, rope_scaling_yarn_log_mul=0.1 * 0.7)
    if is_old:
        values |= dict(head_count_kv=heads, key_length=nope + rotated, value_length=config.v_head_dim)
    else:
        values |= dict(head_count_kv=1, key_length=rank + rotated, value_length=rank, key_length_mla=nope + rotated,
                       value_length_mla=config.v_head_dim)
    for key, value in values.items():
        getattr(writer, f"add_{key}")(value)
    tensors = {}
    for key, value in load_file(folder / "model.safetensors").items():
        if key.endswith(LATENT) and not is_old:
            keys, kept = value.view(heads, nope + config.v_head_dim, rank).split([nope, config.v_head_dim], dim=1)
            for kind, part in ("k", keys.transpose(1, 2)), ("v", kept):
                tensors[f"blk.{key.split('.')[2]}.attn_{kind}_b.weight"] = {0: part.float().numpy()}
            continue
        key, expert = place(key.replace("_correction_bias", "_correction.bias"))
        theirs = known.get_name(key, try_suffixes=(".weight", ".bias"))
        tensors.setdefault(theirs, {})[expert or 0] = value.float().numpy()
    for key, parts in tensors.items():
        stack = [parts[index] for index in range(len(parts))]
        writer.add_tensor(key, np.ascontiguousarray(np.stack(stack) if "_exps" in key else stack[0]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return interop.in_fp64(model), path


for name, arch, cls, arguments in ROWS:
    if not name.startswith("deepseek"):
        continue
    for is_old in (False, True):
        model, path = deepseek_by_the_package(name, cls, arguments, is_old)
        wanted, ours = logits_of(model, ids), our_logits(folder_of(path), ids)
        assert off(ours, wanted) <= 1e-5, (name, is_old, "written by the package", off(ours, wanted))
        assert our_tokens(path, "--tokenizer", "bytes") == their_tokens(model), (name, is_old)

for name, arch, cls, arguments in ROWS:
    if name not in MIXTURES or name.startswith("deepseek"):
        continue
    model, path = mixture_by_the_package(name, arch, cls, arguments)
    wanted, ours = logits_of(model, ids), our_logits(folder_of(path), ids)
    assert off(ours, wanted) <= 1e-5, (name, "written by the package", off(ours, wanted))
    assert our_tokens(path, "--tokenizer", "bytes") == their_tokens(model), name
print("mixtures of the package are read, too")

model, folder = make("large", "Llama",
                     dict(SIZES, hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2))
floats = {key: value.numpy() for key, value in load_file(folder / "model.safetensors").items()}
# Maximum relative error of a matrix of normal values, in its norm; see tests/checkpoint/gguf_blocks_test.cpp.
for kind, bound in {"f32": 0, "f16": 2**-11, "bf16": 2**-8, "q8_0": 0.01, "q4_0": 0.1, "q4_k": 0.079,
                    "q6_k": 0.02}.items():
    path = interop.temp_dir / f"large-{kind}.gguf"
    interop.colossal("export", "--from", folder, "--to", path, "--type", kind, "--tokenizer", "bytes")
    reader, tensors = read(path)
    types = {t.name: t.tensor_type for t in reader.tensors}
    assert types["blk.0.ffn_up.weight"].name == kind.upper() and types["blk.0.ffn_norm.weight"].name == "F32", types
    up, made = floats["model.layers.0.mlp.up_proj.weight"], tensors["blk.0.ffn_up.weight"]
    off_by, length = np.linalg.norm(up - made), np.linalg.norm(up)
    assert off_by <= bound * length, (kind, off_by / length)
    if kind in ("f16", "bf16", "q8_0", "q4_0"):
        stored = next(t.data for t in reader.tensors if t.name == "blk.0.ffn_up.weight")
        assert gguf.quantize(up, gguf.GGMLQuantizationType[kind.upper()]).tobytes() == stored.tobytes(), kind
    back = load_file(folder_of(path) / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    assert np.array_equal(back.numpy(), made), kind
    if llama_cpp:
        with contextlib.redirect_stderr(io.StringIO()):
            llama = llama_cpp.Llama(str(path), n_ctx=48, n_threads=1, verbose=False, type_k=0, type_v=0,
                                    flash_attn=False)
        theirs = []
        for token in llama.generate(ids, top_k=1, temp=0.0, repeat_penalty=1.0):
            theirs.append(token)
            if len(theirs) == 20:
                break
        printed = interop.colossal("generate", "--from", path, "--prompt", PROMPT, "--temperature", 0, "--max-tokens",
                                   20, "--ids")
        ours = [int(line) for line in printed.split()]
        # llama.cpp rounds activations too if a type is quantized. With random weights, the tokens then differ sooner or
        # later.
        assert kind not in ("f32", "bf16") or ours == theirs, (kind, ours, theirs)
print("what we quantise is what the package reads")
