"""The Python blocks of the documents run.

The blocks of a page run in order, in one namespace, in an empty folder with links to the contents of the repository.

A comment on the line above a block changes it, as in tests/docs/run_blocks.py, which runs the shell blocks:

    <!-- test: skip, REASON -->          leaves the block out
    <!-- test: file NAME -->             leaves it out, because a shell block of the page runs it as a script
    <!-- test: also file NAME -->        both: it is a block of its page, too

`<!-- invisible-code-block: python`, code, `-->` prepares what a page does not show. A folder that a page downloads with
`hf download X --local-dir FOLDER` holds a tiny random model. A server of such a model stands in for port 8000.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

pytest.importorskip("sybil", reason="sybil is not installed")
import tiny_models  # noqa: E402
from sybil import Document, Region  # noqa: E402
from sybil.parsers.markdown import PythonCodeBlockParser  # noqa: E402

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/docs"))
import run_blocks  # noqa: E402

FENCE = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*(?:python|py)\b", re.MULTILINE)
PAGES = [page for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))] if FENCE.search(page.read_text())]


def directive_above(document: Document, region: Region) -> str:
    """Returns what the comment on the line above a block says."""
    lines = document.text[: region.start].splitlines()
    found = re.fullmatch(r"\s*<!-- test: (.*) -->", lines[-1]) if lines else None
    return found[1] if found else ""


def is_left_out(page: Path, document: Document, region: Region) -> bool:
    """Returns whether a block does not run here, and fails if its comment gives no reason that holds."""
    directive = directive_above(document, region)
    if script := re.fullmatch(r"(?:also )?file (\S+)", directive):
        command = rf"^(?:.*\s)?python3? {re.escape(script[1])}\b"
        assert re.search(command, document.text, re.MULTILINE), f"{page}: nothing runs {script[1]}"
    elif directive:
        assert re.fullmatch(r"skip, .+", directive), f"{page}: a block must state a reason to skip it: {directive}"
    return bool(directive) and not directive.startswith("also ")


def read(page: Path, port: int | None = None) -> tuple[Document, list[Region]]:
    """Returns a page, whose document holds the blocks that run, and the blocks that are left out."""
    text = page.read_text(encoding="utf-8")
    document = Document(text if port is None else text.replace(":8000", f":{port}"), str(page))
    left_out = []
    for region in PythonCodeBlockParser()(document):
        if is_left_out(page, document, region):
            left_out.append(region)
        else:
            document.add(region)
    return document, left_out


@contextmanager
def server(model: Path) -> Iterator[int]:
    """Runs a server of the model and yields its port."""
    words = [os.environ["COLOSSAL_BINARY"], "serve", "--from", str(model), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if ready := re.search(r"ready at http://\S+:(\d+)", line):
                yield int(ready[1])
                break
        else:
            pytest.fail("the server is not ready:\n" + "".join(lines))
    finally:
        process.terminate()
        process.communicate(timeout=60)


def batches() -> list[dict[str, torch.Tensor]]:
    """Returns what the README calls `loader`."""
    rows = torch.randint(tiny_models.VOCABULARY, (3, 2, 16), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": row, "labels": row} for row in rows]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    run_blocks.prepare(str(tmp_path), str(ROOT), os.environ["COLOSSAL_BINARY"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page: Path, folder: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for package in ("openai", "pytorch_lightning", "transformers"):
        if re.search(rf"^(?:import|from) (?:.*, )?{package}\b", text, re.MULTILINE):
            pytest.importorskip(package)
    for name in re.findall(r"hf download \S+ --local-dir (\S+)", text):
        tiny_models.add_tokenizer(tiny_models.llama(folder / name))
    document, _ = read(page)
    if any(":8000" in region.parsed for _, region in document.regions):
        with server(tiny_models.add_tokenizer(tiny_models.llama(folder / "served"))) as port:
            run(page, port)
    else:
        run(page)


def run(page: Path, port: int | None = None) -> None:
    document, _ = read(page, port)
    if page == ROOT / "README.md":
        document.namespace["loader"] = batches()
    for example in document.examples():
        example.evaluate()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_runs_or_has_a_reason(page: Path) -> None:
    document, left_out = read(page)
    visible = [region for _, region in document.regions if not document.text[region.start :].startswith("<!--")]
    assert len(visible) + len(left_out) == len(FENCE.findall(document.text))
    assert document.regions or left_out


@pytest.mark.parametrize("comment", ["skip", "skip,", "skipped, because", "file x.py", "--training.steps=2"])
def test_comments_without_a_reason_are_refused(comment: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"<!-- test: {comment} -->\n```python\nx = 1\n```\n")
    with pytest.raises(AssertionError, match="state a reason|nothing runs x.py"):
        read(page)


def test_blocks_share_a_namespace_and_fail_at_their_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\ny = x + 1\nassert y == 3\n```\n")
    document, _ = read(page)
    with pytest.raises(AssertionError) as caught:
        for example in document.examples():
            example.evaluate()
    assert document.namespace["y"] == 2
    assert (caught.traceback[-1].path, caught.traceback[-1].lineno + 1) == (page, 7)
