"""The peer of our training-step benchmark: GPT-2 124M in PyTorch, eager or compiled, on the CPU.

One step, of the whole batch over all ranks, is forward, loss, backward and a fused AdamW update of 4 x 256 random tokens in fp32, as our own benchmark does it.
Prints one JSON object: the median and best step in milliseconds, tokens per second at the best, and the peak resident size.

    python benchmarks/gpt2_training_step.py [--mode eager|compile|ddp] [--batch 4] [--length 256] [--threads 2] [--steps 8]
"""

import argparse
import json
import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, HIDDEN, LAYERS, HEADS, POSITIONS = 50257, 768, 12, 12, 1024


class Block(nn.Module):
    """Pre-norm transformer block: causal self-attention, then a feed-forward of four times the width."""

    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(HIDDEN)
        self.heads = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.merge = nn.Linear(HIDDEN, HIDDEN)
        self.feed_norm = nn.LayerNorm(HIDDEN)
        self.expand = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.contract = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.heads(self.attention_norm(x)).split(HIDDEN, dim=-1)
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, HIDDEN)
        x = x + self.merge(mixed)
        return x + self.contract(F.gelu(self.expand(self.feed_norm(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Learned positions, tied output projection; the loss is the mean over all tokens."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(POSITIONS, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, labels):
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["eager", "compile", "ddp"], default="eager",
                        help="ddp: a rank of torchrun, gradients averaged by DistributedDataParallel on Gloo")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="measured steps, after two to warm up")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    model = Gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    loss_of, ranks, rank = model, 1, 0
    if options.mode == "compile":
        loss_of = torch.compile(model)
    elif options.mode == "ddp":
        torch.distributed.init_process_group("gloo")
        ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        loss_of = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    shape = (options.batch // ranks, options.length)
    tokens, labels = torch.randint(VOCABULARY, shape), torch.randint(VOCABULARY, shape)

    seconds = []
    for step in range(options.steps + 2):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(tokens, labels)
        loss.backward()
        optimizer.step()
        last_loss = loss.item()
        if step >= 2:
            seconds.append(time.perf_counter() - start)
    if rank:
        return
    print(json.dumps({
        "peer": f"torch {torch.__version__} {options.mode}",
        "batch": options.batch, "length": options.length, "threads": options.threads,
        "median_ms": round(statistics.median(seconds) * 1e3, 1), "best_ms": round(min(seconds) * 1e3, 1),
        "tokens_per_second": round(options.batch * options.length / min(seconds), 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "loss": round(last_loss, 4),
    }))


if __name__ == "__main__":
    main()
