// The modes of `colossal bench diffusion` whose ranks share a picture or a clip.
#include "colossal/cli/bench/diffusion_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thrown_message.h"

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

// Two frames and four places of a rank, and four features of a head.
TEST(TwoAxesRows, CountWhatTheFormulasSay) {
  for (const int64_t ranks : {2, 3}) {
    const DiffusionRow dsp = two_axes_mode(ranks, "dsp").at(0), ulysses = two_axes_mode(ranks, "ulysses").at(0),
                       ring = two_axes_mode(ranks, "ring").at(0);
    const int64_t state = (2 * ranks) * (4 * ranks) * (4 * ranks);
    EXPECT_EQ(dsp.sent, 2 * (ranks - 1) * state / ranks);
    EXPECT_EQ(ulysses.sent, 2 * dsp.sent);
    EXPECT_EQ(ring.sent, ranks * dsp.sent);
    for (const DiffusionRow& row : {dsp, ulysses, ring}) {
      EXPECT_EQ(row.sent, row.formula) << row.mode;
      EXPECT_EQ(row.ranks, ranks) << row.mode;
    }
  }
  EXPECT_EQ(two_axes_mode(2, "dsp").at(0).what, "STDiT pair, 4 frames of 8 places");
  EXPECT_THAT(test::thrown_message([] { two_axes_mode(2, "usp"); }), testing::HasSubstr("dsp, ulysses or ring"));
}

}  // namespace
}  // namespace colossal::cli::diffusion_rows_test
