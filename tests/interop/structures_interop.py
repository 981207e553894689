"""Biopython reads the same structures as we do, and TMscore gives the same scores.

The script writes its structures. COLOSSAL_STRUCTURES is a folder of further ones, .cif and .pdb, in any depth.
"""

import gzip
import json
import math
import os
import pathlib
import random
import shutil
import subprocess
import warnings

import interop

bio, seq_io, mmcif_dict, names = interop.need("Bio.PDB", "Bio.SeqIO", "Bio.PDB.MMCIF2Dict", "Bio.Data.PDBData")
warnings.simplefilter("ignore")
probe = os.environ["COLOSSAL_STRUCTURE_PROBE"]
letters = names.protein_letters_3to1


def letter_of(residue):
    return "M" if residue == "MSE" else letters.get(residue, "X").replace("U", "X").replace("O", "X")


def read(files):
    done = subprocess.run([probe, "read", *map(str, files)], capture_output=True, text=True, timeout=120)
    if "which this build does not read" in done.stderr:
        interop.skip("built without gemmi; apt-get install gemmi-dev tao-pegtl-dev and build again")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def best(residue):
    """Of alternative residues the one with the highest occupancy."""
    if residue.is_disordered() != 2:
        return residue
    return max(residue.disordered_get_list(), key=lambda one: max(atom.get_occupancy() for atom in one))


def atoms_of(residue):
    """Heavy atoms of the 20 types, of alternatives those with the highest occupancy, which Biopython selects."""
    found = {}
    for atom in residue:
        name = "SD" if residue.get_resname() == "MSE" and atom.get_name() == "SE" else atom.get_name()
        if atom.element not in ("H", "D") and name != "OXT":
            found[name] = [*map(float, atom.coord), float(atom.get_bfactor())]
    return found


def sequences_of_mmcif(path):
    """Residues of each chain by its author's id."""
    tables = mmcif_dict.MMCIF2Dict(str(path))
    entities = {}
    for entity, number, residue in zip(tables["_entity_poly_seq.entity_id"], tables["_entity_poly_seq.num"],
                                       tables["_entity_poly_seq.mon_id"]):
        entities.setdefault(entity, {}).setdefault(int(number), residue)
    kinds = dict(zip(tables["_entity_poly.entity_id"], tables["_entity_poly.type"]))
    chains = {}
    for author, entity in zip(tables["_atom_site.auth_asym_id"], tables["_atom_site.label_entity_id"]):
        if kinds.get(entity) == "polypeptide(L)":
            chains[author] = [entities[entity][number] for number in sorted(entities[entity])]
    return chains


def check_mmcif(path, ours):
    chains = sequences_of_mmcif(path)
    # Numbers of residues are label_seq_id, ids of chains those of the authors.
    model = next(iter(bio.MMCIFParser(QUIET=True, auth_residues=False).get_structure("x", str(path))))
    assert [chain["id"] for chain in ours["chains"]] == [chain.id for chain in model if chain.id in chains], path
    placed = 0
    for chain in ours["chains"]:
        sequence = [letter_of(residue) for residue in chains[chain["id"]]]
        theirs = {}
        for residue in model[chain["id"]]:
            number = residue.id[1]
            # Waters and ligands have numbers of the authors here.
            if best(residue).get_resname() in (*letters, "MSE", "UNK") and number <= len(sequence):
                theirs[number] = best(residue)
        for number, residue in theirs.items():
            sequence[number - 1] = letter_of(residue.get_resname())
        assert chain["sequence"] == "".join(sequence), (path, chain["id"])
        for i, atoms in enumerate(chain["residues"]):
            expected = atoms_of(theirs[i + 1]) if i + 1 in theirs else {}
            check_atoms(atoms, expected, (path, chain["id"], i + 1))
            placed += bool(atoms)
    return placed


def check_pdb(path, ours):
    model = next(iter(bio.PDBParser(QUIET=True).get_structure("x", str(path))))
    seqres = {record.annotations["chain"]: str(record.seq) for record in seq_io.parse(str(path), "pdb-seqres")}
    placed = 0
    for chain in ours["chains"]:
        theirs = [best(residue) for residue in model[chain["id"]]
                  if residue.id[0] in (" ", "H_MSE") and "CA" in best(residue)]
        known = [(letter, atoms) for letter, atoms in zip(chain["sequence"], chain["residues"]) if atoms]
        assert len(known) == len(theirs), (path, chain["id"], len(known), len(theirs))
        for (letter, atoms), residue in zip(known, theirs):
            assert letter == letter_of(residue.get_resname()), (path, residue.id)
            check_atoms(atoms, atoms_of(residue), (path, residue.id))
        if chain["id"] in seqres:
            assert chain["sequence"] == seqres[chain["id"]], path
        placed += len(known)
    return placed


def check_atoms(ours, theirs, where):
    assert set(ours) == set(theirs), (where, set(ours) ^ set(theirs))
    for name, atom in ours.items():
        # Biopython keeps places in fp32.
        assert all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-4) for a, b in zip(atom, theirs[name])), (where, name)


def check_resolution(path, ours):
    if path.suffix == ".pdb":
        theirs = bio.PDBParser(QUIET=True).get_structure("x", str(path)).header.get("resolution")
    else:
        theirs = bio.MMCIFParser(QUIET=True).get_structure("x", str(path)).header.get("resolution")
    assert math.isclose(ours["resolution"], theirs or 0), (path, ours["resolution"], theirs)


# A chain of the sequence below: residues 1, 2, 9 and 10 have no atoms, the fifth is selenomethionine, the sixth has two
# places, the seventh an insertion code, and the eighth is alanine or, for a smaller part, serine.
sequence = ["GLY", "SER", "LYS", "ALA", "MSE", "ASP", "TRP", "ALA", "ARG", "HIS"]
author_numbers = {3: "17 ", 4: "18 ", 5: "19 ", 6: "20 ", 7: "20A", 8: "21 "}


def rows(seed):
    """Atoms: name, alternative, residue, number in the sequence, place, occupancy, B factor."""
    draws = random.Random(seed)
    for number in range(3, 9):
        for alternative, residue, occupancy in {6: [("A", "ASP", .35), ("B", "ASP", .65)],
                                                8: [("A", "ALA", .7), ("B", "SER", .3)]}.get(
                                                    number, [(" ", sequence[number - 1], 1)]):
            for name in ["N", "CA", "C", "O", "CB", *(["SE"] if residue == "MSE" else []),
                         *(["OG"] if residue == "SER" else []), "HA"]:
                place = [round(3.8 * number + draws.gauss(0, 1), 3)] + [round(draws.gauss(0, 2), 3) for _ in range(2)]
                yield name, alternative, residue, number, place, occupancy, round(draws.uniform(5, 90), 2)


def element_of(name):
    return "SE" if name == "SE" else name[0]


def write_pdb(path, seed):
    text = "REMARK   2 RESOLUTION.    2.10 ANGSTROMS.\n"
    text += f"SEQRES   1 K {len(sequence):4}  {' '.join(sequence)}\n"
    for serial, (name, alternative, residue, number, place, occupancy, b_factor) in enumerate(rows(seed), 1):
        label = name.ljust(3) if element_of(name) == "SE" else " " + name.ljust(3)
        kind = "HETATM" if residue == "MSE" else "ATOM  "
        text += (f"{kind}{serial:5} {label:4}{alternative}{residue} K{author_numbers[number]:>5}   "
                 f"{place[0]:8.3f}{place[1]:8.3f}{place[2]:8.3f}{occupancy:6.2f}{b_factor:6.2f}          "
                 f"{element_of(name):>2}\n")
    path.write_text(text + "TER\nEND\n")


def write_mmcif(path, seed):
    text = "data_x\n_refine.ls_d_res_high 2.1\n_refine.entry_id x\n"
    text += "loop_\n_entity_poly.entity_id\n_entity_poly.type\n1 'polypeptide(L)'\n"
    text += "loop_\n_entity_poly_seq.entity_id\n_entity_poly_seq.num\n_entity_poly_seq.mon_id\n"
    text += "".join(f"1 {i} {residue}\n" for i, residue in enumerate(sequence, 1))
    columns = ("group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id label_entity_id "
               "label_seq_id pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z occupancy B_iso_or_equiv auth_seq_id "
               "auth_comp_id auth_asym_id auth_atom_id pdbx_PDB_model_num").split()
    text += "loop_\n" + "".join(f"_atom_site.{column}\n" for column in columns)
    for model in (1, 2):
        for serial, (name, alternative, residue, number, place, occupancy, b_factor) in enumerate(rows(seed + model)):
            author = author_numbers[number]
            text += (f"ATOM {serial} {element_of(name)} {name} {alternative.replace(' ', '.')} {residue} A 1 {number} "
                     f"{author[2].replace(' ', '?')} {place[0]} {place[1]} {place[2]} {occupancy} {b_factor} "
                     f"{author[:2]} {residue} K {name} {model}\n")
    path.write_text(text)


def moved(path, to, deviation, seed):
    """Writes a structure whose residues are moved at random, in the format of PDB, and a copy of it as it is."""
    structure = bio.PDBParser(QUIET=True).get_structure("x", str(path))
    draws = random.Random(seed)
    for residue in structure.get_residues():
        step = [draws.gauss(0, deviation) for _ in range(3)]
        for atom in residue:
            atom.coord = atom.coord + step
    output = bio.PDBIO()
    output.set_structure(structure)
    output.save(str(to))


def scores_of(structure, reference):
    done = subprocess.run(["TMscore", str(structure), str(reference)], capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()

    def number(start):
        return float(next(line for line in lines if line.startswith(start)).split("=")[1].split()[0])

    return {"residues": number("Number of residues in common"), "rmsd": number("RMSD of  the common residues"),
            "tm": number("TM-score    "), "gdt_ts": number("GDT-TS-score")}


def check_scores(structure, reference):
    done = subprocess.run([probe, "compare", str(structure), str(reference)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours, theirs = json.loads(done.stdout), scores_of(structure, reference)
    print(f"{pathlib.Path(structure).name} beside {pathlib.Path(reference).name}:",
          ", ".join(f"{name} {ours[name]:.4f} {theirs[name]:.4f}" for name in theirs))
    assert ours["residues"] == theirs["residues"], (ours, theirs)
    assert abs(ours["rmsd"] - theirs["rmsd"]) < 6e-4, (ours, theirs)
    # Both search superpositions; ours may find a better one.
    assert -6e-5 < ours["tm"] - theirs["tm"] < 2e-3, (ours, theirs)
    assert -6e-5 < ours["gdt_ts"] - theirs["gdt_ts"] < 2e-2, (ours, theirs)


def helix(path, residues):
    """A helix with a kink, for scores."""
    text = ""
    for i in range(residues):
        angle, rise = math.radians(100 * i), 1.5 * i
        place = [2.3 * math.cos(angle) + max(0, i - residues // 2), 2.3 * math.sin(angle), rise]
        text += (f"ATOM  {i + 1:5}  CA  {'ALA' if i % 3 else 'LEU'} A{i + 1:4}    "
                 f"{place[0]:8.3f}{place[1]:8.3f}{place[2]:8.3f}  1.00 50.00           C\n")
    path.write_text(text + "TER\nEND\n")


folder = interop.temp_dir
for seed in range(3):
    write_pdb(folder / f"x{seed}.pdb", seed)
    write_mmcif(folder / f"y{seed}.cif", seed)
files = sorted(folder.glob("*.cif")) + sorted(folder.glob("*.pdb"))
more = os.environ.get("COLOSSAL_STRUCTURES")
if more:
    files += sorted(path for path in pathlib.Path(more).rglob("*") if path.suffix in (".cif", ".pdb"))
for path, ours in zip(files, read(files)):
    placed = check_pdb(path, ours) if path.suffix == ".pdb" else check_mmcif(path, ours)
    check_resolution(path, ours)
    assert placed > 0, path
    print(f"{path.name}: {ours['resolution']} Angstrom,",
          ", ".join(f"{chain['id']} {sum(map(bool, chain['residues']))} of {len(chain['residues'])} residues"
                    for chain in ours["chains"]), *ours["notices"])
# The first model of y0 has the atoms of x1.
assert read([folder / "y0.cif"])[0]["chains"] == read([folder / "x1.pdb"])[0]["chains"]
packed = folder / "x0.pdb.gz"
packed.write_bytes(gzip.compress((folder / "x0.pdb").read_bytes()))
assert read([packed])[0]["chains"] == read([folder / "x0.pdb"])[0]["chains"]

if not shutil.which("TMscore"):
    print("no TMscore here, so scores were not compared; apt-get install tm-align")
else:
    helix(folder / "helix.pdb", 60)
    for seed, deviation in enumerate((.3, 1.5, 4)):
        moved(folder / "helix.pdb", folder / f"moved{seed}.pdb", deviation, seed)
        check_scores(folder / f"moved{seed}.pdb", folder / "helix.pdb")
    for path in files:
        if path.suffix == ".pdb" and path.parent != folder and len(read([path])[0]["chains"]) == 1:
            moved(path, folder / "whole.pdb", 0, 0)
            moved(path, folder / f"moved-{path.name}", 1.5, 0)
            check_scores(folder / f"moved-{path.name}", folder / "whole.pdb")
print("equal")
