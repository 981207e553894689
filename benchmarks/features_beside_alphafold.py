"""Features of `colossal features` beside AlphaFold's own, value by value.

    python3 -m venv v && v/bin/pip install alphafold-colabfold==2.3.18 jax==0.10.2 dm-haiku==0.0.17
    v/bin/python benchmarks/features_beside_alphafold.py --fasta x.fasta --msa x.a3m [--msa y.sto] [--structure y.cif]

AlphaFold gets the draws of our file: the order of rows, and the masked letters. What follows from them must be equal:
clusters, profiles, deletions, further rows. Shares of masked letters are compared with AlphaFold's own draws. With
--structure, a template is compared too: the query is residues 10 to 80 of its first chain.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLUSTERS, EXTRA, PASSES = 512, 1024, 4
KINDS = {"F32": np.float32, "I32": np.int32}


def read_tensors(path):
    """Returns the tensors of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[8 + length + begin:8 + length + end], KINDS[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def features_of(program, fasta, alignments, *flags):
    """Returns our features and the seconds of the command."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.safetensors"
        words = [program, "features", "--input", fasta, "--to", path, "--passes", str(PASSES),
                 "--clusters", str(CLUSTERS), "--extra", str(EXTRA), *flags]
        for alignment in alignments:
            words += ["--msa", alignment]
        begin = time.time()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        return read_tensors(path), time.time() - begin


def raw_features(fasta, alignments):
    """Returns AlphaFold's raw features of a chain, rows with equal letters once, as our readers keep them."""
    from alphafold.data import parsers, pipeline
    sequences, names = parsers.parse_fasta(pathlib.Path(fasta).read_text())
    rows, deletions, titles = [], [], []
    for path in alignments:
        parse = parsers.parse_stockholm if path.endswith(".sto") else parsers.parse_a3m
        parsed = parse(pathlib.Path(path).read_text())
        for row, deleted, title in zip(parsed.sequences, parsed.deletion_matrix, parsed.descriptions):
            if row not in rows:
                rows, deletions, titles = rows + [row], deletions + [deleted], titles + [title]
    count = len(sequences[0])
    raw = pipeline.make_sequence_features(sequences[0], names[0], count)
    raw.update(pipeline.make_msa_features([parsers.Msa(rows, deletions, titles)]))
    return raw


def configuration():
    from alphafold.model import config
    c = config.model_config("model_3_ptm")
    c.data.common.max_extra_msa, c.data.eval.max_msa_clusters = EXTRA, CLUSTERS
    c.data.common.num_recycle = 0
    return c


def their_features(raw, seed=0):
    """Returns AlphaFold's features of one pass."""
    from alphafold.model import features
    return {k: v[0] for k, v in features.np_example_to_features(dict(raw), configuration(), seed).items()}


def with_draws_of(ours, p, raw):
    """Returns AlphaFold's features with the draws of pass `p` of our features."""
    from alphafold.common import residue_constants
    from alphafold.model.tf import data_transforms as transforms
    order = np.array(residue_constants.MAP_HHBLITS_AATYPE_TO_OUR_AATYPE)
    places = {row.tobytes(): i for i, row in enumerate(order[raw["msa"]].astype(np.int32))}
    clusters = [places[row.tobytes()] for row in ours["true_msa"][p]]
    extra = [places[row.tobytes()] for row, mask in zip(ours["extra_msa"][p], ours["extra_msa_mask"][p]) if mask.any()]
    left = sorted(set(range(len(raw["msa"]))) - set(clusters) - set(extra))
    assert clusters[0] == 0 and len(set(clusters + extra)) == len(clusters + extra)
    drawn = ours["msa_feat"][p][..., :23].argmax(-1).astype(np.int32)

    def shuffled(values):
        return np.array((clusters + extra + left)[1:]) if values[0] == 1 else values

    def masked(protein, *_):
        protein["bert_mask"], protein["true_msa"] = ours["bert_mask"][p], protein["msa"]
        protein["msa"] = drawn
        return protein

    kept = transforms.tf.random_shuffle, transforms.make_masked_msa
    transforms.tf.random_shuffle = shuffled
    transforms.make_masked_msa = lambda *_: masked
    try:
        return their_features(raw)
    finally:
        transforms.tf.random_shuffle, transforms.make_masked_msa = kept


def compare(ours, raw):
    """Prints the largest difference of each field over all passes."""
    largest, padded = {}, {}
    for p in range(PASSES):
        theirs = with_draws_of(ours, p, raw)
        for name, values in ours.items():
            if name not in theirs:
                sys.exit(f"AlphaFold has no field {name}")
            part = theirs[name][tuple(slice(size) for size in values.shape[1:])]
            gap = np.abs(part.astype(np.float64) - values[p]).max() if values[p].size else 0.0
            largest[name] = max(largest.get(name, 0.0), float(gap))
            rest = np.abs(theirs[name]).sum(dtype=np.float64) - np.abs(part).sum(dtype=np.float64)
            padded[name] = max(padded.get(name, 0.0), abs(float(rest)) if "mask" in name else 0.0)
    for name, gap in largest.items():
        print(f"{name:24} {str(list(ours[name].shape)):24} largest difference {gap:.2g}"
              + (f", masks of AlphaFold's padding {padded[name]:g}" if padded[name] else ""))


def kinds(features):
    """Returns shares of places: masked; of these masks, kept, other letters."""
    where = features["bert_mask"] > 0
    letters, truth = features["msa_feat"][..., :23].argmax(-1)[where], features["true_msa"][where]
    is_mask, is_kept = letters == 22, letters == truth
    return [round(float(x), 4) for x in (where.mean(), is_mask.mean(), is_kept.mean(), (~is_mask & ~is_kept).mean())]


def compare_template(program, structure):
    """Compares a template at a part of its own sequence."""
    from alphafold.data import mmcif_parsing, templates
    from alphafold.common import residue_constants
    parsed = mmcif_parsing.parse(file_id="x", mmcif_string=pathlib.Path(structure).read_text()).mmcif_object
    chain = sorted(parsed.chain_to_seqres)[0]
    sequence = parsed.chain_to_seqres[chain]
    query = sequence[10:80]
    raw, _ = templates._extract_template_features(
        parsed, "x", {i: i + 10 for i in range(len(query))}, sequence, query, chain, "kalign")
    order = np.array(residue_constants.MAP_HHBLITS_AATYPE_TO_OUR_AATYPE)
    with tempfile.TemporaryDirectory() as folder:
        known = pathlib.Path(folder) / "known"
        known.mkdir()
        (known / "x.cif").write_bytes(pathlib.Path(structure).read_bytes())
        fasta = pathlib.Path(folder) / "x.fasta"
        fasta.write_text(f">x\n{query}\n")
        ours, _ = features_of(program, fasta, [], "--templates", known)
    types = order[raw["template_aatype"].argmax(-1)]
    print(f"template: chain {chain}, {len(query)} residues, {int(raw['template_all_atom_masks'].sum())} atoms")
    for name, theirs in [("template_aatype", types), ("template_all_atom_masks", raw["template_all_atom_masks"]),
                         ("template_all_atom_positions", raw["template_all_atom_positions"])]:
        print(f"{name:28} largest difference {np.abs(ours[name][0][0] - theirs).max():.2g}")
    from alphafold.model.modules import pseudo_beta_fn
    beta = pseudo_beta_fn(types, raw["template_all_atom_positions"], raw["template_all_atom_masks"])
    for name, theirs in zip(("template_pseudo_beta", "template_pseudo_beta_mask"), beta):
        print(f"{name:28} largest difference {np.abs(ours[name][0][0] - theirs).max():.2g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=ROOT / "build/release/colossal")
    parser.add_argument("--fasta", required=True)
    parser.add_argument("--msa", action="append", required=True)
    parser.add_argument("--structure")
    options = parser.parse_args()
    try:
        import alphafold  # noqa: F401
    except ImportError:
        sys.exit("skipped: this Python has no alphafold (see the head of this file)")
    ours, seconds = features_of(options.program, options.fasta, options.msa)
    raw = raw_features(options.fasta, options.msa)
    print(f"{len(raw['msa'])} rows of {raw['msa'].shape[1]}, {PASSES} passes: {seconds:.2f} s with the start")
    compare(ours, raw)
    print("shares of places: masked; of these masks, kept, other letters")
    print("ours      ", kinds(ours))
    theirs = [their_features(raw, seed) for seed in range(PASSES)]
    print("AlphaFold ", kinds({name: np.stack([one[name][:len(raw['msa'])] for one in theirs])
                               for name in ("bert_mask", "msa_feat", "true_msa")}))
    if options.structure:
        compare_template(options.program, options.structure)


if __name__ == "__main__":
    main()
