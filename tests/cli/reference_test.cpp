// The generated pages of docs/reference must equal the output of this program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/outcome.h"
#include "colossal/base/config.h"
#include "colossal/base/file.h"
#include "colossal/cli/commands.h"
#include "colossal/models/registry.h"
#include "colossal/run/config.h"
#include "colossal/run/objectives/data_keys.h"
#include "support/paths.h"

namespace colossal::cli::reference_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string page(const std::string& name) { return read_file(test::source_dir() + "/docs/reference/" + name, 1 << 24); }

TEST(Reference, CommandsPageIsCurrent) {
  const Outcome outcome = run_command("help", {"--markdown"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(page("cli.md"), outcome.out)
      << "docs/reference/cli.md is older than the program; run: colossal help --markdown > docs/reference/cli.md";
}

TEST(Reference, ConfigPageIsCurrent) {
  const Outcome outcome = run_command("help", {"config", "--markdown"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(page("config.md"), outcome.out) << "docs/reference/config.md is older than the program; run: "
                                               "colossal help config --markdown > docs/reference/config.md";
}

TEST(Reference, NamesEveryCommand) {
  const std::string text = run_command("help", {"--markdown"}).out;
  for (const Command& command : commands()) {
    EXPECT_THAT(text, HasSubstr(std::string("\n## colossal ") + command.name + "\n"));
    EXPECT_THAT(text, HasSubstr("| [" + std::string(command.name) + "](#colossal-" + command.name + ") | "));
  }
  for (const char* benchmark : {"inference", "memory", "sequence", "tensor-parallel", "zero"})
    EXPECT_THAT(text, HasSubstr(std::string("\n### colossal bench ") + benchmark + "\n"));
}

TEST(Reference, NamesEveryKey) {
  const std::string text = run_command("help", {"config", "--markdown"}).out;
  for (const KeyHelp& key : describe_config(run::Config())) {
    EXPECT_THAT(text, HasSubstr("\n| `" + key.key.substr(key.key.rfind('.') + 1) + "` | ")) << key.key;
    EXPECT_THAT(text, HasSubstr("\n## `[" + key.section + "]`\n")) << key.key;
  }
  for (const KeyHelp& key : run::describe_data_keys(run::built_in_data_keys()))
    EXPECT_THAT(text, HasSubstr("\n| `" + key.key.substr(key.key.rfind('.') + 1) + "` | ")) << key.key;
  EXPECT_THAT(text, HasSubstr("\n## `[data]`: keys of the objectives next-token, masked-token and alignment\n"));
  const models::Registry models = models::built_in();
  for (const auto& architecture : models.architectures()) {
    if (architecture->presets.empty()) continue;
    for (const KeyHelp& key : describe_config(models.resolve({.name = architecture->presets[0].name}).own))
      EXPECT_THAT(text, HasSubstr("\n| `" + key.key + "` | ")) << architecture->name;
  }
}

TEST(Reference, RowsStateValueDefaultAndRelations) {
  const std::string text = run_command("help", {"--markdown"}).out;
  EXPECT_THAT(text, HasSubstr("\n| `--max-tokens` | INT >= 0 | `100` | "));
  EXPECT_THAT(text, HasSubstr("| 1d, 2d, 2.5d, 3d | `1d` | "));
  EXPECT_THAT(text, HasSubstr("\n| `--from` | TEXT, required |  | "));
  EXPECT_THAT(text, HasSubstr("; not with `--overwrite` |\n"));
  EXPECT_THAT(text, HasSubstr("; needs `--chat` |\n"));
  EXPECT_THAT(text, Not(HasSubstr("`--help`")));
}

TEST(Reference, EscapesBarsInCells) { EXPECT_EQ(markdown_cell("a | b\nc"), "a \\| b c"); }

}  // namespace
}  // namespace colossal::cli::reference_test
