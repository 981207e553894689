"""Runs a hundred steps of a random GPT-2 in fp64. Losses and gradient norms of our optimizers equal torch.optim."""

import json
import random

import interop

torch, transformers = interop.need("torch", "transformers")

LENGTH = 32
STEPS = 100
VOCABULARY = 257  # vocabulary of the byte tokenizer


def save_model():
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=24, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=256, eos_token_id=256))
    model.save_pretrained(interop.temp_dir / "model")


def save_text():
    generator = random.Random(2)
    text = bytes(generator.randrange(97, 123) for _ in range(LENGTH + 1))
    (interop.temp_dir / "text.txt").write_bytes(text)
    return torch.tensor([list(text)])


def ours(name, optimizer, training):
    run = interop.temp_dir / name.replace(" ", "-")
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
        [optimizer]
        warmup_steps = 0
        schedule = "constant"
        {optimizer}
        [training]
        {training}
        steps = {STEPS}
        batch_size = 1
        evaluate_batches = 0
        sample_tokens = 0
        """)
    interop.colossal("train", config)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines], [line["grad_norm"] for line in lines]


def theirs(make_optimizer, clip, ids):
    model = transformers.GPT2LMHeadModel.from_pretrained(interop.temp_dir / "model").double()
    parameters = list(model.parameters())
    optimizer = make_optimizer([{"params": [p for p in parameters if p.dim() > 1]},
                                {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0}])
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:])
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.cat([p.grad.flatten() for p in parameters]).norm().item())
        clip(parameters)
        optimizer.step()
    return losses, norms


def scale_down(parameters, order, limit):
    """Does the same as clip_grad_norm_, without the 1e-6 that it adds to the norm."""
    norm = torch.cat([p.grad.flatten() for p in parameters]).norm(order).item()
    for p in parameters:
        p.grad *= min(1, limit / norm)


NO_CLIP = "clip = 0", lambda parameters: None
BY_NORM = "clip = 0.5", lambda parameters: scale_down(parameters, 2, 0.5)
BY_VALUE = 'clip = 0.01\nclip_by = "value"', lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 0.01)

# Name, our [optimizer], theirs, clipping. Gradients of keys' biases are zero up to rounding. A large epsilon keeps Adam
# from making steps of them. Adafactor's first epsilon, which the two implementations add in different places, leaves
# noise.
CASES = [
    ("sgd", 'name = "sgd"\nmomentum = 0\nlearning_rate = 0.1\nweight_decay = 0.1',
     lambda groups: torch.optim.SGD(groups, lr=0.1, weight_decay=0.1), NO_CLIP),
    ("sgd with momentum", 'name = "sgd"\nmomentum = 0.9\nlearning_rate = 0.05\nweight_decay = 0.01',
     lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01), BY_VALUE),
    ("nesterov", 'name = "sgd"\nmomentum = 0.8\nnesterov = true\nlearning_rate = 0.05\nweight_decay = 0.01',
     lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01), NO_CLIP),
    ("adam", 'name = "adam"\nbetas = [0.9, 0.98]\nepsilon = 1e-3\nlearning_rate = 3e-3\nweight_decay = 0.01',
     lambda groups: torch.optim.Adam(groups, lr=3e-3, betas=(0.9, 0.98), eps=1e-3, weight_decay=0.01), NO_CLIP),
    ("adamw", 'name = "adamw"\nbetas = [0.9, 0.98]\nepsilon = 1e-3\nlearning_rate = 3e-3\nweight_decay = 0.2',
     lambda groups: torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.98), eps=1e-3, weight_decay=0.2), BY_NORM),
    ("adafactor", 'name = "adafactor"\nlearning_rate = 0.05\nweight_decay = 0.1',
     lambda groups: torch.optim.Adafactor(groups, lr=0.05, eps=(1e-15, 1e-3), weight_decay=0.1), NO_CLIP),
]

save_model()
ids = save_text()
for name, optimizer, make_optimizer, (training, clip) in CASES:
    (losses, norms), (wanted, wanted_norms) = ours(name, optimizer, training), theirs(make_optimizer, clip, ids)
    assert len(losses) == len(wanted) == STEPS, (name, len(losses))
    assert wanted[-1] < 0.9 * wanted[0], (name, "learns nothing", wanted[0], wanted[-1])
    off = max(abs(a - b) / b for a, b in [*zip(losses, wanted), *zip(norms, wanted_norms)])
    assert off < 1e-8, (name, off, losses[-1], wanted[-1])
    print(f"{name} agrees over {STEPS} steps: loss {wanted[0]:.6f} to {wanted[-1]:.6f}, largest difference {off:.1e}")
