"""colossal.plan, colossal.schedule, colossal.embed and colossal.evaluate: the results of the commands."""

import json
import pathlib

import pytest
import tiny_models
import torch
import transformers

from colossal.commands import embed, evaluate, plan, schedule
from colossal.error import Error

RUN = {
    "model": {"name": "llama-tiny", "layers": 2, "hidden": 32, "heads": 2, "kv_heads": 2, "positions": 32},
    "data": {"tokenizer": "bytes", "sequence": 32},
    "training.batch_size": 4,
}


@pytest.fixture(autouse=True)
def text(tmp_path):
    (tmp_path / "text.txt").write_text("To be, or not to be, that is the question. " * 200)
    return {"data.path": tmp_path / "text.txt", "run.folder": tmp_path / "run"}


def test_plans_are_dicts(text, tmp_path):
    one = plan(RUN, text, cluster="a100-8x", report=tmp_path / "page.html")
    two = plan(RUN, text, cluster="a100-8x", ranks=2)
    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert one["fits"] is True and one["step_seconds"] > 0
    assert "<html" in (tmp_path / "page.html").read_text()


def test_plans_search_layouts(text):
    found = plan(RUN, text, ranks=2, cluster="a100-8x", search=True, keep=["parallel.tensor", "parallel.zero"])
    assert isinstance(found, dict) and found


def test_errors_of_plans_are_those_of_the_command(text):
    with pytest.raises(Error, match=r"^\[config\] unknown key `parallel.zer`, did you mean"):
        plan(RUN, text | {"parallel.zer": 1})
    with pytest.raises(Error, match=r"\[plan\].*--report"):
        plan(RUN, text, check=True, report="x.html")


def test_schedules_are_drawn_and_compared(tmp_path):
    drawing = schedule("1f1b", stages=2, micro_batches=3, costs=(1, 1, 1, 0.5), svg=tmp_path / "x.svg")
    assert drawing.startswith("1f1b: 2 ranks, 3 micro-batches") and "transfer 0.5" in drawing
    assert (tmp_path / "x.svg").read_text().startswith("<svg")
    assert "gpipe" in schedule(stages=2) and "1f1b" in schedule(stages=2)
    with pytest.raises(Error, match=r"\[schedule\] Value 0 not in range"):
        schedule("1f1b", stages=0)


def test_vectors_equal_the_means_of_hidden_states(tmp_path):
    folder = tiny_models.add_tokenizer(tiny_models.llama(tmp_path / "llama"))
    texts = ["Hello", "a longer text\nof two lines", "h\u00e9 \u2603"]
    vectors = embed(folder, texts)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    for text, vector in zip(texts, vectors):
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        torch.testing.assert_close(vector, hidden.mean(0), rtol=1e-5, atol=1e-5)
    assert torch.equal(embed(folder, texts[0]), vectors[:1])
    norms = embed(folder, texts, normalize=True, pooling="last", max_tokens=2).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(3))


def test_empty_lists_of_texts_have_no_vectors(tmp_path):
    folder = tiny_models.add_tokenizer(tiny_models.llama(tmp_path / "llama"))
    assert embed(folder, []).shape == (0, 32)
    with pytest.raises(Error, match="nowhere"):
        embed(pathlib.Path("/nowhere"), ["a"])


def test_tasks_give_their_metrics(tmp_path):
    folder = tiny_models.add_tokenizer(tiny_models.llama(tmp_path / "llama"))
    lines = [{"q": "Hello", "c": ["a", "b"], "a": 0}, {"q": "So", "c": ["a", "b"], "a": "b"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = tmp_path / "ask.toml"
    task.write_text('name = "ask"\nkind = "choices"\ndata = "q.jsonl"\nprompt = "{{q}}"\nchoices = "{{c}}"\n'
                    'target = "{{a}}"\n')
    result = evaluate(folder, task, samples=tmp_path / "samples.jsonl")["ask"]
    assert result["count"] == 2 and 0 <= result["acc_norm"] <= 1 and result["shots"] == 0
    scores = [json.loads(line)["scores"] for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [len(one) for one in scores] == [2, 2]
    assert evaluate(folder, [task], limit=1, add_bos_token=False)["ask"]["count"] == 1
    with pytest.raises(Error, match=r"\[evaluate\] unknown task arc_eazy, did you mean `arc_easy`"):
        evaluate(folder, "arc_eazy", data=tmp_path)
