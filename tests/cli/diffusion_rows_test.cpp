// The mode `rows` of `colossal bench diffusion`.
#include "colossal/cli/bench/diffusion_rows.h"

#include <gtest/gtest.h>

namespace colossal::cli::diffusion_rows_test {
namespace {

TEST(DiffusionRows, CountsWhatTheFormulaSays) {
  const DiffusionRow two = rows_mode(2).at(0), three = rows_mode(3).at(0);
  EXPECT_EQ(two.ranks, 2);
  EXPECT_EQ(two.mode, "rows");
  EXPECT_EQ(two.what, "decode 1024 px");
  EXPECT_GT(two.sent, 8'127'488);  // the halos alone
  EXPECT_EQ(three.sent, 2 * two.sent);
  EXPECT_EQ(two.sent, two.formula);
  EXPECT_EQ(three.sent, three.formula);
}

}  // namespace
}  // namespace colossal::cli::diffusion_rows_test
