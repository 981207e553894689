"""The peer of our training-step benchmarks: GPT-2 124M in PyTorch, eager, compiled, data, fully sharded, tensor,
sequence or pipeline parallel, on the CPU.

One step, of the whole batch over all ranks, is forward, loss, backward and a fused AdamW update of 4 x 256 random
tokens, as our own benchmarks do it, in fp32 or, with --bf16, under autocast. Prints one JSON object: the median and
best step in milliseconds, tokens per second at the best, and the peak resident sizes of the rank that uses most and of
all ranks together.

    python benchmarks/gpt2_training_step.py [--mode eager|compile|ddp|fsdp|tensor|pipeline] [--bf16] [--batch 4]
        [--length 256] [--threads 2] [--steps 8]
    torchrun --nproc-per-node=2 benchmarks/gpt2_training_step.py --mode pipeline [--schedule 1f1b|zero-bubble]
        [--micro-batches 4] [--cut 9] ...
    torchrun --nproc-per-node=2 benchmarks/gpt2_training_step.py --mode ring --length 32768 --hidden 256 --layers 2
        --heads 4 --vocabulary 257 ...
"""

import argparse
import functools
import itertools
import json
import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

import torch_ring_attention

VOCABULARY, HIDDEN, LAYERS, HEADS, POSITIONS = 50257, 768, 12, 12, 1024


class Block(nn.Module):
    """Pre-norm transformer block: causal self-attention, then a feed-forward of four times the width."""

    def __init__(self):
        super().__init__()
        self.attend = functools.partial(F.scaled_dot_product_attention, is_causal=True)
        self.attention_norm = nn.LayerNorm(HIDDEN)
        self.heads = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.merge = nn.Linear(HIDDEN, HIDDEN)
        self.feed_norm = nn.LayerNorm(HIDDEN)
        self.expand = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.contract = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        parts = self.heads(self.attention_norm(x)).chunk(3, dim=-1)  # of the heads that this rank has
        batch, length, _ = parts[0].shape
        q, k, v = (part.view(batch, length, -1, HIDDEN // HEADS).transpose(1, 2) for part in parts)
        mixed = self.attend(q, k, v).transpose(1, 2).reshape(batch, length, -1)
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

    def forward(self, tokens, labels, places=None):
        if places is None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def make_fully_sharded(ranks):
    """FSDP2, a unit a block and one for what is left; what it gathers for a forward goes after it, but for the last
    unit. No rank ever has the whole model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = Gpt2()
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shard = parameter.to_local()
            if parameter.dim() > 1:
                shard.normal_(std=0.02)
            else:
                shard.fill_(1.0 if name.endswith("norm.weight") else 0.0)
    return model


def make_tensor_parallel(model, ranks):
    """Megatron's plan by torch.distributed.tensor: columns, then rows, in every block; the vocabulary split over ranks
    with its loss."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        parallelize_module(block, mesh, {"heads": ColwiseParallel(), "merge": RowwiseParallel(),
                                         "expand": ColwiseParallel(), "contract": RowwiseParallel()})
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


def make_sequence_parallel(model, ranks, rank):
    """Megatron's plan with norms and residuals split over the tokens of a row."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel,
                                                   parallelize_module)

    mesh = init_device_mesh("cpu", (ranks,))
    own = {"input_layouts": Shard(1)}
    for block in model.blocks:
        parallelize_module(block, mesh, {
            "attention_norm": SequenceParallel(), "heads": ColwiseParallel(**own),
            "merge": RowwiseParallel(output_layouts=Shard(1)), "feed_norm": SequenceParallel(),
            "expand": ColwiseParallel(**own), "contract": RowwiseParallel(output_layouts=Shard(1))})
    parallelize_module(model, mesh, {"words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                                     "norm": SequenceParallel()})

    def train(tokens, labels):
        x = model.words(tokens) + model.positions(torch.arange(tokens.shape[1]).chunk(ranks)[rank])
        for block in model.blocks:
            x = block(x)
        x = model.norm(x).redistribute(placements=[Replicate()])
        with loss_parallel():
            loss = F.cross_entropy(F.linear(x, model.words.weight).flatten(0, 1), labels.flatten())
            loss.backward()
        torch.distributed.all_reduce(model.positions.weight.grad)  # of this rank's tokens
        return loss

    return train


class Stage(nn.Module):
    """The blocks from begin to end of the model; the first stage embeds tokens before them, the last one projects to
    the vocabulary after them."""

    def __init__(self, model, begin, end, is_first, is_last):
        super().__init__()
        self.words = model.words if is_first or is_last else None
        self.positions = model.positions if is_first else None
        self.blocks = model.blocks[begin:end]
        self.norm = model.norm if is_last else None

    def forward(self, x):
        if self.positions:
            x = self.words(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight) if self.norm else x


def balanced_cut(owners, length):
    """First blocks of the stages after stage 0 for which the rank, then the stage, with most counted FLOPs has least;
    owners: stage to rank."""
    block = 24 * HIDDEN**2 + 4 * length * HIDDEN  # of one token forward; the backward is twice that everywhere
    head = 2 * VOCABULARY * HIDDEN

    def most(cut):
        work = [block * (end - begin) for begin, end in zip((0, *cut), (*cut, LAYERS))]
        work[-1] += head
        return max(sum(w for w, owner in zip(work, owners) if owner == rank) for rank in owners), max(work)

    return min(itertools.combinations(range(1, LAYERS + 1), len(owners) - 1), key=most)


def make_pipeline(model, rank, options):
    """The stages of this rank of two, the function that runs forward and backward of a whole batch through them, and
    the cut.

    That function returns the loss on the rank of the last stage and zero on the other.
    """
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleZBVZeroBubble

    # ScheduleInterleavedZeroBubble (one or two stages a rank), ScheduleZBVZeroBubble and ScheduleDualPipeV all run on
    # Gloo with torch 2.13 and give the same losses. ZBV is the peer: its first and last stage share a rank, which saves
    # the all-reduce of the tied gradient, and the second rank has work sooner. With a third of the width it led by
    # 5-10 % at 4 micro-batches; at 8 it was within the noise of the interleaved one.
    is_folded = options.schedule == "zero-bubble"
    owners = (0, 1, 1, 0) if is_folded else (0, 1)
    cut = tuple(options.cut or balanced_cut(owners, options.length))
    if cut not in itertools.combinations(range(1, LAYERS + 1), len(owners) - 1):
        raise SystemExit(f"--cut: {options.schedule} takes {len(owners) - 1} ascending block(s) of 1..{LAYERS}, "
                         f"not {cut}")
    last = len(owners) - 1
    stages = []
    for stage, (begin, end) in enumerate(zip((0, *cut), (*cut, LAYERS))):
        if owners[stage] == rank:
            stages.append(PipelineStage(Stage(model, begin, end, stage == 0, stage == last), stage, len(owners),
                                        torch.device("cpu")))

    def loss_of(logits, labels):
        # A share of the batch's mean. Not scale_grads: it passes over all gradients again, and over ZBV's tied one
        # twice.
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) / options.micro_batches

    if is_folded:
        schedule = ScheduleZBVZeroBubble(stages, options.micro_batches, loss_fn=loss_of, scale_grads=False)
    else:
        schedule = Schedule1F1B(stages[0], options.micro_batches, loss_fn=loss_of, scale_grads=False)
    # Embedding and projection are on different ranks, each with a copy of the tied weight. ZBV has both, and so one
    # weight, on rank 0.
    copied = None if is_folded else model.words.weight

    def train(tokens, labels):
        losses = []
        schedule.step(*([tokens] if rank == 0 else []), target=labels, losses=losses, return_outputs=False)
        if copied is not None:
            torch.distributed.all_reduce(copied.grad)
        return sum(losses, torch.zeros(()))

    return nn.ModuleList(stage.submod for stage in stages), train, cut


def take_sizes(options):
    global VOCABULARY, HIDDEN, LAYERS, HEADS, POSITIONS
    # loss_parallel of the modes of tensor parallelism wants equal parts
    VOCABULARY = options.vocabulary + (options.vocabulary % 2 if options.mode in ("tensor", "sequence") else 0)
    HIDDEN, LAYERS, HEADS = options.hidden, options.layers, options.heads
    POSITIONS = max(POSITIONS, options.length)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["eager", "compile", "ddp", "fsdp", "tensor", "sequence", "ring", "pipeline"],
                        default="eager", help="a rank of torchrun on Gloo: ddp, DistributedDataParallel; fsdp, "
                        "fully_shard; tensor, parallelize_module; sequence, the same with SequenceParallel; ring, "
                        "the tokens of each row in zigzag (torch_ring_attention.py); pipeline, PipelineStage")
    parser.add_argument("--bf16", action="store_true",
                        help="forward and loss under autocast to bf16; parameters, gradients and AdamW stay fp32")
    parser.add_argument("--schedule", choices=["1f1b", "zero-bubble"], default="1f1b",
                        help="pipeline: Schedule1F1B, or ScheduleZBVZeroBubble with two stages a rank")
    parser.add_argument("--micro-batches", type=int, default=4, help="pipeline: equal parts of the batch")
    parser.add_argument("--cut", type=lambda text: [int(block) for block in text.split(",")],
                        help="pipeline: the first block of each stage but the first, as 9 or 3,7,12; "
                        "by default what balances counted FLOPs")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="measured steps")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before those that are measured")
    for size, default in (("vocabulary", VOCABULARY), ("hidden", HIDDEN), ("layers", LAYERS), ("heads", HEADS)):
        parser.add_argument(f"--{size}", type=int, default=default)
    options = parser.parse_args()
    take_sizes(options)
    if options.bf16 and options.mode in ("tensor", "sequence", "ring", "pipeline"):
        parser.error(f"--bf16 goes with a whole model in a rank, not with --mode {options.mode}")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    if options.mode == "fsdp":
        torch.distributed.init_process_group("gloo")
    model = make_fully_sharded(torch.distributed.get_world_size()) if options.mode == "fsdp" else Gpt2()
    loss_of, ranks, rank = model, 1, 0
    train, layout = None, {}
    if options.mode == "compile":
        loss_of = torch.compile(model)
    elif options.mode == "fsdp":
        ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    elif options.mode == "ddp":
        torch.distributed.init_process_group("gloo")
        ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        loss_of = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif options.mode == "tensor":
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        train = make_tensor_parallel(model, torch.distributed.get_world_size())
    elif options.mode == "sequence":
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        train = make_sequence_parallel(model, torch.distributed.get_world_size(), rank)
    elif options.mode == "ring":
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        places = torch_ring_attention.zigzag(rank, torch.distributed.get_world_size(), options.length)
        for block in model.blocks:
            block.attend = torch_ring_attention.RingAttention.apply
        loss_of = functools.partial(nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True),
                                    places=places)
    elif options.mode == "pipeline":
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        if torch.distributed.get_world_size() != 2 or options.batch % options.micro_batches:
            parser.error(
                "--mode pipeline takes 2 ranks and a --batch that --micro-batches divides, "
                f"not {torch.distributed.get_world_size()} rank(s) and {options.batch} / {options.micro_batches}")
        model, train, cut = make_pipeline(model, rank, options)
        loss_of = None  # the other rank's blocks go
        layout = {"schedule": options.schedule, "micro_batches": options.micro_batches, "cut": cut}
    # A fused update takes tensors of one kind: sharded and plain parameters are groups of their own.
    kinds = {}
    for parameter in model.parameters():
        kinds.setdefault(type(parameter.data), []).append(parameter)
    optimizer = torch.optim.AdamW([{"params": group} for group in kinds.values()], lr=1e-4, weight_decay=0.1,
                                  fused=True)
    shape = (options.batch // ranks, options.length)
    tokens, labels = torch.randint(VOCABULARY, shape), torch.randint(VOCABULARY, shape)
    if options.mode == "ring":
        tokens, labels = tokens[:, places], labels[:, places]

    seconds = []
    for step in range(options.steps + options.warm_up):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        if train:
            loss = train(tokens, labels)
        else:
            with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
                loss = loss_of(tokens, labels)
            loss.backward()
        optimizer.step()
        last_loss = loss.item()
        if step >= options.warm_up:
            seconds.append(time.perf_counter() - start)
    # Of all ranks: the loss is zero where a pipeline has none and else that of the rank's own samples.
    figures = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, last_loss])
    together = figures.clone()
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(figures, torch.distributed.ReduceOp.MAX)
        torch.distributed.all_reduce(together)
        torch.distributed.destroy_process_group()
    if rank:
        return
    print(json.dumps({
        "peer": f"torch {torch.__version__} {options.mode}{' bf16' if options.bf16 else ''}",
        **layout,
        "batch": options.batch, "length": options.length, "threads": options.threads,
        "median_ms": round(statistics.median(seconds) * 1e3, 1), "best_ms": round(min(seconds) * 1e3, 1),
        "tokens_per_second": round(options.batch * options.length / min(seconds), 1),
        "peak_mb": round(figures[0].item()), "all_ranks_mb": round(together[0].item()),
        "loss": round(figures[1].item(), 4),
    }))


if __name__ == "__main__":
    main()
