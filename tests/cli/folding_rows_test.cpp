// The rows of `colossal bench folding`.
#include "colossal/cli/bench/folding_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thrown_message.h"

namespace colossal::cli::folding_rows_test {
namespace {

TEST(FoldingRows, CountWhatTheFormulasSay) {
  for (const int64_t ranks : {1, 2, 3})
    for (const FoldingRow& row : folding_rows(ranks, {.alignment = 5, .residues = 14})) {
      EXPECT_EQ(row.sent, row.formula) << ranks << " " << row.what << " " << row.phase;
      EXPECT_EQ(row.sent > 0, ranks > 1);
    }
}

TEST(FoldingRows, CountThePublishedBlocks) {
  const std::vector<FoldingRow> two = folding_rows(2, {});
  ASSERT_EQ(two.size(), 4u);
  EXPECT_EQ(two[0].sent, 35'651'584);
  EXPECT_EQ(two[1].phase, "backward");
  EXPECT_EQ(folding_rows(4, {.alignment = 512, .residues = 384})[0].sent, 243'007'488);
  EXPECT_THAT(test::thrown_message([] { folding_rows(4, {.residues = 3}); }),
              testing::HasSubstr("each of the 4 ranks of parallel.sequence must have a residue: got 3 residues"));
}

}  // namespace
}  // namespace colossal::cli::folding_rows_test
