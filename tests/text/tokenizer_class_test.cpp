// The changes that the classes of transformers make to a tokenizer.json, as tests/interop/tokenizer_config_interop.py
// finds them.
#include "colossal/text/tokenizers/tokenizer_class.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "support/temporary_folder.h"

namespace colossal::text::tokenizer_class_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::ThrowsMessage;

json file_with(const char* section, const json& value) {
  json file{{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"<s>", 2}}}, {"merges", json::array()}}},
            {"added_tokens", {{{"id", 2}, {"content", "<s>"}, {"special", true}}}}};
  file[section] = value;
  return file;
}

json read(const json& file, const json& config, const json& model = json::object()) {
  return as_its_class_reads(file, config, model, "x/tokenizer.json");
}

const json kByteLevel{{"type", "ByteLevel"}, {"add_prefix_space", true}};
const json kLower{{"type", "BertNormalizer"}, {"lowercase", true}};

TEST(TokenizerClass, SetsBertNormalizerFromTheConfig) {
  const json file = file_with("normalizer", kLower);
  const auto flag = [&](const json& config, const char* key) { return read(file, config)["normalizer"][key]; };
  EXPECT_EQ(flag({{"tokenizer_class", "BertTokenizer"}}, "lowercase"), true);
  EXPECT_EQ(flag({{"tokenizer_class", "BertTokenizerFast"}, {"do_lower_case", false}}, "lowercase"), false);
  EXPECT_EQ(flag({{"tokenizer_class", "DistilBertTokenizer"}, {"strip_accents", false}}, "strip_accents"), false);
  EXPECT_EQ(flag({{"tokenizer_class", "BertTokenizer"}, {"tokenize_chinese_chars", false}}, "handle_chinese_chars"),
            false);
  EXPECT_EQ(flag({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"do_lower_case", false}}, "lowercase"), true)
      << "this class takes the file as it is";
  EXPECT_EQ(flag({{"do_lower_case", false}}, "lowercase"), true) << "no class";
  EXPECT_EQ(read(file, {{"do_lower_case", false}}, {{"model_type", "bert"}})["normalizer"]["lowercase"], false);
}

TEST(TokenizerClass, SetsPrefixSpaceOfByteLevelFromTheConfig) {
  const json file = file_with("pre_tokenizer", kByteLevel);
  const auto prefix = [&](const json& config, const json& model = json::object()) {
    return read(file, config, model)["pre_tokenizer"]["add_prefix_space"];
  };
  EXPECT_EQ(prefix({{"tokenizer_class", "GPT2Tokenizer"}}), false);
  EXPECT_EQ(prefix({{"tokenizer_class", "GPT2Tokenizer"}, {"add_prefix_space", true}}), true);
  EXPECT_EQ(prefix({{"tokenizer_class", "GPT2Tokenizer"}}, {{"model_type", "stablelm"}}), true)
      << "models of this type take the file as it is";
  EXPECT_EQ(prefix({{"tokenizer_class", "PreTrainedTokenizerFast"}}, {{"model_type", "qwen2"}}), false)
      << "models of this type have their own class";
  EXPECT_EQ(prefix({{"tokenizer_class", "LlamaTokenizer"}}), true) << "no class of LLaMA's reads bytes";
  const json parts{{"type", "Sequence"}, {"pretokenizers", json::array({kByteLevel})}};
  const json made = read(file_with("pre_tokenizer", parts), {{"tokenizer_class", "GPT2Tokenizer"}})["pre_tokenizer"];
  EXPECT_EQ(made["pretokenizers"][0]["add_prefix_space"], false);
}

TEST(TokenizerClass, SplitsLlamaByPrefixSpaceAndLegacy) {
  const json file = file_with("normalizer", {{"type", "Prepend"}, {"prepend", "\u2581"}});
  const auto scheme = [&](json config) {
    config["tokenizer_class"] = "LlamaTokenizer";
    const json made = read(file, config);
    EXPECT_TRUE(made["normalizer"].is_null());
    return made["pre_tokenizer"]["prepend_scheme"];
  };
  EXPECT_EQ(scheme({}), "first");
  EXPECT_EQ(scheme({{"legacy", true}}), "always");
  EXPECT_EQ(scheme({{"legacy", true}, {"add_prefix_space", false}}), "never");
}

TEST(TokenizerClass, IgnoresAddBosTokenOfTheConfig) {
  const json around{{"type", "BertProcessing"}, {"cls", {"<s>", 2}}, {"sep", {"<s>", 2}}};
  const json file = file_with("post_processor", around);
  EXPECT_EQ(read(file, {{"tokenizer_class", "GPT2Tokenizer"}, {"add_bos_token", false}})["post_processor"], around);
  EXPECT_TRUE(read(file, {{"tokenizer_class", "GPTNeoXTokenizer"}})["post_processor"].is_null());
}

TEST(TokenizerClass, AppliesOptionsOfAddedTokens) {
  const json file = file_with("pre_tokenizer", kByteLevel);
  const auto added = [&](const json& tokens, const char* name = "PreTrainedTokenizerFast") {
    return read(file, {{"tokenizer_class", name}, {"added_tokens_decoder", tokens}})["added_tokens"];
  };
  const json plain{{"content", "<s>"}, {"special", true}}, wide{{"content", "<s>"}, {"lstrip", true}};
  EXPECT_EQ(added({{"2", wide}}), (json{{{"content", "<s>"}, {"lstrip", true}, {"id", 2}}}));
  EXPECT_EQ(added({{"2", plain}, {"3", {{"content", "x"}}}})[1], (json{{"content", "x"}, {"id", 3}}));
  EXPECT_EQ(added({{"0", {{"content", "a"}}}})[1]["id"], 0) << "a token of the vocabulary";
  EXPECT_EQ(added(json::object()).size(), 1u);
  for (const auto& [tokens, message] :
       std::vector<std::pair<json, const char*>>{{{{"1", plain}}, "must give <s> its id in x/tokenizer.json, 2: got 1"},
                                                 {{{"5", {{"content", "x"}}}}, "json, 3: got 5"},
                                                 {{{"x", plain}}, "must be ids: got x"},
                                                 {json::array({1}), "must be an object: got array"}})
    EXPECT_THAT([&] { added(tokens); }, ThrowsMessage<Error>(HasSubstr(message)));
  EXPECT_THAT([&] { added(json::object(), "GPT2Tokenizer"); },
              ThrowsMessage<Error>(HasSubstr("<s> of x/tokenizer.json must be in added_tokens_decoder")));
  EXPECT_EQ(added(json::object(), "LlamaTokenizer").size(), 1u) << "the file has ByteLevel";
  EXPECT_EQ(added(json::object(), "RobertaTokenizer").size(), 1u) << "the class names this token";
}

TEST(TokenizerClass, NamesTheClassOfAFile) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("tokenizer.json", file_with("normalizer", kLower).dump());
  EXPECT_EQ(class_that_reads(file, json::object()), "PreTrainedTokenizerFast");
  EXPECT_EQ(class_that_reads(file, {{"tokenizer_class", "GPT2TokenizerFast"}}), "GPT2Tokenizer");
  EXPECT_EQ(class_that_reads(file, {{"tokenizer_class", "FunnelTokenizer"}}), "") << "not known here";
  folder.write("config.json", R"({"model_type": "bert"})");
  EXPECT_EQ(class_that_reads(file, json::object()), "BertTokenizer");
}

TEST(TokenizerClass, RefusesKeysByName) {
  const json file = file_with("normalizer", kLower);
  const auto refuses = [&](const json& config, const char* message) {
    EXPECT_THAT([&] { read(file, config); }, ThrowsMessage<Error>(HasSubstr(message))) << config;
  };
  const char* other = "FunnelTokenizer";
  refuses({{"tokenizer_class", other}, {"do_lower_case", false}},
          "do_lower_case in tokenizer_config.json must equal that of");
  refuses({{"tokenizer_class", other}, {"strip_accents", false}}, "strip_accents");
  refuses({{"tokenizer_class", other}, {"tokenize_chinese_chars", false}}, "tokenize_chinese_chars");
  refuses({{"tokenizer_class", other}, {"add_prefix_space", true}}, "add_prefix_space");
  refuses({{"split_special_tokens", true}}, "split_special_tokens");
  refuses({{"tokenizer_class", "BertTokenizer"}, {"do_lower_case", "no"}}, "must be true or false: got \"no\"");
  refuses({{"tokenizer_class", "GPT2Tokenizer"}, {"add_prefix_space", true}}, "has no ByteLevel pre_tokenizer");
  EXPECT_EQ(read(file, {{"tokenizer_class", other}, {"do_lower_case", true}, {"add_prefix_space", nullptr}}), file);
}

}  // namespace
}  // namespace colossal::text::tokenizer_class_test
