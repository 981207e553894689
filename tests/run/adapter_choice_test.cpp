// The flag --adapter.
#include "colossal/run/adapter_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::adapter_choice_test {
namespace {

using testing::HasSubstr;

void expect_choice(const std::string& text, const std::string& name, const std::string& folder, double scale) {
  const AdapterChoice choice = parse_adapter(text);
  EXPECT_EQ(choice.name, name) << text;
  EXPECT_EQ(choice.folder, folder) << text;
  EXPECT_EQ(choice.scale, scale) << text;
}

TEST(AdapterChoice, ReadsNameFolderAndScale) {
  expect_choice("runs/lora", "lora", "runs/lora", 1);
  expect_choice("runs/lora/", "lora", "runs/lora/", 1);
  expect_choice("poet=runs/lora", "poet", "runs/lora", 1);
  expect_choice("runs/lora:0.5", "lora", "runs/lora", 0.5);
  expect_choice("poet=runs/lora:-2", "poet", "runs/lora", -2);
  expect_choice("runs/a=b", "a=b", "runs/a=b", 1);
  expect_choice("poet=runs/a=b", "poet", "runs/a=b", 1);
  expect_choice("runs/lora:fast", "lora:fast", "runs/lora:fast", 1);
}

TEST(AdapterChoice, TakesTheNamesOfFoldersThatExist) {
  test::TemporaryFolder folder;
  for (const std::string name : {"a=b", "lora:2"}) {
    std::filesystem::create_directory(folder / name);
    expect_choice(folder / name, name, folder / name, 1);
  }
  expect_choice((folder / "lora:2") + ":3", "lora:2", folder / "lora:2", 3);
}

TEST(AdapterChoice, RefusesWhatNamesNoFolder) {
  EXPECT_THAT(test::thrown_message([] { parse_adapter(""); }), HasSubstr("got no folder in an empty text"));
  EXPECT_THAT(test::thrown_message([] { parse_adapter("poet="); }), HasSubstr("got no folder in poet="));
  EXPECT_THAT(test::thrown_message([] { parse_adapter("=runs/lora"); }), HasSubstr("got an empty name"));
  EXPECT_THAT(test::thrown_message([] { parse_adapter("runs/lora:inf"); }), HasSubstr("must be a finite number"));
}

}  // namespace
}  // namespace colossal::run::adapter_choice_test
