#include "colossal/serve/request_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "support/temporary_folder.h"

namespace colossal::serve::request_defaults_test {
namespace {

using ::testing::HasSubstr;

FolderOptions folder_with(const std::string& config) {
  const test::TemporaryFolder folder;
  folder.write("generation_config.json", config);
  return read_folder_options(folder.path());
}

TEST(RequestDefaults, FallBackToOpenAis) {
  const RequestDefaults defaults = request_defaults({}, {});
  EXPECT_EQ(defaults.options.sampling.temperature, 1);
  EXPECT_EQ(defaults.options.sampling.top_p, 1);
  EXPECT_FALSE(defaults.max_tokens);
  EXPECT_FALSE(defaults.has_seed);
}

TEST(RequestDefaults, ComeFromTheFolderBeforeOpenAis) {
  const RequestDefaults defaults = request_defaults(
      {}, {}, folder_with(R"({"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1,
                              "max_new_tokens": 2048, "do_sample": false, "bos_token_id": 1})"));
  const infer::SamplingOptions& sampling = defaults.options.sampling;
  EXPECT_EQ(sampling.temperature, 0.7);
  EXPECT_EQ(sampling.top_p, 0.8);
  EXPECT_EQ(sampling.top_k, 20);
  EXPECT_EQ(sampling.min_p, 0.1);
  EXPECT_EQ(sampling.repetition_penalty, 1.1);
  EXPECT_EQ(defaults.max_tokens, 2048);
}

TEST(RequestDefaults, ComeFromTheCommandLineBeforeTheFolder) {
  infer::GenerationOptions command_line{.max_tokens = 9};
  command_line.sampling.temperature = 0;
  command_line.sampling.seed = 5;
  const FolderOptions folder{.temperature = 0.7, .top_p = 0.8, .max_new_tokens = 2048};
  const RequestDefaults defaults = request_defaults(command_line, {"temperature", "max_tokens", "seed"}, folder);
  EXPECT_EQ(defaults.options.sampling.temperature, 0);
  EXPECT_EQ(defaults.options.sampling.top_p, 0.8);
  EXPECT_EQ(defaults.options.sampling.seed, 5);
  EXPECT_EQ(defaults.max_tokens, 9);
  EXPECT_TRUE(defaults.has_seed);
}

TEST(RequestDefaults, IgnoreOptionsThatTheUserDidNotGive) {
  const RequestDefaults defaults = request_defaults({.max_tokens = 100}, {}, {.temperature = 0.7});
  EXPECT_EQ(defaults.options.sampling.temperature, 0.7);
  EXPECT_FALSE(defaults.max_tokens);
}

TEST(RequestDefaults, NeedNoFile) {
  const test::TemporaryFolder folder;
  EXPECT_FALSE(read_folder_options(folder.path()).temperature);
}

TEST(RequestDefaults, RefuseDamagedFilesByName) {
  for (const char* config :
       {"[]", "{", R"({"temperature": "hot"})", R"({"top_k": 1.5})", R"({"top_p": 2})", R"({"max_new_tokens": 0})"}) {
    try {
      folder_with(config);
      ADD_FAILURE() << config;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("generation_config.json")) << config;
    }
  }
}

}  // namespace
}  // namespace colossal::serve::request_defaults_test
