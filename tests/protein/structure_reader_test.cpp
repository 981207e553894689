// Structures read from files of both formats, which the test writes: one molecule gives one structure. And the message
// of each refusal.
#include "colossal/protein/structure_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "protein/golden.h"
#include "protein/packed.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::protein::structure_reader_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// An atom of the test's molecule, with all that a file says about it.
struct FileAtom {
  const char *name, *residue;
  char alternative;
  const char *label_chain, *entity;
  int label_number;  ///< 0 = none
  char chain;
  int number;
  char insertion;
  double x, occupancy;
  int model = 1;
};

/// Chain H of the authors, the label chain A, has the sequence M G S K T K; S and the last K have no atoms. G has two
/// places, K is in other files' words residue 52, and T, which is V for a smaller part, residue 52A.
const FileAtom kAtoms[] = {
    {"N", "MSE", '.', "A", "1", 1, 'H', 50, ' ', 1, 1},      {"CA", "MSE", '.', "A", "1", 1, 'H', 50, ' ', 2, 1},
    {"SE", "MSE", '.', "A", "1", 1, 'H', 50, ' ', 3, 1},     {"CA", "GLY", 'A', "A", "1", 2, 'H', 51, ' ', 5, .4},
    {"CA", "GLY", 'B', "A", "1", 2, 'H', 51, ' ', 5.25, .6}, {"H", "GLY", '.', "A", "1", 2, 'H', 51, ' ', 6, 1},
    {"CA", "LYS", 'A', "A", "1", 4, 'H', 52, ' ', 12, .5},   {"CA", "LYS", 'B', "A", "1", 4, 'H', 52, ' ', 13, .5},
    {"NZ", "LYS", '.', "A", "1", 4, 'H', 52, ' ', 14, 1},    {"CA", "VAL", 'A', "A", "1", 5, 'H', 52, 'A', 15.5, .3},
    {"CA", "THR", 'B', "A", "1", 5, 'H', 52, 'A', 16, .7},   {"OG1", "THR", 'B', "A", "1", 5, 'H', 52, 'A', 17, .7},
    {"P", "DA", '.', "B", "2", 1, 'D', 7, ' ', 30, 1},       {"P", "DC", '.', "B", "2", 2, 'D', 8, ' ', 31, 1},
    {"ZN", "ZN", '.', "C", "3", 0, 'H', 90, ' ', 40, 1},     {"O", "HOH", '.', "D", "4", 0, 'H', 91, ' ', 41, 1},
    {"CA", "MSE", '.', "A", "1", 1, 'H', 50, ' ', 99, 1, 2},
};

std::string mmcif_of(const std::vector<FileAtom>& atoms) {
  std::string text =
      "data_TEST\n#\n_entry.id TEST\nloop_\n_entity_poly.entity_id\n_entity_poly.type\n1 'polypeptide(L)'\n"
      "2 polydeoxyribonucleotide\n"
      "loop_\n_entity_poly_seq.entity_id\n_entity_poly_seq.num\n_entity_poly_seq.mon_id\n_entity_poly_seq.hetero\n"
      "1 1 MSE n\n1 2 GLY n\n1 3 SER n\n1 4 LYS n\n1 5 THR y\n1 5 VAL y\n1 6 LYS n\n2 1 DA n\n2 2 DC n\n"
      "_refine.ls_d_res_high 1.75\nloop_\n";
  for (const char* column : {"group_PDB", "id", "label_atom_id", "label_alt_id", "label_comp_id", "label_asym_id",
                             "label_entity_id", "label_seq_id", "pdbx_PDB_ins_code", "Cartn_x", "Cartn_y", "Cartn_z",
                             "occupancy", "B_iso_or_equiv", "auth_seq_id", "auth_asym_id", "pdbx_PDB_model_num"})
    text += std::string("_atom_site.") + column + "\n";
  int serial = 0;
  char line[160];
  for (const FileAtom& atom : atoms) {
    const std::string number = atom.label_number > 0 ? std::to_string(atom.label_number) : ".";
    std::snprintf(line, sizeof line, "ATOM %d \"%s\" %c %s %s %s %s %c %.3f -2.500 .5 %.2f 20.5 %d %c %d\n", ++serial,
                  atom.name, atom.alternative, atom.residue, atom.label_chain, atom.entity, number.c_str(),
                  atom.insertion == ' ' ? '?' : atom.insertion, atom.x, atom.occupancy, atom.number, atom.chain,
                  atom.model);
    text += line;
  }
  return text;
}

std::string pdb_of(const std::vector<FileAtom>& atoms) {
  std::string text =
      "HEADER    TEST                                    28-MAR-07   1ABC\n"
      "REMARK   2 RESOLUTION.    1.75 ANGSTROMS.\n"
      "SEQRES   1 H    6  MSE GLY SER LYS THR LYS\nSEQRES   1 D    2   DA  DC\nMODEL        1\n";
  int serial = 0, model = 1;
  char line[160];
  for (size_t i = 0; i < atoms.size(); ++i) {
    const FileAtom& atom = atoms[i];
    if (atom.model != model) text += "ENDMDL\nMODEL        2\n", model = atom.model;
    std::snprintf(line, sizeof line, "%-6s%5d  %-3s%c%3s %c%4d%c   %8.3f  -2.500   0.500%6.2f 20.50\n",
                  atom.label_number > 0 && atom.residue[2] != 'E' ? "ATOM" : "HETATM", ++serial, atom.name,
                  atom.alternative == '.' ? ' ' : atom.alternative, atom.residue, atom.chain, atom.number,
                  atom.insertion, atom.x, atom.occupancy);
    text += line;
    const bool is_last = i + 1 == atoms.size() || atoms[i + 1].chain != atom.chain;
    if (is_last && atom.label_number > 0) text += "TER\n";
  }
  return text + "ENDMDL\nEND\n";
}

const std::vector<FileAtom> kAll(std::begin(kAtoms), std::end(kAtoms));

class StructureReader : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!reads_structures()) GTEST_SKIP() << "built without gemmi";
  }
  bool is_pdb() const { return std::string(GetParam()) == ".pdb"; }
  std::string text(const std::vector<FileAtom>& atoms = kAll) const {
    return is_pdb() ? pdb_of(atoms) : mmcif_of(atoms);
  }
  std::string complaint(const std::string& text) const {
    return test::thrown_message([&] { read_structure(folder_.write(std::string("x") + GetParam(), text)); });
  }

  test::TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Formats, StructureReader, testing::Values(".cif", ".pdb"));

TEST_P(StructureReader, ReadsOneMoleculeFromBothFormats) {
  const std::string ending = std::string(GetParam()) + ".gz";
  const Structure read = read_structure(folder_.write("1abc" + ending, packed(text())));
  EXPECT_EQ(read.name, "1abc");
  EXPECT_EQ(read.resolution, 1.75);
  ASSERT_EQ(read.chains.size(), 1u);
  const StructureChain& chain = read.chains[0];
  EXPECT_EQ(chain.id, "H");
  EXPECT_EQ(sequence_of(chain), "MGSKTK");
  std::string found;  // residue, slot and x of each atom
  for (size_t i = 0; i < chain.residues.size(); ++i)
    for (const StructureAtom& atom : chain.residues[i].atoms) {
      found += concat(i + 1, " ", name_of_atom37(atom.atom), " ", atom.position.x, "\n");
      EXPECT_EQ(atom.position.y, -2.5);
      EXPECT_EQ(atom.position.z, .5);
      EXPECT_EQ(atom.b_factor, 20.5);
    }
  EXPECT_EQ(found, "1 N 1\n1 CA 2\n1 SD 3\n2 CA 5.25\n4 CA 12\n4 NZ 14\n5 CA 16\n5 OG1 17\n");
  ASSERT_EQ(read.notices.size(), 1u);
  EXPECT_THAT(read.notices[0], HasSubstr("chain D of " + folder_ / ("1abc" + ending) + " is left out: "));
}

TEST_P(StructureReader, TellsOfNulBytes) {
  std::string nuls = text();
  nuls.insert(nuls.find("MSE"), std::string(3, '\0'));
  const Structure read = read_structure(folder_.write(std::string("x") + GetParam(), nuls));
  EXPECT_EQ(sequence_of(read.chains.at(0)), "MGSKTK");
  EXPECT_THAT(read.notices.at(1), HasSubstr(std::string("x") + GetParam() + " has NUL bytes, which are left out: 3"));
}

TEST_P(StructureReader, RefusesFilesWithoutAtomsOrProtein) {
  const std::string path = folder_ / (std::string("x") + GetParam());
  EXPECT_THAT(complaint(text({})), HasSubstr(path + " must have atoms: got no "));
  EXPECT_THAT(complaint(text({kAll.begin() + 12, kAll.begin() + 16})),
              HasSubstr(path + " must have a protein chain: got none (chain D of "));
  EXPECT_THAT(complaint(text({kAll[14]})), HasSubstr(path + " must have a protein chain: got none; give another"));
}

TEST_P(StructureReader, RefusesNumbersThatAreNoneOrTooLarge) {
  for (const std::string wrong : {"5.2b0", "1e099"}) {
    std::string broken = text();
    broken.replace(broken.find("5.250"), 5, wrong);
    EXPECT_THAT(complaint(broken),
                HasSubstr(is_pdb() ? "x.pdb:10: columns 31 to 38 must be a number below 1e6: got `   " + wrong + "`"
                                   : "x.cif: Cartn_x must be a number below 1e6: got " + wrong + " in row 5 of"));
  }
}

TEST_P(StructureReader, RefusesResiduesOutsideOfTheSequence) {
  std::string other = text();
  if (is_pdb())
    other.replace(other.find("MSE GLY SER LYS THR LYS"), 23, "MSE GLY                ");
  else
    other.replace(other.find("1 5 THR y\n1 5 VAL y\n1 6 LYS n\n"), 30, "");
  EXPECT_THAT(complaint(other), HasSubstr(is_pdb() ? "of chain H must be one of SEQRES: got no place for it"
                                                   : "x.cif: label_seq_id must be from 1 to 4 in chain H, the length "
                                                     "of its sequence: got 5 in row 10 of atom_site"));
}

TEST(StructureFiles, NamesTheLineOfBrokenMmcif) {
  if (!reads_structures()) GTEST_SKIP() << "built without gemmi";
  const test::TemporaryFolder folder;
  const auto complaint = [&](const std::string& text) {
    return test::thrown_message([&] { read_structure(folder.write("x.cif", text)); });
  };
  EXPECT_THAT(complaint("data_X\n_a 'b\n"), HasSubstr("x.cif:2:"));
  EXPECT_THAT(complaint("HEADER\n"), HasSubstr("x.cif:1:"));
  std::string text = mmcif_of(kAll);
  const auto without = [&](const std::string& from, const std::string& to) {
    const size_t begin = text.find(from);
    return text.substr(0, begin) + text.substr(text.find(to, begin));
  };
  EXPECT_THAT(complaint(without("loop_\n_entity_poly_seq", "_refine")),
              HasSubstr("must have the sequence of chain H: got no row of entity_poly_seq for entity 1"));
  EXPECT_THAT(complaint(without("loop_\n_entity_poly.", "_refine")),
              HasSubstr("must have sequences: got no row of entity_poly_seq"));
  EXPECT_THAT(complaint(without("1 3 SER", "1 4 LYS")), HasSubstr("got none with the number 3"));
}

TEST(StructureFiles, HasTheResiduesWithAtomsIfThereIsNoSeqres) {
  if (!reads_structures()) GTEST_SKIP() << "built without gemmi";
  const test::TemporaryFolder folder;
  std::string text = pdb_of(kAll);
  for (const char* chain : {"SEQRES   1 H", "SEQRES   1 D"}) text.replace(text.find(chain), 6, "XXXXXX");
  text.replace(text.find("REMARK   2"), 6, "XXXXXX");
  const Structure read = read_structure(folder.write("x.pdb", text));
  EXPECT_EQ(sequence_of(read.chains.at(0)), "MGKT");
  EXPECT_EQ(read.resolution, 0);
}

TEST(StructureFiles, ReadsWhatIsWritten) {
  if (!reads_structures()) GTEST_SKIP() << "built without gemmi";
  const test::TemporaryFolder folder;
  Structure source{.name = "one"};
  for (const char* letters : {"MXW", "GA"}) {
    StructureChain chain{chain_id(static_cast<int64_t>(source.chains.size())), {}};
    for (const char* letter = letters; *letter != '\0'; ++letter)
      chain.residues.push_back({type_of_letter(*letter), {{kAtomN, {1.5, 0, 2}, 70}, {kAtomCa, {2, -1, 3}, 80}}});
    source.chains.push_back(chain);
  }
  for (const char* name : {"x.cif", "x.pdb"}) {
    write_structure(source, folder / name);
    const Structure read = read_structure(folder / name);
    EXPECT_THAT(read.notices, IsEmpty());
    ASSERT_EQ(read.chains.size(), 2u);
    EXPECT_EQ(sequence_of(read.chains[0]), "MXW");
    EXPECT_EQ(mmcif_text(read), mmcif_text({"x", source.chains}));
  }
}

TEST(StructureFiles, NamesThePackagesThatABuildLacks) {
  if (reads_structures()) GTEST_SKIP() << "built with gemmi";
  EXPECT_THAT(test::thrown_message([] { read_structure("x.cif"); }),
              HasSubstr("x.cif is a structure, which this build does not read; install gemmi-dev and tao-pegtl-dev"));
}

TEST(StructureFiles, RefusesOtherEndings) {
  EXPECT_THAT(test::thrown_message([] { read_structure("x.ent"); }), HasSubstr("must end in .cif or .pdb"));
  EXPECT_TRUE(is_structure_name("a/x.CIF.gz"));
  EXPECT_FALSE(is_structure_name("x.cif.zip"));
}

}  // namespace
}  // namespace colossal::protein::structure_reader_test
