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
  EXPECT_EQ(choice.has_name, text.starts_with(name + "=")) << text;
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

TEST(AdapterChoice, ReadsTheAdaptersOfAServer) {
  const std::vector<AdapterChoice> choices =
      parse_adapters({"poet=runs/lora:0.5", "runs/lora/", "v1.2_a-b:c@d+e=runs/lora"}, "base");
  ASSERT_EQ(choices.size(), 3U);
  EXPECT_EQ(choices[0].name, "poet");
  EXPECT_EQ(choices[0].scale, 0.5);
  EXPECT_EQ(choices[1].name, "lora");
  EXPECT_EQ(choices[2].name, "v1.2_a-b:c@d+e");
  EXPECT_TRUE(parse_adapters({}, "base").empty());
}

TEST(AdapterChoice, RefusesNamesThatChooseNothing) {
  const auto refusal = [](const std::vector<std::string>& texts) {
    return test::thrown_message([&] { parse_adapters(texts, "base"); });
  };
  EXPECT_THAT(refusal({"poet=a", "b/poet"}), HasSubstr("the names of adapters must differ: got poet twice"));
  EXPECT_THAT(refusal({"base=a"}), HasSubstr("must not be that of the model: got base"));
  EXPECT_THAT(refusal({"runs/base"}), HasSubstr("must not be that of the model: got base"));
  for (const char* name : {"a b", "a\"b", "a\nb", "\xc3\xa4", "a*", "a,b"})
    EXPECT_THAT(refusal({std::string(name) + "=runs/lora"}),
                HasSubstr("must have letters, digits and -_.:@+ alone: got "))
        << name;
  EXPECT_THAT(refusal({"runs/my lora"}), HasSubstr("name it with --adapter NAME=runs/my lora"));
  EXPECT_THAT(refusal({"poet="}), HasSubstr("got no folder"));
}

TEST(AdapterChoice, RefusesWhatNamesNoFolder) {
  EXPECT_THAT(test::thrown_message([] { parse_adapter(""); }), HasSubstr("got no folder in an empty text"));
  EXPECT_THAT(test::thrown_message([] { parse_adapter("poet="); }), HasSubstr("got no folder in poet="));
  EXPECT_THAT(test::thrown_message([] { parse_adapter("=runs/lora"); }), HasSubstr("got an empty name"));
  EXPECT_THAT(test::thrown_message([] { parse_adapter("runs/lora:inf"); }), HasSubstr("must be a finite number"));
}

}  // namespace
}  // namespace colossal::run::adapter_choice_test
