"""The peer of all_reduce_bench: torch.distributed on Gloo, two processes of one host. Prints the median time per size.

    python all_reduce_peer.py [RANKS]
"""
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def median_seconds(x, calls, rounds):
    seconds = []
    for i in range(rounds + 1):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
        if i > 0:
            seconds.append((time.perf_counter() - start) / calls)
    slowest = torch.tensor([statistics.median(seconds)], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def run(rank, size, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    for numbytes in (8, 4096, 65536, 1 << 20, 16 << 20, 64 << 20):
        x = torch.ones(numbytes // 4)
        seconds = median_seconds(x, max(1, min(500, (8 << 20) // numbytes)), 11)
        if rank == 0:
            print(f"{numbytes:10d} {seconds * 1e6:11.1f} us", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    import os
    import tempfile

    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(size, os.path.join(folder, "store")), nprocs=size)
