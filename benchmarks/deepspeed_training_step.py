"""The peer of benchmarks/disk_training_step.py: GPT-2 124M in DeepSpeed, ZeRO 3 with parameters and optimizer states on
a disk, one process on the CPU.

    python benchmarks/deepspeed_training_step.py FOLDER [--batch 1] [--length 64] [--threads 2] [--steps 4]

FOLDER: on that disk, for what is swapped. One step is forward, loss, backward and AdamW in fp32, of random tokens.
Prints one JSON object: the median and best step in milliseconds and the peak resident size. Needs torch and deepspeed
in its Python, and libaio-dev, of which deepspeed compiles its reader of disks at the first start.
"""

import argparse
import json
import os
import resource
import statistics
import time

for name, value in {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1",
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29666", "USE_LIBUV": "0"}.items():
    os.environ.setdefault(name, value)

import deepspeed
import torch

import gpt2_training_step as gpt2


def config_of(folder, batch):
    on_disk = {"device": "nvme", "nvme_path": str(folder), "pin_memory": False}
    return {
        "train_micro_batch_size_per_gpu": batch,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "bf16": {"enabled": False},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {**on_disk, "buffer_count": 5},
            # one of the embedding must fit
            "offload_param": {**on_disk, "max_in_cpu": 0, "buffer_size": 52_000_000, "buffer_count": 10},
            "sub_group_size": 20_000_000,
            "stage3_prefetch_bucket_size": 10_000_000,
            "stage3_max_live_parameters": 50_000_000,
            "stage3_max_reuse_distance": 50_000_000,
        },
        "aio": {"block_size": 1 << 20, "queue_depth": 8, "thread_count": 1, "single_submit": False,
                "overlap_events": True},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = config_of(options.folder, options.batch)
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = gpt2.Gpt2()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    tokens = torch.randint(0, gpt2.VOCABULARY, (options.batch, options.length + 1))
    seconds = []
    for _ in range(options.steps):
        begin = time.perf_counter()
        loss = engine(tokens[:, :-1], tokens[:, 1:])
        engine.backward(loss)
        engine.step()
        seconds.append(time.perf_counter() - begin)
    kept = seconds[1:]
    print(json.dumps({"loss": loss.item(), "median_ms": statistics.median(kept) * 1e3, "best_ms": min(kept) * 1e3,
                      "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    main()
