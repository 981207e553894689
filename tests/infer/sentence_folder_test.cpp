// Reading a folder of sentence-transformers, and every reason to refuse one.
#include "colossal/infer/embeddings/sentence_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::infer::sentence_folder_test {
namespace {

using ::testing::HasSubstr;

constexpr char kModules[] = R"([
  {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
  {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
  {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])";

class SentenceFolders : public testing::Test {
 protected:
  void SetUp() override {
    folder.write("modules.json", kModules);
    std::filesystem::create_directory(folder / "1_Pooling");
    folder.write("1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false})");
  }
  SentenceFolder read() const { return read_sentence_folder(folder.path()); }
  std::string refusal() const {
    return test::thrown_message([&] { read(); });
  }
  test::TemporaryFolder folder;
};

TEST_F(SentenceFolders, ReadModulesAndOptions) {
  folder.write("sentence_bert_config.json", R"({"max_seq_length": 128, "do_lower_case": false})");
  folder.write("config_sentence_transformers.json",
               R"({"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"})");
  const SentenceFolder read_one = read();
  EXPECT_EQ(read_one.model, folder.path());
  EXPECT_EQ(read_one.pooling, Pooling::Mean);
  EXPECT_TRUE(read_one.normalize);
  EXPECT_EQ(read_one.tokens, 128);
  EXPECT_EQ(read_one.prompts.at("query"), "query: ");
  EXPECT_EQ(read_one.prompt_name, "query");
}

TEST_F(SentenceFolders, ReadOlderAndNewerForms) {
  folder.write("modules.json", R"([{"path": "0_Transformer", "type": "a.b.Transformer"},
                                   {"path": "1_Pooling", "type": "Pooling"}])");
  for (const auto& [config, pooling] : std::vector<std::pair<std::string, Pooling>>{
           {R"({"pooling_mode": "lasttoken"})", Pooling::Last},
           {R"({"pooling_mode": "cls", "include_prompt": true})", Pooling::Cls},
           {R"({"pooling_mode_max_tokens": true})", Pooling::Max},
           {R"({"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": null})", Pooling::Last}}) {
    folder.write("1_Pooling/config.json", config);
    const SentenceFolder read_one = read();
    EXPECT_EQ(read_one.pooling, pooling) << config;
    EXPECT_EQ(read_one.model, folder / "0_Transformer");
    EXPECT_FALSE(read_one.normalize);
    EXPECT_FALSE(read_one.tokens);
  }
  std::filesystem::remove(folder / "modules.json");
  EXPECT_FALSE(read().pooling);
}

TEST_F(SentenceFolders, RefuseUnsupportedModules) {
  for (const auto& [modules, message] : std::vector<std::pair<std::string, std::string>>{
           {"{}", "modules.json must be a list"},
           {"[1, 2]", "must be a list of objects"},
           {"[", "modules.json"},
           {R"([{"type": "Transformer"}])", "got 1 modules"},
           {R"([{"type": 3}, {}])", "type has a value of another type: got 3"},
           {R"([{"type": "Transformer"}, {"type": "Pooling"}, {"type": "a.Dense"}])", "got Dense in place 2"},
           {R"([{"type": "Transformer", "path": "../x"}, {"type": "Pooling"}])", "must lie in the folder: got ../x"},
           {R"([{"type": "Transformer", "path": "/x"}, {"type": "Pooling"}])", "must lie in the folder: got /x"}}) {
    folder.write("modules.json", modules);
    EXPECT_THAT(refusal(), HasSubstr(message)) << modules;
  }
}

TEST_F(SentenceFolders, RefuseUnsupportedPoolings) {
  for (const auto& [config, message] : std::vector<std::pair<std::string, std::string>>{
           {"{}", "got none"},
           {R"({"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true})", "choose one pooling"},
           {R"({"pooling_mode_mean_tokens": true, "pooling_mode_weightedmean_tokens": true})", "weightedmean_tokens"},
           {R"({"pooling_mode": "sum"})", "got sum"},
           {R"({"pooling_mode_mean_tokens": "yes"})", "another type"}}) {
    folder.write("1_Pooling/config.json", config);
    EXPECT_THAT(refusal(), HasSubstr(message)) << config;
  }
  std::filesystem::remove(folder / "1_Pooling/config.json");
  EXPECT_THAT(refusal(), HasSubstr("1_Pooling/config.json"));
}

TEST_F(SentenceFolders, RefuseUnsupportedTextOptions) {
  const auto expect = [&](const std::string& file, const std::string& content, const std::string& message) {
    folder.write(file, content);
    EXPECT_THAT(refusal(), HasSubstr(message)) << content;
    std::filesystem::remove(folder / file);
  };
  expect("sentence_bert_config.json", R"({"do_lower_case": true})", "do_lower_case is not supported");
  expect("sentence_bert_config.json", R"({"max_seq_length": -1})", "must be positive: got -1");
  const std::string prompts = "config_sentence_transformers.json";
  expect(prompts, R"({"prompts": ["a"]})", "prompts has a value of another type");
  expect(prompts, R"({"default_prompt_name": "q"})", "must be one of prompts: got q");
  folder.write("1_Pooling/config.json", R"({"pooling_mode": "mean", "include_prompt": false})");
  expect(prompts, R"({"prompts": {"q": "x"}})", "include_prompt = false");
}

}  // namespace
}  // namespace colossal::infer::sentence_folder_test
