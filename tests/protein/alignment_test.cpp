// A3M and Stockholm files: rows, deletions, and the message of each refusal and notice.
#include "colossal/protein/alignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "protein/packed.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::protein::alignment_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Alignment read(const std::string& bytes, const std::string& name = "x.a3m", const AlignmentOptions& options = {}) {
  const test::TemporaryFolder folder;
  return read_alignment(folder.write(name, bytes), options);
}

/// Returns the message without the folder.
std::string complaint_of(const std::string& bytes, const std::string& name = "x.a3m") {
  const std::string message = test::thrown_message([&] { read(bytes, name); });
  const size_t begin = message.find(name);
  return begin == std::string::npos ? message : message.substr(begin);
}

std::vector<int32_t> deletions_of(const Alignment& alignment, int64_t row) {
  std::vector<int32_t> deletions;
  for (int64_t column = 0; column < alignment.columns(); ++column) deletions.push_back(alignment.deletion(row, column));
  return deletions;
}

const std::string kG34 = ">q first\nMKTAYIA\n>a\nMKSAYa-A\n>b\nM-TAyYVA\n>c\nLKTGWLAq\n>d\nMKTAYV-\n";

TEST(Alignment, ReadsRowsAndDeletionsOfA3m) {
  const Alignment found = read(kG34);
  EXPECT_THAT(found.rows, ElementsAre("MKTAYIA", "MKSAY-A", "M-TAYVA", "LKTGWLA", "MKTAYV-"));
  EXPECT_THAT(deletions_of(found, 1), ElementsAre(0, 0, 0, 0, 0, 1, 0));
  EXPECT_THAT(deletions_of(found, 2), ElementsAre(0, 0, 0, 0, 1, 0, 0));
  EXPECT_THAT(deletions_of(found, 3), ElementsAre(0, 0, 0, 0, 0, 0, 0)) << "a residue after the end counts nowhere";
  EXPECT_THAT(found.descriptions, ElementsAre("q first", "a", "b", "c", "d"));
  EXPECT_THAT(found.notices, IsEmpty());
}

TEST(Alignment, ReadsWrappedRowsCommentsAndPackedFiles) {
  const std::string text = "#A3M#\r\n>q\r\nMKT\r\nAY*\r\n\r\n>a\r\nMkk.K\r\nTA\r\n-\r\n";
  for (const std::string& bytes : {text, packed(text)}) {
    const Alignment found = read(bytes);
    EXPECT_THAT(found.rows, ElementsAre("MKTAY", "MKTA-"));
    EXPECT_THAT(deletions_of(found, 1), ElementsAre(0, 2, 0, 0, 0));
  }
}

TEST(Alignment, KeepsEqualRowsOnce) {
  const Alignment found = read(">q\nMKT\n>a\nM-T\n>b\nMKT\n>c\nMkk-T\n>d\nMRT\n");
  EXPECT_THAT(found.rows, ElementsAre("MKT", "M-T", "MRT"));
  EXPECT_EQ(found.equal_rows, 2);
  EXPECT_THAT(found.descriptions, ElementsAre("q", "a", "d"));
  EXPECT_THAT(deletions_of(found, 1), ElementsAre(0, 0, 0)) << "those of the first of equal rows";
}

TEST(Alignment, LeavesGapsOfTheQueryOut) {
  const Alignment found = read(">q\nM-K--T-\n>a\nMaAKC-TW\n>b\n-C-C-cCW\n");
  EXPECT_THAT(found.rows, ElementsAre("MKT", "--C"));
  EXPECT_EQ(found.equal_rows, 1);
  EXPECT_THAT(deletions_of(found, 1), ElementsAre(0, 1, 2));
}

const std::string kStockholm =
    "# STOCKHOLM 1.0\n#=GF ID x\n#=GS b/1-4 DE [subseq from] second\n\nquery  MK-T\na      mr.t\nb/1-4  .kaT\n#=GC RF "
    "xx.x\n\n"
    "query  A-Y\na      AC~\nb/1-4  __Y\n//\n";

TEST(Alignment, ReadsInterleavedStockholm) {
  for (const std::string& bytes : {kStockholm, packed(kStockholm)}) {
    const Alignment found = read(bytes, "x.sto");
    EXPECT_THAT(found.rows, ElementsAre("MKTAY", "MRTA-", "-KT-Y"));
    EXPECT_THAT(deletions_of(found, 1), ElementsAre(0, 0, 0, 0, 1));
    EXPECT_THAT(deletions_of(found, 2), ElementsAre(0, 0, 1, 0, 0));
    EXPECT_THAT(found.descriptions, ElementsAre("query", "a", "b/1-4 [subseq from] second"));
  }
}

TEST(Alignment, DropsNulBytesWithANotice) {
  const Alignment found = read(std::string("\0>q\nMK\0T\n>a\nMRT\n\0", 17));
  EXPECT_THAT(found.rows, ElementsAre("MKT", "MRT"));
  ASSERT_EQ(found.notices.size(), 1u);
  EXPECT_THAT(found.notices[0], HasSubstr("left 3 NUL bytes of "));
}

TEST(Alignment, RefusesA3mByFileAndLine) {
  EXPECT_EQ(complaint_of(">q\nMKT\n>a b\nM-\n"),
            "x.a3m:3: row `a` must have 3 columns, as the query: got 2; align it again or remove it");
  EXPECT_THAT(complaint_of(">q\nMKT\n>a\nMKTA\n"),
              HasSubstr("x.a3m:3: row `a` must have 3 columns, as the query: got 4"));
  EXPECT_THAT(complaint_of(">q\nMKT\n>a\nM1T\n"),
              HasSubstr("x.a3m:4: a row must have letters, `-` and `.`, and `*` at its end alone: got `1`"));
  EXPECT_THAT(complaint_of(">q\nM*KT\n"), HasSubstr("x.a3m:2: a row must have letters"));
  EXPECT_THAT(complaint_of("MKT\n"),
              HasSubstr("x.a3m:1: an A3M file must begin with `>` and the name of the query: got `M`"));
  EXPECT_THAT(complaint_of("#A3M#\n"), HasSubstr("x.a3m:1: an alignment must have at least one row: got none"));
  EXPECT_THAT(complaint_of(">q\n--\n>a\nMK\n"),
              HasSubstr("x.a3m:1: the query, which is the first row, must have residues"));
}

TEST(Alignment, RefusesStockholmByFileAndLine) {
  EXPECT_THAT(complaint_of("# STOCKHOLM 1.0\nq MKT\na MK\n//\n", "x.sto"),
              HasSubstr("x.sto:3: row `a` must have 3 columns"));
  EXPECT_THAT(complaint_of("# STOCKHOLM 1.0\nq MKT\n", "x.sto"),
              HasSubstr("x.sto:2: a Stockholm file must end with `//`"));
  EXPECT_THAT(complaint_of("# STOCKHOLM 1.0\nq M!T\n//\n", "x.sto"),
              HasSubstr("x.sto:2: a row must have letters and gaps (`-`, `.`, `_`, `~`): got `!`"));
  EXPECT_THAT(complaint_of("# STOCKHOLM 1.0\nq\n//\n", "x.sto"),
              HasSubstr("x.sto:2: a line of a row must have its name and its letters: got `q`"));
  EXPECT_THAT(complaint_of("# STOCKHOLM 1.0\nq M\n//\nq M\n//\n", "x.sto"),
              HasSubstr("x.sto:4: a Stockholm file must have one alignment"));
  EXPECT_THAT(complaint_of("# STOCKHOLM 1.0\n//\n", "x.sto"), HasSubstr("must have at least one row"));
  EXPECT_THAT(complaint_of(">q\nMKT\n", "x.sto"),
              HasSubstr("x.sto:1: a Stockholm file must begin with `# STOCKHOLM 1.0`"));
}

TEST(Alignment, RefusesSeveralChainsForAMonomer) {
  EXPECT_THAT(complaint_of("#3,2\t1,1\n>101\nMKTAY\n"),
              HasSubstr("x.a3m:1: the alignment of a monomer must list one chain: got `#3,2\t1,1`; fold a complex with "
                        "alphafold2-multimer-v3"));
  EXPECT_THAT(complaint_of("#5\t2\n>101\nMKTAY\n"), HasSubstr("must list one chain: got `#5\t2`"));
  EXPECT_EQ(complaint_of("#5\t1\n>101\nMKTAY\n"), "");
  EXPECT_EQ(complaint_of("#5 of something\n>101\nMKTAY\n"), "");
  const Alignment found = read("#3,2\t1,2\n>101\nMKTAY\n", "x.a3m", {.is_monomer = false});
  EXPECT_THAT(found.chain_lengths, ElementsAre(3, 2));
  EXPECT_THAT(found.chain_copies, ElementsAre(1, 2));
}

TEST(Alignment, RequiresTheSequenceAsTheQuery) {
  const Alignment found = read(">q\nMKUAY\n");
  EXPECT_NO_THROW(require_query(found, "MKXAY", "x.fasta:1")) << "residues of no type are equal";
  EXPECT_THAT(
      test::thrown_message([&] { require_query(found, "MKXGY", "x.fasta:1"); }),
      HasSubstr("x.a3m:1: the query of an alignment must be the sequence of x.fasta:1: got residue 4 is A in the "
                "alignment and G in the sequence; give the alignment of this chain"));
  EXPECT_THAT(test::thrown_message([&] { require_query(found, "MKX", "x.fasta:1"); }),
              HasSubstr("got 5 residues in the alignment and 3 in the sequence; the first 3 are equal"));
}

TEST(Alignment, JoinsFilesOfOneQuery) {
  const Alignment joined =
      join_alignments({read(">q\nMKTAY\n>a\nMaKTA-\n"), read(kStockholm, "x.sto"), read(">q\nMKTAY\n>z\nMKbTA-\n")});
  EXPECT_THAT(joined.rows, ElementsAre("MKTAY", "MKTA-", "MRTA-", "-KT-Y"));
  EXPECT_THAT(deletions_of(joined, 1), ElementsAre(0, 1, 0, 0, 0));
  EXPECT_THAT(deletions_of(joined, 3), ElementsAre(0, 0, 1, 0, 0));
  EXPECT_EQ(joined.equal_rows, 3);
  EXPECT_THAT(test::thrown_message([&] { join_alignments({read(">q\nMK\n"), read(">q\nMR\n")}); }),
              HasSubstr("residue 2 is R in the alignment and K in the sequence"));
  EXPECT_THAT(single_row("MKT", "q").rows, ElementsAre("MKT"));
}

TEST(Alignment, DeletionValuesEqualG29) {
  EXPECT_NEAR(deletion_value(1), .2048327646991, 5e-14);
  EXPECT_NEAR(deletion_value(2), .374334083622, 5e-13);
  EXPECT_NEAR(deletion_value(3), .5, 1e-15);
  EXPECT_NEAR(deletion_value(10), .8144528418445, 5e-14);
}

/// Counts of a real alignment.
struct Counts {
  int64_t rows, columns, deletions, longest, gaps;
};

Counts counts_of(const Alignment& alignment) {
  Counts counts{static_cast<int64_t>(alignment.rows.size()), alignment.columns(), 0, 0, 0};
  for (const int32_t deleted : alignment.deletions) {
    counts.deletions += deleted;
    counts.longest = std::max<int64_t>(counts.longest, deleted);
  }
  for (const std::string& row : alignment.rows) counts.gaps += std::count(row.begin(), row.end(), '-');
  return counts;
}

TEST(Alignment, CountsRealFiles) {
  const std::string folder = test::source_dir() + "/../shared/data/protein/";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  const Counts large = counts_of(read_alignment(folder + "6kwc/bfd_uniref_hits.a3m"));
  EXPECT_EQ(large.rows, 1428);
  EXPECT_EQ(large.columns, 191);
  EXPECT_EQ(large.deletions, 16948);
  EXPECT_EQ(large.longest, 62);
  EXPECT_EQ(large.gaps, 75746);
  const Counts small = counts_of(read_alignment(folder + "2q2k/A-uniref90_hits.sto"));
  EXPECT_EQ(small.rows, 16);
  EXPECT_EQ(small.columns, 70);
  EXPECT_EQ(small.deletions, 4);
  EXPECT_EQ(small.gaps, 302);
}

}  // namespace
}  // namespace colossal::protein::alignment_test
