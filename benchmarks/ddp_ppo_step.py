"""The peer of our PPO benchmarks: a PPO step with four models in fp32 on the CPU, by PyTorch and transformers.

    python benchmarks/ddp_ppo_step.py [--rows 16] [--prompt 64] [--tokens 64] [--threads 2] [--steps 3]
    torchrun --nproc-per-node=2 benchmarks/ddp_ppo_step.py --rows 8 --threads 1 ...

Policy and reference are GPT2LMHeadModels, value and reward model are GPT2Models with a head of one output; the weights
are random. A step draws an answer of --tokens tokens for each of --rows prompts of --prompt tokens by `generate`. It
then computes the log-probabilities of the reference, values, scores and GAE, and updates policy and value model once
each by fused AdamW. With two ranks or more DistributedDataParallel averages the gradients. The script does no avoidable
work: it computes logits of answers alone, and the old log-probabilities are those of the update, because there is only
one. Without DistributedDataParallel it never holds the gradients of both models.

Rank 0 prints a JSON object: the medians of the seconds of drawing, of the rest and of a step after the first --warm-up
steps, and the peak resident size of the rank that uses most, in MiB.
"""

import argparse
import json
import os
import resource
import statistics
import time

import torch
import torch.distributed
import transformers
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

KL, CLIP, VALUE_CLIP, GAMMA, LAMBDA, RATE = 0.05, 0.2, 0.2, 1.0, 0.95, 1e-5


class Scores(nn.Module):
    """A GPT-2 with one output per token, as GPT2ForSequenceClassification has it."""

    def __init__(self, config):
        super().__init__()
        self.trunk = transformers.GPT2Model(config)
        self.score = nn.Linear(config.n_embd, 1, bias=False)
        nn.init.normal_(self.score.weight, std=0.02)

    def forward(self, ids):
        return self.score(self.trunk(ids, use_cache=False).last_hidden_state)[..., 0]


class Logits(nn.Module):
    """The log-probabilities of the last tokens of each row."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, count):
        logits = self.model(ids, use_cache=False, logits_to_keep=count + 1).logits[:, :-1]
        return -F.cross_entropy(logits.flatten(0, 1), ids[:, -count:].flatten(), reduction="none").view(-1, count)


def advantages_of(rewards, values):
    """Generalized advantage estimation over all tokens of answers [rows, tokens]."""
    advantages, following, value = torch.zeros_like(values), 0.0, 0.0
    for token in reversed(range(values.shape[1])):
        delta = rewards[:, token] + GAMMA * value - values[:, token]
        following = delta + GAMMA * LAMBDA * following
        advantages[:, token], value = following, values[:, token]
    return advantages


def whitened(values, ranks):
    """Whitens over the tokens of all ranks."""
    sums = torch.stack([torch.tensor(float(values.numel())), values.sum(), values.square().sum()])
    if ranks > 1:
        torch.distributed.all_reduce(sums)
    count, total, squares = sums.tolist()
    mean = total / count
    return (values - mean) / ((squares - count * mean**2) / (count - 1) + 1e-8)**0.5


class Step:
    """The four models with their optimizers, and the phases of a step."""

    def __init__(self, options, ranks):
        config = transformers.GPT2Config(n_layer=options.layers, n_embd=options.hidden, n_head=options.heads,
                                         n_positions=options.positions, vocab_size=options.vocabulary, resid_pdrop=0,
                                         embd_pdrop=0, attn_pdrop=0, bos_token_id=None, eos_token_id=None)
        self.options, self.ranks = options, ranks
        self.model = transformers.GPT2LMHeadModel(config)
        self.reference = Logits(transformers.GPT2LMHeadModel(config)).requires_grad_(False)
        self.reference.model.load_state_dict(self.model.state_dict())
        self.reward = Scores(config).requires_grad_(False)
        self.policy, self.value = self.shared(Logits(self.model)), self.shared(Scores(config))
        self.optimizers = [torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
                           for model in (self.policy, self.value)]
        self.drawing = transformers.GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                                                     max_new_tokens=options.tokens, use_cache=True,
                                                     pad_token_id=0, eos_token_id=None)

    def shared(self, model):
        if self.ranks == 1:
            return model
        return DistributedDataParallel(model, gradient_as_bucket_view=True)

    def draw(self, prompts):
        with torch.inference_mode():
            return self.model.generate(prompts, attention_mask=torch.ones_like(prompts),
                                       generation_config=self.drawing)

    def learn(self, ids):
        count = self.options.tokens
        ids = ids.clone()  # inference tensors cannot be saved for backward
        with torch.no_grad():
            reference = self.reference(ids, count)
            values = self.value(ids)[:, -count - 1:-1]
            score = self.reward(ids)[:, -1]
        now = self.policy(ids, count)
        old = now.detach()
        rewards = -KL * (old - reference)
        rewards[:, -1] += score
        advantages = advantages_of(rewards, values)
        returns = advantages + values
        advantages = whitened(advantages, self.ranks)
        ratio = (now - old).exp()
        loss = -torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
        self.update(0, loss)
        found = self.value(ids)[:, -count - 1:-1]
        near = values + (found - values).clamp(-VALUE_CLIP, VALUE_CLIP)
        self.update(1, 0.5 * torch.max((found - returns).square(), (near - returns).square()).mean())

    def update(self, which, loss):
        loss.backward()
        self.optimizers[which].step()
        self.optimizers[which].zero_grad(set_to_none=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16, help="prompts of each rank and step, with an answer each")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--steps", type=int, default=3, help="measured, after those of --warm-up")
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=50257)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)  # equal models on all ranks
    step = Step(options, ranks)
    torch.manual_seed(1 + rank)
    seconds = {"draw_seconds": [], "rest_seconds": [], "seconds": []}
    for _ in range(options.warm_up + options.steps):
        prompts = torch.randint(min(256, options.vocabulary), (options.rows, options.prompt))
        if ranks > 1:
            torch.distributed.barrier()
        begin = time.perf_counter()
        ids = step.draw(prompts)
        if ranks > 1:
            torch.distributed.barrier()  # so that waiting for the slower rank counts as drawing
        drawn = time.perf_counter()
        step.learn(ids)
        end = time.perf_counter()
        for name, time_of in zip(seconds, (drawn - begin, end - drawn, end - begin), strict=True):
            seconds[name].append(time_of)
    peak = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    if ranks > 1:
        torch.distributed.all_reduce(peak, torch.distributed.ReduceOp.MAX)
    if rank == 0:
        medians = {name: statistics.median(times[options.warm_up:]) for name, times in seconds.items()}
        print(json.dumps({**medians, "peak_mib": peak.item(),
                          "parameters": sum(parameter.numel() for parameter in step.model.parameters())}))
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
