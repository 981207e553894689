#include "colossal/base/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace colossal::svg_test {
namespace {

using testing::HasSubstr;

TEST(SvgWriter, WritesIntegersAsTheyAreAndDoublesWithItsDecimals) {
  EXPECT_EQ(SvgWriter().rect("a", 1, 2.25, 3.0, 40), "<rect class='a' x='1' y='2.2' width='3.0' height='40'/>");
  EXPECT_EQ(SvgWriter(2).line("b", 0.5, -1, 1e6, 2.006),
            "<line class='b' x1='0.50' y1='-1' x2='1000000.00' y2='2.01'/>");
  EXPECT_EQ(SvgWriter().number(int64_t{1} << 40), "1099511627776");
}

TEST(SvgWriter, EscapesTextsAndAttributes) {
  const SvgWriter svg;
  EXPECT_EQ(svg.text("a'b", 1, 2, "x < y & \"z\""),
            "<text class='a&#39;b' x='1' y='2'>x &lt; y &amp; &quot;z&quot;</text>");
  EXPECT_EQ(svg.title("</title><script>"), "<title>&lt;/title&gt;&lt;script&gt;</title>");
  EXPECT_EQ(svg.element("svg", {{"aria-label", std::string("'/>")}}), "<svg aria-label='&#39;/&gt;'/>");
}

TEST(SvgWriter, PutsContentInsideAsMarkup) {
  const SvgWriter svg;
  EXPECT_EQ(svg.rect("a", 1, 2, 3, 4, svg.title("t")),
            "<rect class='a' x='1' y='2' width='3' height='4'><title>t</title></rect>");
  EXPECT_EQ(svg.moved(5, 2.5, svg.circle("c", 3, 1, 2) + svg.element("g", {}, "")),
            "<g transform='translate(5 2.5)'><circle class='c' r='3' cx='1' cy='2'/><g></g></g>");
}

TEST(SvgWriter, KeepsTheOrderOfAttributes) {
  EXPECT_EQ(SvgWriter().line_across("grid", 1, 9, 4.5), "<line class='grid' x1='1' x2='9' y1='4.5' y2='4.5'/>");
  EXPECT_EQ(SvgWriter().element("line", {{"y1", 1}, {"class", "c"}, {"x1", 2}}), "<line y1='1' class='c' x1='2'/>");
}

TEST(SvgWriter, JoinsCommandsOfAPath) {
  const SvgWriter svg;
  EXPECT_EQ(svg.path("line", svg.point('M', 1.0, 2.0) + svg.point('L', 3, 4.04) + "Z"),
            "<path class='line' d='M1.0 2.0L3 4.0Z'/>");
}

TEST(SvgWriter, WritesAWholeFile) {
  const std::string picture = SvgWriter().document(200, 40.5, ".a>b{fill:red}", "<g></g>");
  EXPECT_THAT(picture, testing::StartsWith("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 200 40.5' width='200' "
                                           "height='40.5'><style>.a>b{fill:red}</style>"));
  EXPECT_THAT(picture, HasSubstr("<rect width='100%' height='100%' fill='#fff'/>"));
  EXPECT_THAT(picture, testing::EndsWith("<g></g></svg>\n"));
}

}  // namespace
}  // namespace colossal::svg_test
