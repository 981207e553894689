// Damaged FASTA, A3M and Stockholm files: each is read or refused, and nothing else happens. COLOSSAL_MUTATED_FILES is
// the number of mutations of all files together; default: 1000.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "colossal/base/error.h"
#include "colossal/protein/alignment.h"
#include "colossal/protein/fasta.h"
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

/// Reads a file and checks what the reader promises.
void read_and_check(const std::string& path, bool is_fasta) {
  if (is_fasta) {
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
  const std::vector<std::string> sources{kFasta, kA3m, kStockholm, packed(kFasta), packed(kA3m), packed(kStockholm)};
  const test::TemporaryFolder folder;
  int read = 0, refused = 0;
  for (int i = 0; i < count; ++i) {
    std::mt19937 random(static_cast<unsigned>(i));
    const size_t kind = random() % sources.size();
    const std::string path = folder.write(kind % 3 == 0 ? "x.fasta" : "x", mutated(sources[kind], random));
    try {
      read_and_check(path, kind % 3 == 0);
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
