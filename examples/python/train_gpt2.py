"""Trains a GPT-2 of transformers on this project's own text. The model is not changed.

    colossal run --ranks 2 -- python examples/python/train_gpt2.py      # ZeRO 3, parameters and states on a disk
    python examples/python/train_gpt2.py                                # the same on one rank

A second call continues from the checkpoint of the first. Each byte of the text is a token.
"""

import argparse
from pathlib import Path

import torch
import transformers

import colossal

PROJECT = Path(__file__).resolve().parents[2]
LENGTH = 128  # tokens of a row


def own_text() -> torch.Tensor:
    """Returns the bytes of the project's documents."""
    pages = sorted([PROJECT / "README.md", *PROJECT.glob("docs/**/*.md")])
    return torch.frombuffer(bytearray(b"\0".join(page.read_bytes() for page in pages)), dtype=torch.uint8).long()


def rows(text: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Returns random pieces of the text [count, LENGTH]."""
    starts = torch.randint(len(text) - LENGTH, (count,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([text[start:start + LENGTH] for start in starts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="runs/python_gpt2", help="of checkpoints, scratch files and the result")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=4, help="of each rank in a step")
    options = parser.parse_args()
    folder = Path(options.folder)

    world = colossal.launch()
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4,
                                     bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    training = colossal.initialize(world, model, {
        "training": {"steps": options.steps},
        "optimizer": {"learning_rate": 3e-3, "schedule": "cosine"},
        "parallel.zero": 3,
        "memory": {"host": "64MiB", "disk": folder / "scratch"},
    })
    torch.manual_seed(world.rank)  # dropout differs between ranks; a resume continues the generators that were saved
    resumed = training.resume(folder / "checkpoints")
    if resumed and world.rank == 0:
        print(f"continues after step {resumed.step}")

    text = own_text()
    while training.steps_done < options.steps:
        batch = rows(text, options.rows, training.steps_done * world.size + world.rank)
        training.zero_grad()
        training.backward(model(batch, labels=batch).loss)
        training.step()
        loss = training.mean(training.loss)
        if world.rank == 0 and (training.steps_done % 20 == 0 or training.steps_done == 1):
            print(f"step {training.steps_done:4}  loss {loss:.4f}", flush=True)
    training.save(folder / "checkpoints", extra={"length": LENGTH})
    training.save_pretrained(folder / "gpt2")
    if world.rank == 0:
        print(f"wrote {folder / 'gpt2'}")


if __name__ == "__main__":
    main()
