"""Tiny modules with random weights, and batches for them. Losses are computed from the logits, because those of
transformers go through fp32."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

WORDS = 31
CLASSES = 5


@dataclass
class Case:
    """A module, and functions that make a batch of some rows and the loss of a batch."""

    module: torch.nn.Module
    batch: Callable[[int], torch.Tensor]
    loss: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]


class Plain(torch.nn.Module):
    """A residual network over tokens with a tied head, a norm and a parameter that no operator of a layer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(WORDS, 12)
        self.norm = torch.nn.LayerNorm(12)
        self.up = torch.nn.Linear(12, 20)
        self.down = torch.nn.Linear(20, 12)
        self.scale = torch.nn.Parameter(torch.ones(12))
        self.head = torch.nn.Linear(12, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        x = x + self.scale * self.down(torch.tanh(self.up(self.norm(x))))
        return self.head(x)


def tokens(rows: int) -> torch.Tensor:
    return torch.randint(WORDS, (rows, 9))


def next_token(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def plain() -> Case:
    return Case(Plain(), tokens, lambda module, ids: next_token(module(ids), ids))


def gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
                        attn_pdrop=0)
    return Case(GPT2LMHeadModel(config), tokens, lambda module, ids: next_token(module(ids).logits, ids))


def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16)
    return Case(LlamaForCausalLM(config), tokens, lambda module, ids: next_token(module(ids).logits, ids))


def bert() -> Case:
    from transformers import BertConfig, BertForMaskedLM
    config = BertConfig(vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                        num_attention_heads=2, max_position_embeddings=16, hidden_dropout_prob=0,
                        attention_probs_dropout_prob=0)

    def loss(module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        hidden = ids.where(torch.arange(9) % 3 > 0, torch.zeros_like(ids))
        return cross_entropy(module(hidden).logits[:, ::3].flatten(0, 1), ids[:, ::3].flatten())

    return Case(BertForMaskedLM(config), tokens, loss)


def vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification
    config = ViTConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=8,
                       patch_size=4, num_labels=CLASSES, hidden_dropout_prob=0, attention_probs_dropout_prob=0)

    def loss(module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        classes = (100 * images[:, 0, 0, 0]).long() % CLASSES
        return cross_entropy(module(images.to(next(module.parameters()).dtype)).logits, classes)

    return Case(ViTForImageClassification(config), lambda rows: torch.randn(rows, 3, 8, 8), loss)


def t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration
    config = T5Config(vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0,
                      decoder_start_token_id=0, pad_token_id=0)

    def loss(module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return next_token(module(input_ids=ids, decoder_input_ids=ids.flip(1)).logits, ids)

    return Case(T5ForConditionalGeneration(config), tokens, loss)


def latents(rows: int) -> torch.Tensor:
    return torch.randn(rows, 4, 4, 4)


def unet() -> Case:
    from diffusers import UNet2DConditionModel
    module = UNet2DConditionModel(block_out_channels=(4, 8), layers_per_block=1, norm_num_groups=2,
                                  down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                                  up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=8,
                                  attention_head_dim=2)

    def loss(module: torch.nn.Module, noised: torch.Tensor) -> torch.Tensor:
        noised = noised.to(module.dtype)
        return (module(noised, 500, noised.view(-1, 8, 8)).sample - noised).square().mean()

    return Case(module, latents, loss)


def dit() -> Case:
    from diffusers import DiTTransformer2DModel
    module = DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=4, in_channels=4, out_channels=4,
                                   num_layers=2, sample_size=4, num_embeds_ada_norm=CLASSES)
    for block in module.transformer_blocks:
        block.norm1.emb.class_embedder.dropout_prob = 0  # it would drop classes at random

    def loss(module: torch.nn.Module, noised: torch.Tensor) -> torch.Tensor:
        noised = noised.to(module.dtype)
        classes = (100 * noised[:, 0, 0, 0]).long() % CLASSES
        predicted = module(noised, timestep=classes * 200, class_labels=classes).sample
        return (predicted - noised).square().mean()

    return Case(module, latents, loss)


DIFFUSERS = ("unet", "dit")
CASES = {case.__name__: case for case in (plain, gpt2, llama, bert, vit, t5, unet, dit)}
