// Records of comma-separated values, and lines that are none.
#include "colossal/data/texts/csv.h"

#include <gmock/gmock.h>

#include "support/thrown_message.h"

namespace colossal::data::csv_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Fields = std::vector<std::string>;

std::vector<Fields> read(const std::string& text) {
  CsvReader reader(text, "a.csv");
  std::vector<Fields> records;
  for (Fields fields; reader.next(fields);) records.push_back(fields);
  return records;
}

TEST(Csv, SeparatesFieldsAndRecords) {
  EXPECT_THAT(read(""), ElementsAre());
  EXPECT_THAT(read("a,b\nc,d"), ElementsAre(Fields{"a", "b"}, Fields{"c", "d"}));
  EXPECT_THAT(read("\xef\xbb\xbf"
                   "a,b\r\n\r\n\nc,\r\n,d\n"),
              ElementsAre(Fields{"a", "b"}, Fields{"c", ""}, Fields{"", "d"}));
  EXPECT_THAT(read(" a , b \n"), ElementsAre(Fields{" a ", " b "})) << "blanks belong to fields";
}

TEST(Csv, TakesQuotedFieldsWhole) {
  EXPECT_THAT(read("a,\"b, \"\"c\"\"\nd\"\r\n\"\",\"e\""), ElementsAre(Fields{"a", "b, \"c\"\nd"}, Fields{"", "e"}));
}

TEST(Csv, CountsLinesWithinFields) {
  CsvReader reader("a\n\n\"b\nc\nd\"\ne\n", "a.csv");
  std::vector<int64_t> lines;
  for (Fields fields; reader.next(fields);) lines.push_back(reader.line());
  EXPECT_THAT(lines, ElementsAre(1, 3, 6));
}

TEST(Csv, RefusesLooseQuotesAndContinuesWithTheNextLine) {
  for (const auto& [text, why] : {std::pair{"a\nb\"c,d\ne", "a.csv:2: a quote is inside a field"},
                                  std::pair{"a\n\"b\"c,d\ne", "a.csv:2: text follows the quote that ends a field"},
                                  std::pair{"a\n\"b,c\ne", "a.csv:2: the quote that ends a field is missing"}}) {
    CsvReader reader(text, "a.csv");
    Fields fields;
    EXPECT_TRUE(reader.next(fields));
    EXPECT_THAT(test::thrown_message([&] { reader.next(fields); }), HasSubstr(why));
    EXPECT_TRUE(reader.next(fields));
    EXPECT_THAT(fields, ElementsAre("e"));
    EXPECT_EQ(reader.line(), 3);
    EXPECT_FALSE(reader.next(fields));
  }
}

}  // namespace
}  // namespace colossal::data::csv_test
