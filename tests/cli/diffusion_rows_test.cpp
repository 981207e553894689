// The mode `rows` of `colossal bench diffusion`.
#include "colossal/cli/bench/diffusion_rows.h"

#include <gtest/gtest.h>

namespace colossal::cli::diffusion_rows_test {
namespace {

TEST(DiffusionRows, CountsWhatTheFormulaSaysForEachNumberOfRanksAboveOne) {
  const std::vector<DiffusionRow> rows = rows_mode({1, 2, 3});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].ranks, 2);
  EXPECT_EQ(rows[0].mode, "rows");
  EXPECT_EQ(rows[0].what, "decode 1024 px");
  EXPECT_GT(rows[0].sent, 8'127'488);  // the halos alone
  EXPECT_EQ(rows[1].sent, 2 * rows[0].sent);
  for (const DiffusionRow& row : rows) EXPECT_EQ(row.sent, row.formula) << row.ranks;
}

}  // namespace
}  // namespace colossal::cli::diffusion_rows_test
