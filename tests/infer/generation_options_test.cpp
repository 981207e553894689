#include "colossal/infer/generation_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/config.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/infer/prompts/lines.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::infer::generation_options_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(GenerationOptions, OverrideTheCallersDefaults) {
  GenerationOptions options{.max_tokens = 7, .sampling = {.temperature = 0.5, .seed = 3}, .stop = {"\n"}};
  const auto given = read_json(nlohmann::ordered_json::parse(R"({"top_k": 4, "seed": 9})"), options, "generate");
  EXPECT_THAT(given, ElementsAre("top_k", "seed"));
  EXPECT_EQ(options.max_tokens, 7);
  EXPECT_EQ(options.sampling.temperature, 0.5);
  EXPECT_EQ(options.sampling.seed, 9);
  EXPECT_THAT(options.stop, ElementsAre("\n"));
  EXPECT_THAT(changed_options(options), ElementsAre("max_tokens", "temperature", "top_k", "stop", "seed"));
  EXPECT_TRUE(changed_options({}).empty());
}

TEST(GenerationOptions, RefuseInvalidValues) {
  const auto refusal = [](const GenerationOptions& options) { return test::thrown_message([&] { options.check(); }); };
  EXPECT_EQ(refusal({}), "");
  EXPECT_THAT(refusal({.max_tokens = -1}), HasSubstr("max_tokens must not be negative"));
  EXPECT_THAT(refusal({.attention_sinks = -2}), HasSubstr("at least 0, or -1 = off"));
  EXPECT_THAT(refusal({.sampling = {.top_p = 0}}), HasSubstr("top_p must lie in (0, 1]"));
  EXPECT_THAT(refusal({.stop = {""}}), HasSubstr("a stop string must be UTF-8 text and not empty"));
  EXPECT_THAT(refusal({.json_schema = "[]"}), HasSubstr("must be a JSON object"));
}

TEST(GenerationOptions, RefuseUnusedOptionsByName) {
  EXPECT_EQ(test::thrown_message([] {
              refuse_unused({"top_k", "attention_sinks"}, {"attention_sinks", "draft_tokens"}, "t5", "generate");
            }),
            "[generate] t5 does not use attention_sinks: leave out --attention-sinks");
  EXPECT_EQ(test::thrown_message([] { refuse_unused({"top_k"}, {"attention_sinks"}, "t5", "generate"); }), "");
}

// Each option has one description for servers, help pages and configs.
TEST(GenerationOptions, DescribeEachOptionOnce) {
  std::vector<std::string> names;
  for (const KeyHelp& key : describe_config(GenerationOptions())) {
    names.push_back(key.key);
    EXPECT_NE(key.meaning, "") << key.key;
  }
  EXPECT_THAT(names, ElementsAre("attention_sinks", "max_tokens", "temperature", "top_k", "top_p", "min_p",
                                 "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "stop",
                                 "seed", "json_schema", "logprobs", "prompt_logprobs"));
}

TEST(PromptLines, AcceptEveryOptionAndCountSeeds) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write(
      "p.jsonl", "{\"prompt\": \"a\", \"attention_sinks\": 2, \"id\": [1]}\n\n{\"prompt\": \"b\", \"seed\": 9}\n");
  const auto lines = read_prompts(path, {.sampling = {.seed = 4}});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].options.attention_sinks, 2);
  EXPECT_EQ(lines[0].options.sampling.seed, 4);
  EXPECT_EQ(lines[0].id.dump(), "[1]");
  EXPECT_EQ(lines[1].options.attention_sinks, -1);
  EXPECT_EQ(lines[1].options.sampling.seed, 9);
  const auto plain = read_prompts(folder.write("p.txt", "{\"prompt\"\nb\n"), {.sampling = {.seed = 4}});
  EXPECT_EQ(plain[0].prompt, "{\"prompt\"");
  EXPECT_EQ(plain[1].options.sampling.seed, 5);
}

TEST(PromptLines, NameTheLineOfAnError) {
  const test::TemporaryFolder folder;
  const auto refusal = [&](const std::string& text) {
    return test::thrown_message([&] { read_prompts(folder.write("p.jsonl", text), {}); });
  };
  EXPECT_THAT(refusal("{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"temprature\": 1}"),
              HasSubstr("line 2: unknown option temprature, did you mean `temperature`?"));
  EXPECT_THAT(refusal("{\"prompt\": \"a\", \"logit_bias\": {\"x\": 1}}"),
              HasSubstr("line 1: logit_bias must have numbers by their ids: got x"));
  EXPECT_THAT(refusal("{\"prompt\": \"a\", \"max_tokens\": -1}"), HasSubstr("max_tokens must not be negative: got -1"));
  EXPECT_THAT(refusal("{\"prompt\": 3}"), HasSubstr("an object with a string \"prompt\""));
  EXPECT_THAT(refusal("\n"), HasSubstr("the file of prompts is empty"));
}

}  // namespace
}  // namespace colossal::infer::generation_options_test
