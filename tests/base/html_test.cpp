#include "colossal/base/html.h"

#include <gtest/gtest.h>

#include <string>

namespace colossal::html_test {
namespace {

TEST(HtmlText, EscapesMarkup) {
  EXPECT_EQ(html_text("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(html_text("&lt;"), "&amp;lt;") << "text that is escaped already is text";
}

TEST(HtmlText, ReplacesInvalidUtf8) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(html_text("\xC3\xBC \xE2\x82\xAC \xF0\x9F\x98\x80\n\t"), "\xC3\xBC \xE2\x82\xAC \xF0\x9F\x98\x80\n\t");
  EXPECT_EQ(html_text("\xC3"), bad) << "cut short";
  EXPECT_EQ(html_text("\x80z"), bad + "z") << "continuation without a start";
  EXPECT_EQ(html_text("\xC0\xAF"), bad + bad) << "overlong slash";
  EXPECT_EQ(html_text("\xED\xA0\x80"), bad + bad + bad) << "surrogate";
  EXPECT_EQ(html_text("\xF4\x90\x80\x80"), bad + bad + bad + bad) << "beyond Unicode";
  EXPECT_EQ(html_text(std::string("\0\x7f", 2)), bad + bad);
}

}  // namespace
}  // namespace colossal::html_test
