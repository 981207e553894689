"""Commands of the program as functions: plans of runs, pipeline schedules, embeddings, evaluation, folding."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import program
from .config import Source
from .run import command_of

if TYPE_CHECKING:
    import torch


def plan(
    config: Source,
    changes: Mapping[str, object] = {},
    *,
    ranks: int | None = None,
    cluster: str | os.PathLike[str] | None = None,
    check: bool = False,
    search: bool = False,
    keep: Sequence[str] = (),
    report: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Predicts a training step without training, as `colossal plan --json` does, and returns its JSON.

    `config` and `changes` are those of `train`. The keys of the result include `fits`, `step_seconds`, `peak_bytes`,
    `mfu` and `remedies`; times are in seconds. `ranks` changes `parallel.data`. `cluster` is a profile of hardware: a
    name, a file, or `this` machine, the default. With `check`, two steps are trained on local ranks and compared. With
    `search`, layouts other than the keys in `keep` are tried. `report` is the file for a page that draws the step.

    Errors: `colossal.Error` with the command's message.
    """
    words = ["plan", *command_of(config, changes), "--json"]
    words += ["--check"] * check + ["--search"] * search + [f"--keep={','.join(keep)}"] * bool(keep)
    result: dict[str, Any] = json.loads(program.run(words + _flags(ranks=ranks, cluster=cluster, report=report)))
    return result


def schedule(
    name: str | None = None,
    *,
    stages: int = 4,
    micro_batches: int = 8,
    chunks: int | None = None,
    costs: Sequence[float] | None = None,
    memory_limit: float | None = None,
    width: int | None = None,
    svg: str | os.PathLike[str] | None = None,
    trace: str | os.PathLike[str] | None = None,
) -> str:
    """Returns the drawing of a pipeline schedule, with its bubble, activations and messages.

    Without a name it returns a table of all schedules, the shortest first. `costs` are those of forward, backward for
    the input, backward for the weights and, optionally, a transfer. `svg` and `trace` are files for a picture and for
    Perfetto.

    Errors: `colossal.Error` with the command's message.
    """
    given = {"chunks": chunks, "memory_limit": memory_limit, "width": width, "svg": svg, "trace": trace}
    words = ["schedule", "--compare"] if name is None else ["schedule", f"--name={name}"]
    words += [f"--costs={','.join(map(str, costs))}"] if costs is not None else []
    return program.run(words + _flags(stages=stages, micro_batches=micro_batches, **given))


def embed(
    folder: str | os.PathLike[str],
    texts: str | Sequence[str],
    *,
    pooling: str | None = None,
    normalize: bool = False,
    max_tokens: int | None = None,
    prompt_name: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    precision: str | None = None,
    device: str | None = None,
) -> torch.Tensor:
    """Returns a vector for each text, fp32 [texts, hidden] on the CPU, from the hidden states of a model.

    `folder` is a run folder, a Hugging Face folder or a sentence-transformers folder. `pooling` is cls, mean, max, last
    or pooler; None = the folder's, or mean. Longer texts than `max_tokens` are truncated; None = the folder's limit, or
    the model's positions. `prompt_name` is one of the folder's prompts, put in front of each text. The model is loaded
    by each call, so pass many texts at once.

    Errors: `colossal.Error` with the command's message.
    """
    import torch

    every = [texts] if isinstance(texts, str) else list(texts)
    given = {"pooling": pooling, "max_tokens": max_tokens, "prompt_name": prompt_name, "tokenizer": tokenizer}
    with tempfile.TemporaryDirectory() as name:
        lines, vectors = pathlib.Path(name, "texts.jsonl"), pathlib.Path(name, "vectors.npy")
        lines.write_text("".join(json.dumps(text) + "\n" for text in every), encoding="ascii")
        words = ["embed", f"--from={os.fspath(folder)}", f"--input={lines}", "--json", f"--output={vectors}"]
        words += ["--normalize"] * normalize + ([f"--run.device={device}"] if device is not None else [])
        program.run(words + _flags(precision=precision, **given))
        data = bytearray(vectors.read_bytes())
    # The file has numpy's format, version 1.0, which needs no numpy to read.
    begin = 10 + int.from_bytes(data[8:10], "little")
    shape = ast.literal_eval(data[10:begin].decode("ascii"))["shape"]
    if len(data) == begin:
        return torch.empty(shape)
    return torch.frombuffer(data, dtype=torch.float32, offset=begin).view(shape)


def evaluate(
    folder: str | os.PathLike[str],
    tasks: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    data: str | os.PathLike[str] | None = None,
    shots: int | None = None,
    limit: int | None = None,
    chat_template: bool = False,
    add_bos_token: bool | None = None,
    samples: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    precision: str | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Runs tasks on a model, as `colossal evaluate --tasks --json` does, and returns its JSON: a dict for each task.

    `folder` is a run folder, a Hugging Face folder or a GGUF file. `tasks` are names of built-in tasks and files that
    end in .toml. `data` is the folder of their files; None = that of a task's own file. `shots` solved examples precede
    each prompt; None = those of the task. `limit` is the number of first lines of each file that are used; None = all.
    With `chat_template`, a prompt is a user message of the model's chat template. `add_bos_token` says whether texts
    get the begin token; None = as the tokenizer does. `samples` is a file for a JSON line per item.

        colossal.evaluate("runs/sft", ["gsm8k", "mine.toml"], data="eval", limit=100)["gsm8k"]["flexible"]

    Errors: `colossal.Error` with the command's message.
    """
    names = [tasks] if isinstance(tasks, (str, os.PathLike)) else tasks
    listed = ",".join(os.fspath(name) for name in names)
    words = ["evaluate", f"--from={os.fspath(folder)}", f"--tasks={listed}", "--json"]
    words += ["--chat-template"] * chat_template
    words += [f"--add-bos-token={str(add_bos_token).lower()}"] if add_bos_token is not None else []
    words += [f"--run.device={device}"] if device is not None else []
    given = {"data": data, "shots": shots, "limit": limit, "samples": samples, "tokenizer": tokenizer}
    result: dict[str, Any] = json.loads(program.run(words + _flags(precision=precision, **given)))
    return result


@dataclasses.dataclass(frozen=True)
class Folded:
    """A folded chain or complex of N residues, the residues of all chains in their order.

    Slots of atoms are those of AlphaFold: N, CA, C, CB, O and so on. `plddt` is the mean of the CA atoms, from 0 to
    100. `ptm` is the predicted TM score, or None if the model has no head for it.
    """

    name: str
    residues: int
    plddt: float
    ptm: float | None
    passes: int  #: that ran
    seconds: float
    pair_bytes: int  #: of one pair representation
    peak_bytes: int  #: the most bytes of activations and buffers
    plan: list[dict[str, Any]]  #: regions that were computed in chunks
    positions: torch.Tensor = dataclasses.field(repr=False)  #: [N, 37, 3] in Angstrom
    atom_mask: torch.Tensor = dataclasses.field(repr=False)  #: [N, 37] of bool: atoms that the residue has
    atom_plddt: torch.Tensor = dataclasses.field(repr=False)  #: [N, 37], from 0 to 100
    errors: torch.Tensor | None = dataclasses.field(repr=False)  #: [N, N] predicted aligned errors in Angstrom
    structure: str = dataclasses.field(repr=False)  #: the mmCIF file


def fold(
    folder: str | os.PathLike[str],
    sequences: str | Sequence[str] | Mapping[str, str],
    *,
    msa: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    templates: str | os.PathLike[str] | None = None,
    passes: int | None = None,
    tolerance: float | None = None,
    seed: int | None = None,
    errors: bool = False,
    no_ema: bool = False,
    precision: str | None = None,
    device: str | None = None,
) -> list[Folded]:
    """Folds proteins, as `colossal fold` does, and returns a `Folded` for each sequence, in order.

    `folder` is a run folder or a folder of transformers. A sequence is the letters of a chain, and ``:`` joins the
    chains of a complex. A mapping gives names, of letters, digits, ``.``, ``-`` and ``_``; others are numbered.
    `passes` is how often the model runs on a chain; None = as it was trained to. It stops after a pass that changes
    distances of CA atoms by less than `tolerance` Angstrom on average. `msa` are files in A3M or Stockholm, of several
    sequences a folder whose files begin with their names, and `templates` is a folder of structures, for models that
    read them. With `errors` the results have predicted aligned errors. The model is loaded by each call, so pass many
    sequences at once.

    Errors: `colossal.Error` with the command's message.
    """
    if isinstance(sequences, str):
        sequences = [sequences]
    if not isinstance(sequences, Mapping):
        sequences = {str(index): letters for index, letters in enumerate(sequences)}
    if not sequences:
        return []
    alignments = [msa] if isinstance(msa, (str, os.PathLike)) else list(msa)
    with tempfile.TemporaryDirectory() as name:
        records, out = pathlib.Path(name, "sequences.fasta"), pathlib.Path(name, "folded")
        records.write_text("".join(f">{key}\n{letters}\n" for key, letters in sequences.items()), encoding="utf-8")
        words = ["fold", f"--from={os.fspath(folder)}", f"--input={records}", "--json", f"--to={out}"]
        words += [f"--tensors={out}", *(f"--msa={os.fspath(path)}" for path in alignments)]
        words += [f"--pae={out}"] * errors + ["--no-ema"] * no_ema
        words += [f"--run.device={device}"] if device is not None else []
        words += _flags(templates=templates, passes=passes, tolerance=tolerance, seed=seed, precision=precision)
        lines = program.run(words).splitlines()
        return [_folded(json.loads(line), out) for line in lines]


def _folded(line: dict[str, Any], folder: pathlib.Path) -> Folded:
    """Returns the result of a line of `colossal fold --json` with its tensors."""
    tensors = _tensors(folder / f"{line['name']}.safetensors")
    structure = (folder / f"{line['name']}.cif").read_text(encoding="utf-8")
    fields: dict[str, Any] = line | {"errors": None} | tensors
    return Folded(**fields, structure=structure)


def _tensors(path: pathlib.Path) -> dict[str, torch.Tensor]:
    """Returns the tensors of a safetensors file: a length, JSON with types, sizes and places, and the bytes."""
    import torch

    types = {"BOOL": torch.bool, "F32": torch.float32, "F64": torch.float64}
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        values = torch.frombuffer(data[begin + first : begin + last], dtype=types[entry["dtype"]])
        tensors[name] = values.view(entry["shape"])
    return tensors


def _flags(**given: object) -> list[str]:
    """Returns the options that are not None as words of a command."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
