"""Random models of transformers, small enough to generate in milliseconds."""

import json
import pathlib

import torch
import transformers

VOCABULARY = 256
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_SIZES = {"vocab_size": VOCABULARY, "eos_token_id": 7, "bos_token_id": 6, "pad_token_id": None}


def llama(folder: pathlib.Path) -> pathlib.Path:
    """Writes a LLaMA and returns its folder."""
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.5,  # so that the answers of different prompts differ
        tie_word_embeddings=False,
        **_SIZES,
    )
    return _write(transformers.LlamaForCausalLM, config, folder)


def gpt2(folder: pathlib.Path) -> pathlib.Path:
    """Writes a GPT-2 and returns its folder."""
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.5, **_SIZES)
    return _write(transformers.GPT2LMHeadModel, config, folder)


def t5(folder: pathlib.Path) -> pathlib.Path:
    """Writes a T5 and returns its folder."""
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        eos_token_id=7,
        pad_token_id=0,
        decoder_start_token_id=0,
        initializer_factor=3.0,
    )
    return _write(transformers.T5ForConditionalGeneration, config, folder)


def _write(model: type, config: transformers.PretrainedConfig, folder: pathlib.Path) -> pathlib.Path:
    torch.manual_seed(3)
    model(config).save_pretrained(folder)
    return folder


def adapter(folder: pathlib.Path, rank: int) -> pathlib.Path:
    """Writes adapters for the queries of `llama`, as peft does, and returns their folder."""
    from safetensors.torch import save_file

    folder.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    torch.manual_seed(rank)
    names = [f"base_model.model.model.layers.{layer}.self_attn.q_proj" for layer in range(2)]
    tensors = {f"{name}.lora_A.weight": torch.randn(rank, 32) for name in names}
    tensors |= {f"{name}.lora_B.weight": torch.randn(32, rank) for name in names}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def add_tokenizer(folder: pathlib.Path) -> pathlib.Path:
    """Writes a tokenizer with a token per byte into the folder, and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: id for id, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT}))
    return folder


def greedy(folder: pathlib.Path, prompt: list[int], tokens: int) -> list[int]:
    """Returns the greedy ids of transformers, without the end token."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    new: list[int] = out[0, len(prompt) :].tolist()
    return new[: new.index(7)] if 7 in new else new
