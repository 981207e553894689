// Samples packed into rows.
#include "colossal/data/chats/packing.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "support/thrown_message.h"

namespace colossal::data::packing_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Rows = std::vector<std::vector<size_t>>;

TEST(Packing, EqualsTheGoldenRows) {
  std::vector<int64_t> sizes = {9, 3, 7, 2, 5, 6, 14};
  for (int64_t& size : sizes) size = std::min<int64_t>(size, 12);  // the caller cuts what is longer
  EXPECT_THAT(best_fit(sizes, 12),
              ElementsAre(ElementsAre(6), ElementsAre(0, 1), ElementsAre(2, 4), ElementsAre(5, 3)));
}

TEST(Packing, PlacesEqualSamplesInTheirOrder) {
  EXPECT_THAT(best_fit({4, 4, 4, 2, 2, 2}, 6), ElementsAre(ElementsAre(0, 3), ElementsAre(1, 4), ElementsAre(2, 5)));
  EXPECT_THAT(best_fit({6, 5, 3, 1}, 8), ElementsAre(ElementsAre(0, 3), ElementsAre(1, 2)));  // 5 + 3 fills its row
  EXPECT_EQ(best_fit({}, 6), Rows());
}

TEST(Packing, KeepsSamplesWhole) {
  constexpr int64_t kCapacity = 64;
  std::vector<int64_t> sizes;
  for (uint64_t i = 0; i < 1000; ++i) sizes.push_back(1 + static_cast<int64_t>(derive_seed(7, i) % kCapacity));
  std::vector<int> seen(sizes.size());
  int64_t tokens = 0;
  const Rows rows = best_fit(sizes, kCapacity);
  for (const auto& row : rows) {
    int64_t filled = 0;
    for (const size_t sample : row) filled += sizes[sample], ++seen[sample];
    EXPECT_LE(filled, kCapacity);
    tokens += filled;
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 1000);
  // Best-fit decreasing needs at most 11/9 of the fewest rows, plus 4 (Johnson 1973); the tokens alone need this many.
  EXPECT_LE(static_cast<int64_t>(rows.size()) * 9, ((tokens + kCapacity - 1) / kCapacity) * 11 + 4 * 9);
}

TEST(Packing, RefusesSamplesThatFitNoRow) {
  EXPECT_THAT(test::thrown_message([] { best_fit({3, 13}, 12); }), HasSubstr("must have 1 to 12 tokens: got 13"));
  EXPECT_THAT(test::thrown_message([] { best_fit({0}, 12); }), HasSubstr("got 0"));
}

}  // namespace
}  // namespace colossal::data::packing_test
