"""Runs steps of a random LLaMA in fp64. Losses and gradient norms of our Muon equal torch.optim.Muon on the separate
matrices of transformers, although we keep q, k, v and gate, up fused; on one rank and on two ranks of each kind. torch
rounds its iteration to bf16, which this script prevents."""

import json
import random

import interop

torch, transformers = interop.need("torch", "transformers")
if not hasattr(torch.optim, "Muon"):
    interop.skip("this torch has no torch.optim.Muon")

LENGTH = 32
STEPS = 50
RATE, DECAY = 5e-3, 0.1
LAYOUTS = {"alone": "", "tensor": "tensor = 2", "zero": "data = 2\nzero = 3"}


def save_model():
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=257, hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False,
        bos_token_id=256, eos_token_id=256))
    model.save_pretrained(interop.temp_dir / "model")


def save_text():
    generator = random.Random(2)
    text = bytes(generator.randrange(97, 123) for _ in range(LENGTH + 1))
    (interop.temp_dir / "text.txt").write_bytes(text)
    return torch.tensor([list(text)])


def ours(name, parallel, step_scale):
    run = interop.temp_dir / name
    config = interop.temp_dir / "config.toml"
    config.write_text(f"""
        [run]
        folder = "{run}"
        [model]
        from = "{interop.temp_dir}/model"
        [precision]
        mode = "fp64"
        [data]
        path = "{interop.temp_dir}/text.txt"
        sequence = {LENGTH}
        held_out = 0
        [parallel]
        {parallel}
        [optimizer]
        name = "muon"
        betas = [0.95, 0.9, 0.98]
        epsilon = 1e-3
        step_scale = "{step_scale}"
        learning_rate = {RATE}
        weight_decay = {DECAY}
        warmup_steps = 0
        schedule = "constant"
        [training]
        clip = 0
        steps = {STEPS}
        batch_size = {2 if "data" in parallel else 1}
        evaluate_batches = 0
        sample_tokens = 0
        """)
    interop.colossal("train", config)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines], [line["grad_norm"] for line in lines]


def theirs(adjust, ids):
    model = transformers.LlamaForCausalLM.from_pretrained(interop.temp_dir / "model").double()
    named = dict(model.named_parameters())
    hidden = [p for name, p in named.items() if name.startswith("model.layers.") and p.dim() == 2]
    tables = [named["model.embed_tokens.weight"], named["lm_head.weight"]]
    norms = [p for p in named.values() if p.dim() == 1]
    optimizers = [torch.optim.Muon(hidden, lr=RATE, weight_decay=DECAY, momentum=0.95, adjust_lr_fn=adjust),
                  torch.optim.AdamW([{"params": tables}, {"params": norms, "weight_decay": 0}], lr=RATE,
                                    betas=(0.9, 0.98), eps=1e-3, weight_decay=DECAY)]
    losses, gradients = [], []
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:])
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.flatten() for p in named.values()]).norm().item())
        for optimizer in optimizers:
            optimizer.step()
    return losses, gradients


save_model()
ids = save_text()
torch.Tensor.bfloat16 = lambda self: self.clone()  # torch.optim.Muon calls it before its iteration
for step_scale, adjust in [("adamw", "match_rms_adamw"), ("spectral", "original")]:
    wanted, wanted_norms = theirs(adjust, ids)
    assert wanted[-1] < 0.9 * wanted[0], (step_scale, "learns nothing", wanted[0], wanted[-1])
    alone = None
    for layout, parallel in LAYOUTS.items():
        losses, norms = ours(f"{step_scale}-{layout}", parallel, step_scale)
        assert len(losses) == STEPS, (step_scale, layout, len(losses))
        # transformers computes norms and rotations in fp32: the first losses differ by 3e-9, and steps that amplify
        # small singular values amplify that
        off = max(abs(a - b) / b for a, b in [*zip(losses, wanted), *zip(norms, wanted_norms)])
        assert off < 1e-4, (step_scale, layout, off, losses[-1], wanted[-1])
        alone = alone or losses
        apart = max(abs(a - b) / b for a, b in zip(losses, alone))
        assert apart < 1e-8, (step_scale, layout, apart, losses[-1], alone[-1])
        print(f"{step_scale}, {layout}, agrees over {STEPS} steps: loss {wanted[0]:.6f} to {wanted[-1]:.6f}, "
              f"largest difference {off:.1e}, "
              f"from one process {apart:.1e}")
