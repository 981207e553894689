// Every generation option from a flag equals the same option from JSON.
#include "colossal/cli/generation_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "colossal/base/config.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "support/temporary_folder.h"

namespace colossal::cli::generation_flags_test {
namespace {

using nlohmann::ordered_json;

constexpr char kSchema[] = R"({"type":"integer"})";

/// Collects a value of each field that differs from the default: as JSON, and as arguments of its flag.
class Samples : public Fields {
 public:
  explicit Samples(const std::string& schema_file) : schema_file_(schema_file) {}
  struct Sample {
    std::string name;
    ordered_json value;
    Arguments words;
  };
  std::vector<Sample> all;

 private:
  void visit(const Field& field) override {
    const std::string flag = infer::flag_of(field.name);
    if (std::holds_alternative<int64_t*>(field.value))
      all.push_back({field.name, 3, {flag, "3"}});
    else if (std::holds_alternative<double*>(field.value))
      all.push_back({field.name, 0.75, {flag, "0.75"}});
    else if (std::holds_alternative<std::vector<std::string>*>(field.value))
      all.push_back({field.name, {"a", "b c"}, {flag, "a", flag, "b c"}});
    else if (std::holds_alternative<std::map<int64_t, double>*>(field.value))
      all.push_back({field.name, {{"7", -1.5}, {"50256", 2}}, {flag, "50256=2", flag, "7=-1.5"}});
    else if (field.is_json)
      all.push_back({field.name, ordered_json::parse(kSchema), {flag, schema_file_}});
    else
      ADD_FAILURE() << field.name << ": a kind of field that this test does not know";
  }
  void visit_rest(ConfigDocument&) override {}
  void enter(const char*, const char*, const char*) override {}
  void leave() override {}
  std::string schema_file_;
};

std::string toml_of(const infer::GenerationOptions& options) { return to_toml(options); }

TEST(GenerationFlags, EqualOptionsFromJson) {
  const test::TemporaryFolder folder;
  Samples samples(folder.write("schema.json", kSchema));
  infer::GenerationOptions().fields(samples);
  ASSERT_EQ(samples.all.size(), 15U);
  for (const Samples::Sample& sample : samples.all) {
    infer::GenerationOptions by_flag, by_json;
    CLI::App app("", "test");
    add_generation_flags(app, by_flag);
    parse(app, sample.words);
    EXPECT_EQ(given_names(app, {"seed", sample.name, "draft_tokens"}),
              sample.name == "seed" ? std::vector<std::string>({"seed", "seed"}) : std::vector{sample.name});
    EXPECT_EQ(read_json({{sample.name, sample.value}}, by_json, "test"), std::vector{sample.name});
    EXPECT_EQ(toml_of(by_flag), toml_of(by_json)) << sample.name;
    EXPECT_EQ(infer::changed_options(by_flag), std::vector{sample.name});
  }
}

TEST(GenerationFlags, DifferPerCommand) {
  infer::GenerationOptions options{.max_tokens = 1024};
  CLI::App app("", "test");
  add_generation_flags(app, options,
                       {.left_out = {"logprobs"}, .max_tokens_help = "tokens of an answer", .min_tokens = 1});
  const std::string help = app.help();
  EXPECT_THAT(help, testing::HasSubstr("tokens of an answer"));
  EXPECT_THAT(help, testing::HasSubstr("--max-tokens INT:POSITIVE=1024"));
  EXPECT_THAT(help, testing::Not(testing::HasSubstr("--logprobs")));
  EXPECT_THAT(help, testing::HasSubstr("--prompt-logprobs"));
  EXPECT_THROW(parse(app, {"--max-tokens", "0"}), UsageError);
  EXPECT_THROW(parse(app, {"--attention-sinks", "-1"}), UsageError);
}

}  // namespace
}  // namespace colossal::cli::generation_flags_test
