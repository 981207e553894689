"""TensorBoard's own reader finds the values of metrics.jsonl in our event files, also after a resume."""

import json
import math

import interop

(accumulator,) = interop.need("tensorboard.backend.event_processing.event_accumulator")

run = interop.temp_dir / "run"
command = ["train", interop.source_dir / "examples/quickstart.toml", f"--run.folder={run}", "--parallel.data=1",
           "--parallel.tensor=1", "--training.batch_size=2", "--training.save_every=2", "--training.evaluate_every=2",
           "--training.evaluate_batches=1", "--optimizer.warmup_steps=1", "--training.sample_tokens=0",
           "--data.sequence=32"]
interop.colossal(*command, "--training.steps=4")
interop.colossal(*command, "--training.steps=6", "--resume")

metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5, 6], metrics

events = accumulator.EventAccumulator(str(run / "tensorboard"))
events.Reload()
tags = {"train/loss": "loss", "train/learning_rate": "learning_rate", "train/grad_norm": "grad_norm",
        "speed/tokens_per_second": "tokens_per_second", "speed/mfu": "mfu", "eval/loss": "eval_loss",
        "eval/perplexity": "perplexity"}
assert set(tags) <= set(events.Tags()["scalars"]), events.Tags()
for tag, key in tags.items():
    wanted = [(line["step"], line[key]) for line in metrics if key in line]
    found = [(event.step, event.value) for event in events.Scalars(tag)]
    assert wanted and [step for step, _ in wanted] == [step for step, _ in found], (tag, wanted, found)
    for (_, value), (_, read) in zip(wanted, found):
        assert math.isclose(value, read, rel_tol=2**-23), (tag, value, read)  # event files store single precision
print(f"{len(tags)} tags agree over {len(metrics)} steps")
