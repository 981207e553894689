"""Ring attention in PyTorch, for the peer of benchmarks/sequence_training_step.py: causal, over a row whose tokens
ranks hold in zigzag.

Keys and values travel by batch_isend_irecv while the fused attention of LibTorch for CPUs computes with those that are
there; results are merged by the logarithms of their sums, and backward uses the final ones. As published
(arXiv:2310.01889, arXiv:2311.09431): at each step a rank computes the pairs that the mask lets through and no others.
torch.distributed.tensor.experimental.context_parallel of torch 2.13 does the same for GPUs; on the CPU it stops with
"Operator aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy registered".
"""

import torch
import torch.distributed as dist

forward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
backward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def zigzag(rank, ranks, tokens):
    """Indices of the tokens of a row that the rank has: run `rank` from either end of 2 ranks equal ones."""
    run = tokens // (2 * ranks)
    last = 2 * ranks - 1 - rank
    return torch.cat((torch.arange(rank * run, (rank + 1) * run), torch.arange(last * run, (last + 1) * run)))


def rotate(x, rank, ranks):
    """Starts sending x to the next rank; the buffer for that of the rank before, and what to wait for."""
    received = torch.empty_like(x)
    return received, dist.batch_isend_irecv([dist.P2POp(dist.isend, x, (rank + 1) % ranks),
                                             dist.P2POp(dist.irecv, received, (rank - 1) % ranks)])


def wait(works):
    for work in works:
        work.wait()


def seen(step, rank, ranks, half):
    """Of the queries here and the keys of the rank that is `step` before: slices that see one another, and whether
    causally."""
    source = (rank - step) % ranks
    whole = slice(None)
    if source == rank:
        return whole, whole, True
    return (whole, slice(None, half), False) if source < rank else (slice(half, None), whole, False)


class RingAttention(torch.autograd.Function):
    """q, k and v [B, N, T, D] of this rank's tokens."""

    @staticmethod
    def forward(context, q, k, v):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        half = q.shape[2] // 2
        out = torch.zeros_like(q)
        sums = torch.full(q.shape[:3], -torch.inf)
        pair = torch.stack((k, v))
        for step in range(ranks):
            if step + 1 < ranks:
                arriving, works = rotate(pair, rank, ranks)
            queries, keys, causal = seen(step, rank, ranks, half)
            part, part_sums = forward_op(q[:, :, queries], pair[0][:, :, keys], pair[1][:, :, keys], 0.0, causal)
            old = sums[:, :, queries]
            both = torch.logaddexp(old, part_sums)
            out[:, :, queries] = (out[:, :, queries] * (old - both).exp().unsqueeze(-1)
                                  + part * (part_sums - both).exp().unsqueeze(-1))
            sums[:, :, queries] = both
            if step + 1 < ranks:
                wait(works)
                pair = arriving
        context.save_for_backward(q, k, v, out, sums)
        return out

    @staticmethod
    def backward(context, gradient):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        q, k, v, out, sums = context.saved_tensors
        half = q.shape[2] // 2
        dq = torch.zeros_like(q)
        pair = torch.stack((k, v))
        dpair, sending = None, []
        for step in range(ranks):
            if step + 1 < ranks:
                arriving, works = rotate(pair, rank, ranks)
            queries, keys, causal = seen(step, rank, ranks, half)
            part = backward_op(gradient[:, :, queries], q[:, :, queries], pair[0][:, :, keys], pair[1][:, :, keys],
                               out[:, :, queries], sums[:, :, queries].contiguous(), 0.0, causal)
            dq[:, :, queries] += part[0]
            if dpair is None:
                dpair = torch.zeros_like(pair)
            else:
                wait(sending)  # the gradients of this part, with those of the ranks before
                dpair = incoming
            dpair[0][:, :, keys] += part[1]
            dpair[1][:, :, keys] += part[2]
            if step + 1 < ranks:
                wait(works)
                pair = arriving
            incoming, sending = rotate(dpair, rank, ranks)
        wait(sending)
        return dq, incoming[0], incoming[1]
