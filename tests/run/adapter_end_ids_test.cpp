// The end tokens of an adapter, from the files of its folder.
#include "colossal/run/adapter_end_ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/text/tokenizers/byte.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::adapter_end_ids_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const text::ByteTokenizer kBytes;

std::vector<int64_t> end_ids_of(const test::TemporaryFolder& folder) {
  return end_ids_of_adapter(folder.path(), kBytes, {256});
}

TEST(AdapterEndIds, JoinThoseOfTheModel) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(end_ids_of(folder), ElementsAre(256)) << "a folder of peft without further files";
  folder.write("config.json", R"({"eos_token_id": 3})");
  EXPECT_THAT(end_ids_of(folder), ElementsAre(3, 256));
  folder.write("generation_config.json", R"({"eos_token_id": [10, 256, 7]})");
  EXPECT_THAT(end_ids_of(folder), ElementsAre(7, 10, 256));
}

TEST(AdapterEndIds, KeepTheTokensOfTheModel) {
  const test::TemporaryFolder folder;
  folder.write("generation_config.json", R"({"eos_token_id": 257})");
  EXPECT_THAT(test::thrown_message([&] { end_ids_of(folder); }),
              HasSubstr("whose end token is 257, for a model of 257 tokens"));
}

/// A tokenizer.json whose token 0 has the text `first` and whose token 1 is the end token "<end>".
std::string tokenizer_of(const std::string& first) {
  return R"({"version": "1.0", "added_tokens": [{"id": 1, "content": "<end>", "special": true}], "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {")" +
         first + R"(": 0, "<end>": 1}, "merges": []}})";
}

TEST(AdapterEndIds, IncludeTheEndOfTheTokenizerBesideThem) {
  const test::TemporaryFolder folder, model;
  for (const test::TemporaryFolder* one : {&folder, &model}) {
    one->write("tokenizer.json", tokenizer_of("a"));
    one->write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  }
  const auto own = text::make_tokenizer(model.path());
  EXPECT_THAT(end_ids_of_adapter(folder.path(), *own, {0}), ElementsAre(0, 1));
  EXPECT_THAT(test::thrown_message([&] { end_ids_of(folder); }),
              HasSubstr("an adapter must have the tokens of its model: got " + folder.path() +
                        ", whose end token 1 is '<end>', in the model '"));
}

}  // namespace
}  // namespace colossal::run::adapter_end_ids_test
