"""The peer of our training-step benchmark: GPT-2 124M in PyTorch, eager, compiled, data or tensor parallel, on the CPU.

One step, of the whole batch over all ranks, is forward, loss, backward and a fused AdamW update of 4 x 256 random tokens in fp32, as our own benchmark does it.
Prints one JSON object: the median and best step in milliseconds, tokens per second at the best, and the peak resident size.

    python benchmarks/gpt2_training_step.py [--mode eager|compile|ddp|tensor] [--batch 4] [--length 256] [--threads 2] [--steps 8]
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
        parts = self.heads(self.attention_norm(x)).chunk(3, dim=-1)  # of the heads that this rank has
        q, k, v = (part.view(batch, length, -1, HIDDEN // HEADS).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, -1)
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


def make_tensor_parallel(model, ranks):
    """Megatron's plan by torch.distributed.tensor: columns, then rows, in every block; the vocabulary split over ranks with its loss."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        parallelize_module(block, mesh, {"heads": ColwiseParallel(), "merge": RowwiseParallel(), "expand": ColwiseParallel(),
                                         "contract": RowwiseParallel()})
    parallelize_module(model, mesh, {"words": RowwiseParallel(input_layouts=Replicate())})

    def train(tokens, labels):
        x = model.words(tokens) + model.positions(torch.arange(tokens.shape[1]))
        for block in model.blocks:
            x = block(x)
        x = DTensor.from_local(model.norm(x), mesh, [Replicate()])
        with loss_parallel():
            loss = F.cross_entropy(F.linear(x, model.words.weight).flatten(0, 1), labels.flatten())
            loss.backward()
        return loss

    return train


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["eager", "compile", "ddp", "tensor"], default="eager",
                        help="a rank of torchrun on Gloo: ddp, DistributedDataParallel; tensor, parallelize_module")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="measured steps, after two to warm up")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    if options.mode == "tensor":
        global VOCABULARY
        VOCABULARY += 1  # its loss_parallel wants equal parts
    model = Gpt2()
    loss_of, ranks, rank = model, 1, 0
    train = None
    if options.mode == "compile":
        loss_of = torch.compile(model)
    elif options.mode == "ddp":
        torch.distributed.init_process_group("gloo")
        ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        loss_of = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif options.mode == "tensor":
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        train = make_tensor_parallel(model, torch.distributed.get_world_size())
    # A fused update takes tensors of one kind: sharded and plain parameters are groups of their own.
    kinds = {}
    for parameter in model.parameters():
        kinds.setdefault(type(parameter.data), []).append(parameter)
    optimizer = torch.optim.AdamW([{"params": group} for group in kinds.values()], lr=1e-4, weight_decay=0.1, fused=True)
    shape = (options.batch // ranks, options.length)
    tokens, labels = torch.randint(VOCABULARY, shape), torch.randint(VOCABULARY, shape)

    seconds = []
    for step in range(options.steps + 2):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        if train:
            loss = train(tokens, labels)
        else:
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
