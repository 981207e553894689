"""Compares values and gradients of our attention op with the eager attention of transformers: BLOOM's linear biases,
Mistral's sliding window, Gemma 2's capped scores and ModernBERT's window to both sides."""

import os
import subprocess

import interop

torch, transformers = interop.need("torch", "transformers")

from transformers import masking_utils  # noqa: E402
from transformers.models.bloom import modeling_bloom  # noqa: E402
from transformers.models.gemma2 import modeling_gemma2  # noqa: E402
from transformers.models.mistral import modeling_mistral  # noqa: E402

BATCH, LENGTH, HEAD_DIM = 2, 77, 8
FP32 = 2 ** -23


def probe(q, k, v, dout, *, causal=True, window=0, alibi=False, soft_cap=0.0, scale=0.0):
    """Returns our output and the gradients of q, k and v."""
    for name, x in ("q", q), ("k", k), ("v", v), ("dout", dout):
        (interop.temp_dir / name).write_bytes(x.detach().contiguous().numpy().tobytes())
    sizes = [q.shape[0], q.shape[1], k.shape[1], q.shape[2], q.shape[3]]
    words = [*sizes, int(causal), window, int(alibi), soft_cap, scale]
    done = subprocess.run([os.environ["COLOSSAL_ATTENTION_PROBE"], interop.temp_dir, *map(str, words)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    def read(name, like):
        return torch.frombuffer(bytearray((interop.temp_dir / name).read_bytes()), dtype=torch.float64).view(like.shape)

    return [read("out", q), read("dq", q), read("dk", k), read("dv", v)]


def compare(name, theirs, q, k, v, largest_bias=0, **options):
    """Compares our results with `theirs` [batch, heads, length, head_dim], computed from q, k and v. transformers
    computes the softmax in fp32 for any dtype: a weight has the error of about 4 roundings, plus the error of its
    score."""
    generator = torch.Generator().manual_seed(9)
    dout = torch.randn(theirs.shape, generator=generator, dtype=torch.float64)
    wanted = [theirs, *torch.autograd.grad(theirs, [q, k, v], dout)]
    for what, ours, want in zip(["out", "dq", "dk", "dv"], probe(q, k, v, dout, **options), wanted, strict=True):
        difference, limit = (ours - want).abs().max().item(), (4 + largest_bias) * FP32 * want.abs().max().item()
        assert difference <= limit, (name, what, difference, limit)
    print(name, "agrees")


def heads(heads, kv_heads):
    """Returns random q, k and v."""
    generator = torch.Generator().manual_seed(heads)
    sizes = [(BATCH, n, LENGTH, HEAD_DIM) for n in (heads, kv_heads, kv_heads)]
    return [torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_() for size in sizes]


def check_bloom(count):
    config = transformers.BloomConfig(hidden_size=count * HEAD_DIM, n_head=count, attn_implementation="eager")
    layer = modeling_bloom.BloomAttention(config, 0).double()
    fused = torch.randn(BATCH, LENGTH, 3 * config.hidden_size, generator=torch.Generator().manual_seed(count),
                        dtype=torch.float64)
    layer.query_key_value = torch.nn.Identity()  # the layer's input is q, k and v, and its output is the heads' output
    layer.dense = torch.nn.Identity()
    q, k, v = layer._reshape(fused)
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    again = torch.stack([x.transpose(1, 2) for x in (q, k, v)], 3).flatten(2)
    alibi = modeling_bloom.build_alibi_tensor(torch.ones(BATCH, LENGTH), count, torch.float64)
    hidden = torch.zeros(BATCH, LENGTH, config.hidden_size, dtype=torch.float64)
    mask = masking_utils.create_causal_mask(config, hidden, None, None)
    out = layer.eval()(again, torch.zeros_like(hidden), alibi, mask)[0]
    compare(f"bloom, {count} heads", out.unflatten(2, (count, HEAD_DIM)).transpose(1, 2), q, k, v,
            largest_bias=LENGTH / 2, alibi=True)


class Groups(torch.nn.Module):
    """The attributes of an attention layer that transformers' functions read."""

    def __init__(self, groups):
        super().__init__()
        self.num_key_value_groups, self.head_dim = groups, HEAD_DIM


def check_mistral(window):
    config = transformers.MistralConfig(num_attention_heads=6, num_key_value_heads=2, head_dim=HEAD_DIM,
                                        sliding_window=window, attn_implementation="eager")
    q, k, v = heads(6, 2)
    mask = masking_utils.create_sliding_window_causal_mask(config, torch.zeros(BATCH, LENGTH, 1, dtype=torch.float64),
                                                           None, None)
    out, _ = modeling_mistral.eager_attention_forward(Groups(3), q, k, v, mask, HEAD_DIM ** -0.5)
    compare(f"mistral, window {window}", out.transpose(1, 2), q, k, v, window=window)


def check_gemma2(soft_cap):
    config = transformers.Gemma2Config(num_attention_heads=4, num_key_value_heads=2, head_dim=HEAD_DIM,
                                       sliding_window=20, attn_implementation="eager")
    q, k, v = heads(4, 2)
    mask = masking_utils.create_sliding_window_causal_mask(config, torch.zeros(BATCH, LENGTH, 1, dtype=torch.float64),
                                                           None, None)
    out, _ = modeling_gemma2.eager_attention_forward(Groups(2), q, k, v, mask, scaling=0.5, softcap=soft_cap)
    compare(f"gemma 2, cap {soft_cap}", out.transpose(1, 2), q, k, v, window=20, soft_cap=soft_cap, scale=0.5)


def check_both_sides(window):
    config = transformers.MistralConfig(sliding_window=window, attn_implementation="eager")
    q, k, v = heads(3, 3)
    mask = masking_utils.create_bidirectional_sliding_window_mask(
        config, torch.zeros(BATCH, LENGTH, 1, dtype=torch.float64), None)
    out, _ = modeling_mistral.eager_attention_forward(Groups(1), q, k, v, mask, HEAD_DIM ** -0.5)
    compare(f"both sides, window {window}", out.transpose(1, 2), q, k, v, causal=False, window=window)


for count in 4, 6, 12:  # numbers of heads: powers of two, and others
    check_bloom(count)
for window in 2, 20, LENGTH:
    check_mistral(window)
for soft_cap in 2.0, 50.0:
    check_gemma2(soft_cap)
check_both_sides(9)
