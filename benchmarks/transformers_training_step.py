"""A training step of a GPT-2 of `transformers` by one system on the CPU; python_training_step.py compares systems.

    python benchmarks/transformers_training_step.py colossal|eager|deepspeed [--folder FOLDER] [--host 256MiB] ...
    torchrun --nproc-per-node 2 benchmarks/transformers_training_step.py colossal|fsdp [--zero 3] ...

A step is forward, the module's own loss, backward and AdamW in fp32, of random tokens. All systems train the same
module, without dropout:
  colossal   initialize() under --zero, from --folder with --host bytes in memory if a folder is given
  eager      torch's fused AdamW
  fsdp       FSDP2 on Gloo: one group per block; the embedding and the head that is tied to it are in one group, the
             root's, because fully_shard() refuses a parameter of two groups
  deepspeed  ZeRO 3, parameters and states in --folder (deepspeed_training_step.py has the config)
Colossal, FSDP2 and DeepSpeed build the module without memory for whole parameters.

Each rank prints a JSON object: the median step in milliseconds, the resident peak in MiB, how far that is beyond the
size after imports, and the last loss.
"""

import argparse
import importlib
import json
import os
import statistics
import sys
import time

IMPORTS = {"colossal": ["colossal", "colossal.training"], "eager": [], "fsdp": ["torch.distributed.fsdp"],
           "deepspeed": ["deepspeed_training_step"]}


def resident(name):
    """Returns VmRSS (now) or VmHWM (peak) of this process in MiB."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) / 1024


def forget_peak():
    """Lets VmHWM start from the present size."""
    with open("/proc/self/clear_refs", "w") as control:
        control.write("5")


def config_of(options):
    import transformers

    return transformers.GPT2Config(
        vocab_size=options.vocabulary, n_positions=max(options.length, 64), n_embd=options.hidden,
        n_layer=options.layers, n_head=options.heads, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0,
        eos_token_id=0, use_cache=False)


def module_of(options):
    import transformers

    module = transformers.GPT2LMHeadModel(config_of(options))
    if options.recompute:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    return module.train()


def colossal_step(options):
    import colossal

    world = colossal.launch(device="cpu")
    with colossal.empty_parameters():
        module = module_of(options)
    tiers = {"memory.host": options.host, "memory.disk": options.folder} if options.folder else {}
    training = colossal.initialize(
        world, module,
        {"optimizer.learning_rate": 1e-4, "optimizer.weight_decay": 0.1, "optimizer.schedule": "constant",
         "optimizer.warmup_steps": 0, "training.clip": 0, "parallel.zero": options.zero, **tiers},
        init=module._init_weights)

    def step(tokens):
        training.zero_grad()
        training.backward(module(tokens, labels=tokens).loss)
        training.step()
        return training.loss

    return step, training.close


def torch_step(module):
    import torch

    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def step(tokens):
        optimizer.zero_grad(set_to_none=True)
        loss = module(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def eager_step(options):
    return torch_step(module_of(options)), lambda: None


def fsdp_step(options):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (ranks(),))
    with torch.device("meta"):
        module = module_of(options)
    for block in module.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    module.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            shard = parameter.to_local()
            if parameter.dim() > 1:
                shard.normal_(std=0.02)
            else:
                shard.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
    return torch_step(module), torch.distributed.destroy_process_group


def deepspeed_step(options):
    import deepspeed
    import deepspeed_training_step

    config = deepspeed_training_step.config_of(options.folder, options.rows)
    with deepspeed.zero.Init(config_dict_or_path=config):
        module = module_of(options)
    engine, _, _, _ = deepspeed.initialize(model=module, model_parameters=module.parameters(), config=config)

    def step(tokens):
        loss = engine(tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        return loss.item()

    return step, lambda: None


def ranks():
    return int(os.environ.get("WORLD_SIZE", 1))


def options_of_command_line():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=list(IMPORTS))
    parser.add_argument("--rows", type=int, default=4, help="of a step on all ranks")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6, help="measured steps")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before those that are measured")
    parser.add_argument("--zero", type=int, default=0, help="of colossal")
    parser.add_argument("--host", default="256MiB", help="colossal's budget for parameters, gradients and states")
    parser.add_argument("--folder", help="on the disk of parameters and states")
    parser.add_argument("--recompute", action="store_true", help="recompute blocks in backward")
    for name, default in (("length", 256), ("layers", 12), ("hidden", 768), ("heads", 12), ("vocabulary", 50257)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.rows % ranks():
        parser.error(f"--rows must be a multiple of the ranks: got {options.rows} rows on {ranks()} ranks")
    if options.side == "deepspeed" and not options.folder:
        parser.error("deepspeed needs --folder, for parameters and states")
    return options


def main():
    options = options_of_command_line()
    import torch
    from transformers import GPT2LMHeadModel  # noqa: F401, because transformers imports models at their first use

    for name in IMPORTS[options.side]:
        importlib.import_module(name)
    forget_peak()
    imported = resident("VmRSS")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    make = {"colossal": colossal_step, "eager": eager_step, "fsdp": fsdp_step, "deepspeed": deepspeed_step}
    step, end = make[options.side](options)
    torch.manual_seed(1 + int(os.environ.get("RANK", 0)))
    tokens = torch.randint(options.vocabulary, (options.rows // ranks(), options.length))
    seconds = []
    for _ in range(options.warm_up + options.steps):
        begin = time.perf_counter()
        loss = step(tokens)
        seconds.append(time.perf_counter() - begin)
    peak = resident("VmHWM")
    end()
    sys.stdout.write(json.dumps({
        "ms": round(statistics.median(seconds[options.warm_up:]) * 1e3, 1), "peak_mb": round(peak, 1),
        "beyond_mb": round(peak - imported, 1), "loss": round(loss, 4)}) + "\n")


if __name__ == "__main__":
    main()
