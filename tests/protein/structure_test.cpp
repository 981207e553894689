// Structures as files: read back with a small reader, and the message of each refusal.
#include "colossal/protein/structure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <sstream>

#include "protein/golden.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::protein::structure_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// A residue with all its atoms at places that follow from `seed`.
StructureResidue residue_of(char letter, double seed) {
  StructureResidue residue{type_of_letter(letter), {}};
  for (int atom = 0; atom < kAtom37; ++atom)
    if (residue_tables().atom37_exists[static_cast<size_t>(residue.type)][static_cast<size_t>(atom)])
      residue.atoms.push_back({atom, {seed + atom, -seed * atom, seed - .0001}, 50 + seed});
  return residue;
}

StructureChain chain_of(const std::string& id, const std::string& letters) {
  StructureChain chain{id, {}};
  for (size_t i = 0; i < letters.size(); ++i) chain.residues.push_back(residue_of(letters[i], static_cast<double>(i)));
  return chain;
}

/// Two equal chains and another, with an unknown residue.
Structure sample() { return {"my fold", {chain_of("A", "MXW"), chain_of("B", "MXW"), chain_of("C", "GA")}}; }

/// Returns the rows of a category of mmCIF, each by the names of its loop.
std::vector<std::map<std::string, std::string>> rows_of(const std::string& text, const std::string& category) {
  std::vector<std::string> names;
  std::vector<std::map<std::string, std::string>> rows;
  for (const std::string& line : lines_of(text)) {
    if (line == "loop_" || line == "#") names.clear();
    if (line.starts_with("_" + category + ".")) names.push_back(line.substr(category.size() + 2));
    if (names.empty() || line[0] == '_') continue;
    std::istringstream words(line);
    rows.emplace_back();
    for (const std::string& name : names) words >> rows.back()[name];
    std::string rest;
    EXPECT_FALSE(words >> rest) << line;
  }
  return rows;
}

TEST(Structure, MmcifReadsBack) {
  const Structure structure = sample();
  const std::string text = mmcif_text(structure);
  EXPECT_EQ(lines_of(text)[0], "data_my");
  const auto sequence = rows_of(text, "entity_poly_seq");
  ASSERT_EQ(sequence.size(), 5u) << "equal chains are one entity";
  EXPECT_EQ(sequence[1].at("mon_id"), "UNK");
  EXPECT_EQ(sequence[4].at("entity_id") + sequence[4].at("num") + sequence[4].at("mon_id"), "22ALA");
  EXPECT_EQ(rows_of(text, "struct_asym")[1].at("entity_id"), "1");
  const auto atoms = rows_of(text, "atom_site");
  size_t at = 0;
  for (const StructureChain& chain : structure.chains)
    for (size_t i = 0; i < chain.residues.size(); ++i)
      for (const StructureAtom& atom : chain.residues[i].atoms) {
        const auto& row = atoms.at(at++);
        EXPECT_EQ(row.at("group_PDB"), "ATOM");
        EXPECT_EQ(row.at("id"), std::to_string(at));
        EXPECT_EQ(row.at("label_asym_id") + row.at("auth_asym_id"), chain.id + chain.id);
        EXPECT_EQ(row.at("label_seq_id") + row.at("auth_seq_id"), std::to_string(i + 1) + std::to_string(i + 1));
        EXPECT_EQ(row.at("label_comp_id"), name_of_type(chain.residues[i].type));
        EXPECT_EQ(row.at("label_atom_id"), name_of_atom37(atom.atom));
        EXPECT_EQ(row.at("type_symbol"), std::string(1, name_of_atom37(atom.atom)[0]));
        golden::expect_near({std::stod(row.at("Cartn_x")), std::stod(row.at("Cartn_y")), std::stod(row.at("Cartn_z"))},
                            atom.position, .00051);
        EXPECT_NEAR(std::stod(row.at("B_iso_or_equiv")), atom.b_factor, .0051);
      }
  EXPECT_EQ(at, atoms.size());
  EXPECT_THAT(text, Not(HasSubstr(" -0.000 "))) << "zeros have no sign";
  EXPECT_EQ(lines_of(text.substr(text.find("\nATOM") + 1))[0],
            "ATOM 1 N N . MET A 1 1 ? 0.000 0.000 0.000 1.00 50.00 1 MET A N 1");
}

TEST(Structure, MmcifHasAConfidenceForEachResidueWithAtoms) {
  const auto rows = rows_of(mmcif_text(sample()), "ma_qa_metric_local");
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[1].at("label_asym_id") + rows[1].at("label_comp_id") + rows[1].at("label_seq_id"), "ATRP3");
  EXPECT_EQ(rows[1].at("metric_value"), "52.00");
  EXPECT_EQ(rows[5].at("ordinal_id"), "6");
  EXPECT_NEAR(mean_ca_b_factor(sample()), (50 + 52 + 50 + 52 + 50 + 51) / 6., 1e-12);
}

TEST(Structure, PdbReadsBack) {
  const Structure structure = sample();
  const auto lines = lines_of(pdb_text(structure));
  EXPECT_EQ(lines[0].substr(0, 31), "SEQRES   1 A    3  MET UNK TRP ");
  size_t at = 3;
  int64_t serial = 0;
  for (const StructureChain& chain : structure.chains) {
    for (size_t i = 0; i < chain.residues.size(); ++i)
      for (const StructureAtom& atom : chain.residues[i].atoms) {
        const std::string& line = lines.at(at++);
        ASSERT_EQ(line.size(), 80u);
        EXPECT_EQ(line.substr(0, 6), "ATOM  ");
        EXPECT_EQ(std::stoi(line.substr(6, 5)), ++serial);
        EXPECT_EQ(line.substr(12, 4), (" " + std::string(name_of_atom37(atom.atom)) + "   ").substr(0, 4));
        EXPECT_EQ(line.substr(17, 5), std::string(name_of_type(chain.residues[i].type)) + " " + chain.id);
        EXPECT_EQ(std::stoul(line.substr(22, 4)), i + 1);
        golden::expect_near(
            {std::stod(line.substr(30, 8)), std::stod(line.substr(38, 8)), std::stod(line.substr(46, 8))},
            atom.position, .00051);
        EXPECT_EQ(line.substr(54, 6), "  1.00");
        EXPECT_NEAR(std::stod(line.substr(60, 6)), atom.b_factor, .0051);
        EXPECT_EQ(line.substr(76, 2), std::string(" ") + name_of_atom37(atom.atom)[0]);
      }
    EXPECT_EQ(lines.at(at++).substr(0, 3), "TER");
  }
  EXPECT_EQ(lines.at(at).substr(0, 3), "END");
  EXPECT_EQ(at + 1, lines.size());
}

TEST(Structure, WritesEqualBytesTwice) {
  const test::TemporaryFolder folder;
  for (const std::string name : {"a.cif", "b.PDB"}) {
    write_structure(sample(), folder / name);
    const std::string first = test::read_all(folder / name);
    write_structure(sample(), folder / name);
    EXPECT_EQ(test::read_all(folder / name), first);
    EXPECT_EQ(first, name == "a.cif" ? mmcif_text(sample()) : pdb_text(sample()));
  }
  EXPECT_THAT(test::thrown_message([&] { write_structure(sample(), folder / "a.mmcif"); }),
              HasSubstr("the file of a structure must end in .cif or .pdb: got "));
}

TEST(Structure, NamesChains) {
  EXPECT_EQ(chain_id(0) + chain_id(26) + chain_id(61), "Aa9");
  EXPECT_EQ(chain_id(62), "AA");
  EXPECT_EQ(chain_id(63), "AB");
  EXPECT_EQ(chain_id(62 + 62 * 62), "AAA");
}

TEST(Structure, TakesArraysOfModels) {
  const std::vector<int64_t> types{type_of_letter('G'), kUnknownType};
  std::vector<Point> positions(2 * kAtom37);
  std::vector<double> confidence(2 * kAtom37, 70);
  const auto exists = std::make_unique<bool[]>(2 * kAtom37);
  positions[kAtomCa] = {1, 2, 3};
  exists[kAtomCa] = true;
  const std::span<const bool> mask(exists.get(), 2 * kAtom37);
  const StructureChain chain = chain_of_atom37("A", types, positions, mask, confidence);
  EXPECT_EQ(sequence_of(chain), "GX");
  ASSERT_EQ(chain.residues[0].atoms.size(), 1u);
  EXPECT_EQ(chain.residues[0].atoms[0].position, (Point{1, 2, 3}));
  EXPECT_EQ(chain.residues[0].atoms[0].b_factor, 70);
  EXPECT_TRUE(chain.residues[1].atoms.empty());
  EXPECT_THAT(test::thrown_message([&] { chain_of_atom37("A", types, positions, mask.first(3), confidence); }),
              HasSubstr("must have 74 atoms: got 74, 3 and 74"));
  const std::vector<int64_t> bad{0, 21};
  EXPECT_THAT(test::thrown_message([&] { chain_of_atom37("A", bad, positions, mask, confidence); }),
              HasSubstr("a residue type must be from 0 to 20: got 21"));
}

TEST(Structure, RefusesWhatPdbCannotHold) {
  const auto complaint = [](const Structure& structure) { return test::thrown_message([&] { pdb_text(structure); }); };
  Structure chains;
  for (int64_t i = 0; i < 63; ++i) chains.chains.push_back(chain_of(chain_id(i), "G"));
  EXPECT_THAT(complaint(chains), HasSubstr("a PDB file must have at most 62 chains: got 63; write mmCIF (.cif)"));
  EXPECT_NE(mmcif_text(chains), "");
  chains.chains.erase(chains.chains.begin());
  EXPECT_EQ(complaint(chains), "") << "an id of two characters is replaced";
  Structure residues{"x", {{"A", std::vector<StructureResidue>(10000)}}};
  residues.chains[0].residues[0] = residue_of('G', 0);
  EXPECT_THAT(complaint(residues), HasSubstr("at most 9,999 residues: got 10000 in chain A; write mmCIF (.cif)"));
  residues.chains[0].residues.pop_back();
  EXPECT_EQ(complaint(residues), "");
  Structure atoms{"x", std::vector<StructureChain>(2)};
  for (size_t i = 0; i < 2; ++i) {
    const StructureResidue tryptophan = residue_of('W', 0);
    atoms.chains[i] = {chain_id(static_cast<int64_t>(i)), std::vector<StructureResidue>(3572, tryptophan)};
  }
  EXPECT_THAT(complaint(atoms), HasSubstr("at most 99,999 atoms: got 100016; write mmCIF (.cif)"));
  Structure far{"x", {chain_of("A", "G")}};
  far.chains[0].residues[0].atoms[0].position.x = -1000;
  EXPECT_THAT(complaint(far), HasSubstr("must fit 8 columns: got -1000.000; write mmCIF (.cif)"));
}

TEST(Structure, RefusesBrokenStructures) {
  const auto complaint = [](const Structure& structure) {
    return test::thrown_message([&] { mmcif_text(structure); });
  };
  EXPECT_THAT(complaint({"x", {}}), HasSubstr("[mmcif] a structure must have at least one atom"));
  EXPECT_THAT(complaint({"x", {chain_of("A", "XX")}}), HasSubstr("at least one atom"));
  EXPECT_THAT(complaint({"x", {chain_of("A", "G"), chain_of("A", "G")}}), HasSubstr("ids of chains must differ"));
  Structure broken{"x", {chain_of("A", "GG")}};
  broken.chains[0].residues[1].atoms[1].position.y = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(complaint(broken),
              HasSubstr("positions and B factors must be finite: got 2, nan, 0.9999 and 51 at atom CA "
                        "of residue 2 of chain A"));
}

}  // namespace
}  // namespace colossal::protein::structure_test
