// Flags and members of prompt lines that are also read by their names of the previous release.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/cli/arguments.h"
#include "colossal/infer/generation_options.h"
#include "support/thrown_message.h"

namespace colossal::cli::renamed_flags_test {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Renamed {
  std::string previous, now;
  std::string warning() const { return "colossal: " + previous + " is now " + now + "\n"; }
};

const std::vector<Renamed>& renamed_flags() {
  static const std::vector<Renamed> flags{{"--guess", "--draft-tokens"}, {"--sinks", "--attention-sinks"},
                                          {"--cache", "--kv-cache"},     {"--cache-type", "--kv-cache-dtype"},
                                          {"--minima", "--zero-points"}, {"--group", "--group-size"}};
  return flags;
}

/// The message of the UsageError of parse(), empty if there was none, and the text that it printed on stderr.
struct Parsed {
  std::string error, printed;
};

Parsed parsed(CLI::App& app, const Arguments& words) {
  Parsed result;
  testing::internal::CaptureStderr();
  try {
    parse(app, words);
  } catch (const UsageError& error) {
    result.error = error.what();
  }
  result.printed = testing::internal::GetCapturedStderr();
  return result;
}

TEST(RenamedFlags, WarnAndWork) {
  for (const Renamed& flag : renamed_flags())
    for (const Arguments& words : {Arguments{flag.previous, "7"}, Arguments{flag.previous + "=7"}}) {
      SCOPED_TRACE(words.front());
      std::string value;
      CLI::App app("", "colossal test");
      app.add_option(flag.now, value);
      const Parsed result = parsed(app, words);
      EXPECT_EQ(result.error, "");
      EXPECT_EQ(result.printed, flag.warning());
      EXPECT_EQ(value, "7");
      EXPECT_THAT(given_options(app, {flag.now}), ElementsAre(flag.now));
    }
}

TEST(RenamedFlags, NeedNoValueIfTheOptionTakesNone) {
  bool is_set = false;
  CLI::App app("", "colossal quantize");
  app.add_flag("--zero-points", is_set);
  EXPECT_EQ(parsed(app, {"--minima"}).printed, "colossal: --minima is now --zero-points\n");
  EXPECT_TRUE(is_set);
}

TEST(RenamedFlags, MatchWholeNames) {
  std::string size, type;
  CLI::App app("", "colossal test");
  app.add_option("--kv-cache", size);
  app.add_option("--kv-cache-dtype", type);
  const Parsed result = parsed(app, {"--cache-type", "int8", "--cache=1MiB"});
  EXPECT_EQ(result.error, "");
  EXPECT_THAT(result.printed,
              AllOf(HasSubstr("--cache is now --kv-cache\n"), HasSubstr("--cache-type is now --kv-cache-dtype\n")));
  EXPECT_EQ(size, "1MiB");
  EXPECT_EQ(type, "int8");
}

TEST(RenamedFlags, RefuseBothNames) {
  for (const Renamed& flag : renamed_flags())
    for (const Arguments& words :
         {Arguments{flag.previous, "7", flag.now, "7"}, Arguments{flag.now + "=7", flag.previous + "=7"}}) {
      std::string value;
      CLI::App app("", "colossal test");
      app.add_option(flag.now, value);
      const Parsed result = parsed(app, words);
      EXPECT_EQ(result.error, "colossal test: " + flag.previous + " is now " + flag.now +
                                  ", and both are given: leave out " + flag.previous);
      EXPECT_EQ(result.printed, "");
    }
}

TEST(RenamedFlags, NeedThePresentOption) {
  for (const Renamed& flag : renamed_flags()) {
    CLI::App app("", "colossal test");
    const Parsed result = parsed(app, {flag.previous});
    EXPECT_THAT(result.error, HasSubstr("unknown option " + flag.previous));
    EXPECT_EQ(result.printed, "");
  }
}

TEST(RenamedFlags, StayOptionsOfAppsThatHaveThem) {
  std::string own, other;
  CLI::App app("", "own");
  app.add_option("--group", own);
  app.add_option("--group-size", other);
  const Parsed result = parsed(app, {"--group", "a", "--group-size", "b"});
  EXPECT_EQ(result.error + result.printed, "");
  EXPECT_EQ(own + other, "ab");
}

TEST(RenamedFlags, ApplyToPromptLines) {
  infer::GenerationOptions options;
  EXPECT_THAT(read_json(ordered_json::parse(R"({"sinks": 2})"), options, "generate"), ElementsAre("attention_sinks"));
  EXPECT_EQ(options.attention_sinks, 2);
  EXPECT_EQ(test::thrown_message(
                [&] { read_json(ordered_json::parse(R"({"attention_sinks": 2, "sinks": 2})"), options, "generate"); }),
            "[generate] sinks is now attention_sinks, and both are given: leave out sinks");
}

}  // namespace
}  // namespace colossal::cli::renamed_flags_test
