// Damaged FASTA, A3M, Stockholm, mmCIF and PDB files: each is read or refused, and nothing else happens.
// COLOSSAL_MUTATED_FILES is the number of mutations of all files together; default: 1000.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "colossal/base/error.h"
#include "colossal/protein/alignment.h"
#include "colossal/protein/fasta.h"
#include "colossal/protein/structure_reader.h"
#include "protein/packed.h"
#include "support/temporary_folder.h"

namespace colossal::protein::mutated_files_test {
namespace {

/// Returns bytes of which a few were changed, doubled, removed or cut off.
std::string mutated(std::string bytes, std::mt19937& random) {
  for (size_t changes = 1 + random() % 4; changes > 0 && !bytes.empty(); --changes) {
    const size_t at = random() % bytes.size(), count = std::min<size_t>(bytes.size() - at, 1 + random() % 8);
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.insert(at, bytes.substr(random() % bytes.size(), count));
        break;
      case 2:
        bytes.erase(at, count);
        break;
      case 3:
        bytes[at] = "\n\r\t >#:*-/\0aA"[random() % 13];
        break;
      default:
        if (random() % 8 == 0) bytes.resize(at);
    }
  }
  return bytes;
}

const std::string kFasta = ">a first\nMKTAYI\r\naky*\n>b\nMK:TAY\n",
                  kA3m = "#A3M#\n#5\t1\n>q\nMKTAY\n>a\nMaKT-y.Y\n>b\nMKT\nA-\n";
const std::string kStockholm =
    "# STOCKHOLM 1.0\n#=GS b DE text\n\nq  MK-T\na  MR.T\nb  .KAT\n\nq  A-Y\na  AC~\nb  __Y\n//\n";

const std::string kMmcif =
    "data_X\nloop_\n_entity_poly.entity_id\n_entity_poly.type\n1 'polypeptide(L)'\n2 other\nloop_\n"
    "_entity_poly_seq.entity_id\n_entity_poly_seq.num\n_entity_poly_seq.mon_id\n1 1 MSE\n1 2 GLY\n1 3 LYS\n2 1 DA\n"
    "_refine.ls_d_res_high 2.0\nloop_\n_atom_site.label_atom_id\n_atom_site.label_comp_id\n"
    "_atom_site.label_asym_id\n_atom_site.label_entity_id\n_atom_site.label_seq_id\n_atom_site.Cartn_x\n"
    "_atom_site.Cartn_y\n_atom_site.Cartn_z\n_atom_site.occupancy\n_atom_site.pdbx_PDB_model_num\n"
    "CA MSE A 1 1 1.0 2 3 1 1\nSE MSE A 1 1 1.5 2 3 .5 1\n\"CA\" LYS A 1 3 4 5 6 1 1\nP DA B 2 1 1 1 1 1 1\n"
    ";CA\n; LYS A 1 3 4 5 6 1 2\n";
const std::string kPdb =
    "HEADER    TEST                                    28-MAR-07   1ABC\nREMARK   2 RESOLUTION.    2.00 ANGSTROMS.\n"
    "REMARK   3   RESOLUTION RANGE HIGH (ANGSTROMS) : 2.00\nSEQRES   1 A    3  MSE GLY LYS\n"
    "MODEL        1\nHETATM    1  CA  MSE A   1       1.000   2.000   3.000  1.00 20.00           C\n"
    "ATOM      2  CA AGLY A   2A      4.000   5.000   6.000  0.50 20.00           C\n"
    "ATOM      3  CA BLYS A   3       7.000   8.000   9.000  0.50\nTER\nATOM      4  P    DA B   1       1.0     2.0  "
    "   3.0\nENDMDL\nEND\n";

void read_and_check_structure(const std::string& path) {
  const Structure structure = read_structure(path);
  ASSERT_FALSE(structure.chains.empty());
  for (const StructureChain& chain : structure.chains) ASSERT_FALSE(chain.residues.empty());
  if (mean_ca_b_factor(structure) > 0) {
    ASSERT_FALSE(mmcif_text(structure).empty());
  }
}

/// Reads a file and checks what the reader promises.
void read_and_check(const std::string& path) {
  if (is_structure_name(path)) return read_and_check_structure(path);
  if (path.ends_with(".fasta")) {
    for (const FastaRecord& record : read_fasta(path)) {
      ASSERT_FALSE(record.name.empty() || record.chains.empty());
      for (const std::string& chain : record.chains)
        ASSERT_EQ(chain.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), std::string::npos);
    }
    return;
  }
  const Alignment found = read_alignment(path);
  ASSERT_EQ(found.rows[0].find('-'), std::string::npos);
  ASSERT_EQ(found.deletions.size(), found.rows.size() * found.rows[0].size());
  ASSERT_EQ(found.descriptions.size(), found.rows.size());
  for (const std::string& row : found.rows) ASSERT_EQ(row.size(), found.rows[0].size());
}

TEST(MutatedProteinFiles, CrashNothing) {
  const char* wanted = std::getenv("COLOSSAL_MUTATED_FILES");
  const int count = wanted != nullptr ? std::atoi(wanted) : 1000;
  std::vector<std::pair<std::string, std::string>> sources{{"x.fasta", kFasta}, {"x.a3m", kA3m}, {"x.sto", kStockholm}};
  if (reads_structures()) sources.insert(sources.end(), {{"x.cif", kMmcif}, {"x.pdb", kPdb}});
  for (size_t i = 0, plain = sources.size(); i < plain; ++i)
    sources.emplace_back(sources[i].first, packed(sources[i].second));
  const test::TemporaryFolder folder;
  for (const auto& [name, bytes] : sources) read_and_check(folder.write(name, bytes));
  int read = 0, refused = 0;
  for (int i = 0; i < count; ++i) {
    std::mt19937 random(static_cast<unsigned>(i));
    const auto& [name, bytes] = sources[random() % sources.size()];
    try {
      read_and_check(folder.write(name, mutated(bytes, random)));
      ++read;
    } catch (const Error& error) {
      EXPECT_FALSE(error.message().empty());
      ++refused;
    }
  }
  EXPECT_GT(read, count / 20);
  EXPECT_GT(refused, count / 4);
}

}  // namespace
}  // namespace colossal::protein::mutated_files_test
