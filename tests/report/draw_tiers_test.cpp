// The picture of the tensors in host memory.
#include "colossal/report/draw_tiers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace colossal::report::draw_tiers_test {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(DrawTiers, DrawsStaysUsesReadsAndWrites) {
  const std::string picture = draw_tiers({{"auto <1>",
                                           4,
                                           {{.tensor = 7, .begin = 0, .end = 4},
                                            {.tensor = 2, .begin = 1, .end = 2, .was_written = true},
                                            {.tensor = 2, .begin = 3, .end = 4, .was_read = true}},
                                           {{7, 0}, {2, 1}, {2, 3}}},
                                          {"lru", 4, {}, {}}});
  EXPECT_THAT(picture, testing::StartsWith("<svg xmlns="));
  EXPECT_THAT(picture, testing::EndsWith("</svg>\n"));
  EXPECT_THAT(picture, testing::HasSubstr("auto &lt;1&gt;"));
  // Each class occurs once more in the legend; the background of both timelines.
  EXPECT_EQ(count(picture, "class='here'"), 4u);
  EXPECT_EQ(count(picture, "class='use'"), 4u);
  EXPECT_EQ(count(picture, "class='read'"), 2u);
  EXPECT_EQ(count(picture, "class='write'"), 2u);
  EXPECT_EQ(count(picture, "class='back'"), 3u);
  // The four uses fill the whole width; the tensor that is used first has the first row.
  EXPECT_THAT(picture, testing::HasSubstr("<rect class='here' x='16.00' y='64.00' width='1168.00'"));
  EXPECT_THAT(picture, testing::HasSubstr("<rect class='here' x='308.00' y='73.00' width='292.00'"));
}

}  // namespace
}  // namespace colossal::report::draw_tiers_test
