// The end tokens that the files of a model define.
#include "colossal/text/end_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::text::end_tokens_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(EndTokens, ReadsEndTokensFromModelFiles) {
  const test::TemporaryFolder folder;
  const auto bytes = make_tokenizer("bytes");  // its end token is 256
  EXPECT_THAT(end_ids("", *bytes), ElementsAre(256));
  EXPECT_THAT(end_ids(folder.path(), *bytes), ElementsAre(256));
  folder.write("config.json", R"({"eos_token_id": 7})");
  EXPECT_THAT(end_ids(folder.path(), *bytes), ElementsAre(7, 256));
  folder.write("generation_config.json", R"({"eos_token_id": null})");
  EXPECT_THAT(end_ids(folder.path(), *bytes), ElementsAre(7, 256));
  folder.write("generation_config.json", R"({"eos_token_id": [9, 3, 9, -1]})");
  EXPECT_THAT(end_ids(folder.path(), *bytes), ElementsAre(3, 9, 256));
  EXPECT_THAT(end_ids(folder.path()), ElementsAre(3, 9));
}

TEST(EndTokens, RefusesValuesThatAreNotIds) {
  const test::TemporaryFolder folder;
  const auto bytes = make_tokenizer("bytes");
  const auto complaint = [&](const std::string& text) {
    folder.write("generation_config.json", text);
    return test::thrown_message([&] { end_ids(folder.path(), *bytes); });
  };
  EXPECT_THAT(complaint("[1]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(complaint("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(complaint(std::string(100000, '[')), HasSubstr("nested too deeply"));
  EXPECT_THAT(complaint(R"({"eos_token_id": "</s>"})"), HasSubstr("must be a token id or a list of them"));
  EXPECT_THAT(complaint(R"({"eos_token_id": [1, 2.5]})"), HasSubstr("must be a token id or a list of them"));
}

}  // namespace
}  // namespace colossal::text::end_tokens_test
