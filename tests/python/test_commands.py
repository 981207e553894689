"""colossal.plan, schedule, embed, evaluate and fold: the results of the commands."""

import json
import pathlib

import pytest
import tiny_models
import safetensors.torch
import torch
import transformers

from colossal import program
from colossal.commands import embed, evaluate, fold, plan, schedule
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


def test_folded_chains_have_the_tensors_of_their_files(monkeypatch):
    """The command is replaced by what it writes, because its models are large."""
    given = []
    positions = torch.arange(4 * 37 * 3, dtype=torch.float32).view(4, 37, 3)

    def run(words):
        given.append(words)
        options = dict(word.removeprefix("--").split("=", 1) for word in words[1:] if "=" in word)
        names = [line[1:] for line in pathlib.Path(options["input"]).read_text().splitlines() if line[0] == ">"]
        out = pathlib.Path(options["to"])
        out.mkdir()
        lines = []
        for name in names:
            (out / f"{name}.cif").write_text(f"data_{name}")
            tensors = {"positions": positions, "atom_mask": positions[..., 0] > 9}
            tensors["atom_plddt"] = positions[..., 1].clone()
            safetensors.torch.save_file(tensors, pathlib.Path(options["tensors"], f"{name}.safetensors"))
            sizes = {"name": name, "residues": 4, "plddt": 70.5, "ptm": None, "passes": 2, "seconds": 0.1}
            lines.append(json.dumps(sizes | {"pair_bytes": 8, "peak_bytes": 9, "plan": []}))
        return "\n".join(lines) + "\n"

    monkeypatch.setattr(program, "run", run)
    one, two = fold("folder", ["MKTA", "GARP"], passes=2, msa=["a.a3m", pathlib.Path("b.sto")])
    assert (one.name, two.name, one.residues, one.ptm, one.structure) == ("0", "1", 4, None, "data_0")
    assert torch.equal(one.positions, positions) and torch.equal(one.atom_mask, positions[..., 0] > 9)
    assert one.atom_mask.dtype == torch.bool and one.errors is None
    assert {"--passes=2", "--msa=a.a3m", "--msa=b.sto", "--from=folder"} <= set(given[0])
    assert [chain.name for chain in fold("folder", {"x": "MKTA"}, no_ema=True)] == ["x"]
    assert "--no-ema" in given[1]
    assert fold("folder", []) == [] and len(given) == 2


def test_errors_of_folding_are_those_of_the_command(tmp_path):
    with pytest.raises(Error, match="nowhere"):
        fold("/nowhere", "MKTA")
