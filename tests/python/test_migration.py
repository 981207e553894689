"""Pages for users of other libraries: what their column "here" names exists, and they cover the interface of FSDP2."""

import os
import pkgutil
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import colossal

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS / "tutorials/coming-from.md", *sorted((DOCS / "reference").glob("from-*.md"))]
OBJECTS = {"training": colossal.Training, "world": colossal.World}


def printed(*words: str) -> str:
    return subprocess.run([os.environ["COLOSSAL_BINARY"], *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def keys() -> dict[str, str]:
    """The keys of a config with the description of their values."""
    found, section = {}, ""
    for line in printed("help", "config", "--markdown").splitlines():
        if heading := re.match(r"## `\[(.+?)\]`", line):
            section = heading[1]
        elif row := re.match(r"\| `([\w.]+)` \| .*? \| (.*?) \|", line):
            found[f"{section}.{row[1]}"] = row[2]
    assert len(found) > 100
    return found


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """The options of each command."""
    found, command = {}, ""
    for line in printed("help", "--markdown").splitlines():
        if heading := re.match(r"##+ colossal (.+)", line):
            command = heading[1]
            found[command] = set()
        elif line.startswith("| `-"):
            found[command] |= set(re.findall(r"`(--?[\w.-]+)`", line.split(" | ")[0]))
    assert len(found) > 15
    return found


def rows(page: str) -> Iterator[tuple[int, list[str]]]:
    """Yields line numbers and cells of the tables of a page."""
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("| ") and not line.startswith("|---"):
            yield number, [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def fault_of_key(key: str, value: str | None, keys: dict[str, str]) -> str | None:
    if key not in keys:
        return f"no key {key}"
    kind = keys[key]
    if value is None:
        return None
    if choices := re.match(r"one of (.*)", kind):
        return None if value.strip('"') in choices[1].split(", ") else f"{key} is {kind}: got {value}"
    fits = {"true or false": r"true|false", "integer": r"\d+", "number": r"[\d.]+", "text": r'".*"', "list": r"\[.*\]"}
    return None if any(kind.startswith(name) and re.fullmatch(form, value) for name, form in fits.items()) else (
        f"{key} is {kind}: got {value}")


def fault_of_command(words: list[str], options: dict[str, set[str]]) -> str | None:
    names = [" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in options]
    if not names:
        return f"no command colossal {words[0]}"
    if names[0] == "run":
        words = words[:words.index("--")] if "--" in words else words
    unknown = [word for word in words if word.startswith("-") and word not in options[names[0]]]
    return f"no option {unknown[0]} of colossal {names[0]}" if unknown else None


def fault_of_name(name: str) -> str | None:
    first, _, rest = name.partition(".")
    if first in OBJECTS:
        known = hasattr(OBJECTS[first], rest) or rest in getattr(OBJECTS[first], "__annotations__", {})
        return None if known else f"no {rest} of {OBJECTS[first].__name__}"
    if first == "colossal" and rest.split(".")[0] not in colossal.__all__:
        return f"no {rest} in the package"
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return f"{name} cannot be found"
    return None


def fault(text: str, keys: dict[str, str], options: dict[str, set[str]]) -> str | None:
    """Returns what is wrong with a piece of code of the column "here", or None."""
    if words := re.match(r"colossal ([a-z].*)", text):
        return fault_of_command(words[1].split(), options)
    sections = {key.split(".")[0] for key in keys}
    if table := re.fullmatch(r"\[([\w.]+)\]", text):
        return None if any(key.startswith(table[1] + ".") for key in keys) else f"no table {text}"
    entry = re.fullmatch(r"([a-z]\w*(?:\.\w+)+)(?: = (.+))?", text)
    if entry and entry[1].split(".")[0] in sections and not (entry[1] not in keys and fault_of_name(entry[1]) is None):
        return fault_of_key(entry[1], entry[2], keys)
    call = re.fullmatch(r"([a-z]\w*(?:\.\w+)+)(?:\(.*\))?", text)
    return fault_of_name(call[1]) if call else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_pages_name_exists(page: Path, keys: dict[str, str], options: dict[str, set[str]]) -> None:
    faults, checked = [], 0
    for number, cells in rows(page.read_text()):
        for text in code(cells[-1]):
            checked += 1
            if wrong := fault(text, keys, options):
                faults.append(f"{page.name}:{number}: {wrong}")
    assert checked > 20
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_row_says_what_is_here(page: Path) -> None:
    for number, cells in rows(page.read_text()):
        assert all(cells), f"{page.name}:{number}: an empty cell"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_pages(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        assert link.startswith("https://") or (page.parent / link).is_file(), f"{page.name}: {link}"


@pytest.mark.parametrize("text, wrong", [
    ("parallel.zer", "no key parallel.zer"),
    ("parallel.compress = \"fp7\"", "got \"fp7\""),
    ("parallel.zero = three", "got three"),
    ("[paralel]", "no table"),
    ("training.stop()", "no stop of Training"),
    ("colossal.initialise()", "no initialise in the package"),
    ("colossal run --rank", "no option --rank of colossal run"),
    ("colossal trian", "no command colossal trian"),
    ("torch.utils.checkpont", "cannot be found"),
])
def test_misspelled_names_are_found(text: str, wrong: str, keys: dict[str, str], options: dict[str, set[str]]) -> None:
    assert wrong in (fault(text, keys, options) or "")


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the page describes the FSDP2 of torch 2.13")
def test_the_page_of_fsdp2_is_complete() -> None:
    import dataclasses
    import inspect

    from torch.distributed import fsdp
    page = (DOCS / "reference/from-fsdp2.md").read_text()
    named = {name for _, cells in rows(page) for text in code(cells[0]) for name in re.findall(r"\w+", text)}
    wanted = set(inspect.signature(fsdp.fully_shard).parameters)
    for policy in (fsdp.MixedPrecisionPolicy, fsdp.CPUOffloadPolicy, fsdp.DataParallelMeshDims):
        wanted |= {policy.__name__, *(field.name for field in dataclasses.fields(policy))}
    wanted |= {name for name in vars(fsdp.FSDPModule) if not name.startswith("_")}
    wanted |= set(fsdp._fully_shard.__all__) - {"FSDPModule", "fully_shard"}
    assert not wanted - named
