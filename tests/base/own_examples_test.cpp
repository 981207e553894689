// Examples that extend the library from outside: each stays small, and no source of the library knows of it. That is
// what the rows of CONTRIBUTING with the edits "none" promise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "support/paths.h"

namespace colossal::own_examples_test {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

struct Example {
  const char* folder;
  int64_t lines;                   ///< limit of all its files together
  std::vector<std::string> names;  ///< of its models, objectives, tables and keys
};

const std::vector<Example> kExamples{
    {"own_layer", 200, {"hybrid", "hybrid-tiny"}},
    {"own_streams", 260, {"streams", "streams-tiny"}},
    {"own_teacher", 250, {"distill", "distillation", "teacher"}},
};

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  return files;
}

/// Returns the files of `folder` that name `names` in their code, as text in quotes.
std::vector<std::string> readers_of(const std::vector<std::string>& names, const fs::path& folder) {
  std::vector<std::string> readers;
  for (const fs::path& file : files_below(folder)) {
    const std::string text = read_file(file, 1 << 20);
    for (const std::string& name : names)
      for (size_t at = text.find('"' + name + '"'); at != text.npos; at = text.find('"' + name + '"', at + 1)) {
        const size_t line = text.rfind('\n', at) + 1;  // npos + 1 = 0 in the first line
        if (text.substr(line, at - line).find("//") == text.npos) readers.push_back(concat(file.string(), ": ", name));
      }
  }
  return readers;
}

TEST(OwnExamples, NeedNoEditOfTheLibrary) {
  for (const Example& example : kExamples)
    EXPECT_THAT(readers_of(example.names, test::source_dir() + "/src"), IsEmpty()) << example.folder;
}

TEST(OwnExamples, NameThemselvesInTheirFolders) {
  for (const Example& example : kExamples)
    for (const std::string& name : example.names)
      EXPECT_FALSE(readers_of({name}, fs::path(test::source_dir()) / "examples" / example.folder).empty())
          << example.folder << " does not have " << name << ", so NeedNoEditOfTheLibrary looks for nothing";
}

TEST(OwnExamples, StaySmall) {
  for (const Example& example : kExamples) {
    int64_t lines = 0;
    for (const fs::path& file : files_below(fs::path(test::source_dir()) / "examples" / example.folder)) {
      const std::string text = read_file(file, 1 << 20);
      lines += std::count(text.begin(), text.end(), '\n');
    }
    EXPECT_LE(lines, example.lines) << example.folder;
  }
}

}  // namespace
}  // namespace colossal::own_examples_test
