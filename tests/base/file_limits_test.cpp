// Limits of the sources: lines of files and functions, columns of lines, and no empty files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/sources.h"
#include "colossal/base/file.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::file_limits_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kMaxFileLines = 500;      // of a source of the library
constexpr int kMaxTestFileLines = 600;  // of other sources
constexpr size_t kMaxFunctionLines = 60;
constexpr size_t kColumns = 120;
const fs::path kSourceDir = test::source_dir();

std::vector<std::string> files_too_long(const fs::path& root) {
  std::vector<std::string> faults;
  for (const std::string folder : {"src", "tests", "apps", "benchmarks"}) {
    const int limit = folder == "src" ? kMaxFileLines : kMaxTestFileLines;
    for (const auto& file : sources_below(root / folder)) {
      std::ifstream lines(file);
      int count = 0;
      for (std::string line; std::getline(lines, line);) ++count;
      if (count > limit)
        faults.push_back(fs::relative(file, root).string() + " has " + std::to_string(count) + " lines");
    }
  }
  return faults;
}

/// Returns the functions of more than kMaxFunctionLines lines below `folder`. The sources are formatted, so a function
/// begins on a line without indentation, or with two spaces in a class. It ends at the brace in the same column.
std::vector<std::string> functions_too_long(const fs::path& folder) {
  static const std::regex begins(R"rx(( {0,2})[A-Za-z~].*)rx"), is_other(R"rx(\s*(namespace|struct|class|enum)\b.*)rx");
  std::vector<std::string> faults;
  for (const auto& file : sources_below(folder)) {
    std::vector<std::string> lines;
    std::ifstream stream(file);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    for (size_t i = 0; i < lines.size(); ++i) {
      std::smatch match;
      if (!std::regex_match(lines[i], match, begins)) continue;
      const size_t first = i;
      const std::string indent = match[1];
      std::string head = lines[i];
      while (i + 1 < lines.size() && std::string("{;}:").find(lines[i].back()) == std::string::npos &&
             lines[i + 1].starts_with(indent + "    "))
        head += lines[++i];
      if (head.back() != '{' || head.find('(') == std::string::npos || std::regex_match(head, is_other)) continue;
      while (i < lines.size() && !lines[i].starts_with(indent + "}")) ++i;
      if (i - first + 1 > kMaxFunctionLines)
        faults.push_back(fs::relative(file, folder).string() + ":" + std::to_string(first + 1) +
                         " begins a function of " + std::to_string(i - first + 1) + " lines");
    }
  }
  return faults;
}

std::vector<std::string> empty_files(const fs::path& folder) {
  std::vector<std::string> faults;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.file_size() == 0)
      faults.push_back(fs::relative(entry.path(), folder).string() + " is empty");
  }
  return faults;
}

/// Returns the scripts of the project: Python, shell, CMake, and what pages contain.
std::vector<fs::path> scripts_of(const fs::path& root) {
  static const std::set<std::string> endings{".py", ".sh", ".cmake", ".js", ".css"};
  std::vector<fs::path> found;
  const auto add = [&](const fs::directory_entry& entry) {
    const fs::path& file = entry.path();
    const bool is_script = endings.count(file.extension()) || file.filename() == "CMakeLists.txt" ||
                           file.parent_path().filename() == ".ci";
    if (entry.is_regular_file() && is_script) found.push_back(file);
  };
  for (const auto& entry : fs::directory_iterator(root)) add(entry);
  for (const char* folder :
       {"apps", "benchmarks", "cmake", "docs", "examples", "packaging", "python", "src", "tests", ".ci"}) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) add(entry);
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// Returns the lines of more than kColumns columns, except those of raw string literals.
std::vector<std::string> lines_too_wide(const fs::path& root) {
  static const std::regex ends_text(R"rx(\)[a-z]+")rx");
  std::vector<fs::path> files = scripts_of(root);
  for (const char* folder : {"src", "tests", "apps", "benchmarks", "examples"}) {
    for (const auto& file : sources_below(root / folder)) files.push_back(file);
  }
  std::vector<std::string> faults;
  for (const auto& file : files) {
    std::ifstream lines(file);
    bool is_text = false;
    int number = 1;
    for (std::string line; std::getline(lines, line); ++number) {
      const bool begins = is_source(file) && line.find("R\"") != std::string::npos;
      if (line.size() > kColumns && !begins && !is_text)
        faults.push_back(fs::relative(file, root).string() + ":" + std::to_string(number) + " has " +
                         std::to_string(line.size()) + " columns");
      if (begins) is_text = true;
      if (is_text && (line.find(")\"") != std::string::npos || std::regex_search(line, ends_text))) is_text = false;
    }
  }
  return faults;
}

TEST(FileLimits, HoldForLinesOfFiles) { EXPECT_THAT(files_too_long(kSourceDir), IsEmpty()); }

TEST(FileLimits, HoldForFunctions) { EXPECT_THAT(functions_too_long(kSourceDir / "src"), IsEmpty()); }

TEST(FileLimits, LeaveNoEmptyFile) { EXPECT_THAT(empty_files(kSourceDir / "src"), IsEmpty()); }

TEST(FileLimits, HoldForColumns) { EXPECT_THAT(lines_too_wide(kSourceDir), IsEmpty()); }

/// A tree of sources in which tests plant violations.
class PlantedFiles : public ::testing::Test {
 protected:
  void plant(const std::string& name, const std::string& text) {
    const fs::path file = fs::path(folder_.path()) / "src/colossal" / name;
    fs::create_directories(file.parent_path());
    write_file(file.string(), text);
  }
  test::TemporaryFolder folder_;
};

TEST_F(PlantedFiles, FindsALongFunction) {
  const auto body = [](const std::string& indent, size_t lines) {
    std::string text;
    for (size_t i = 0; i + 2 < lines; ++i) text += indent + "  f();\n";
    return text + indent + "}\n";
  };
  plant("base/fits.cpp", "namespace a {\nvoid fits() {\n" + body("", kMaxFunctionLines) + "}\n");
  plant("base/long.cpp", "\nint too_long(int first,\n             int second) {\n" + body("", kMaxFunctionLines) +
                             "struct Some {\n  void member() {\n" + body("  ", kMaxFunctionLines + 1) + "};\n");
  EXPECT_THAT(functions_too_long(fs::path(folder_.path()) / "src"),
              ElementsAre("colossal/base/long.cpp:2 begins a function of 61 lines",
                          "colossal/base/long.cpp:64 begins a function of 61 lines"));
}

TEST_F(PlantedFiles, FindsAnEmptyFile) {
  plant("base/full.h", "#pragma once\n");
  plant("base/empty.h", "");
  EXPECT_THAT(empty_files(fs::path(folder_.path()) / "src"), ElementsAre("colossal/base/empty.h is empty"));
}

TEST_F(PlantedFiles, FindsALongFile) {
  std::string lines;
  for (int i = 0; i <= kMaxFileLines; ++i) lines += "\n";
  plant("base/long.cpp", lines);
  EXPECT_THAT(files_too_long(folder_.path()), ElementsAre("src/colossal/base/long.cpp has 501 lines"));
}

TEST_F(PlantedFiles, FindsAWideLineUnlessItIsText) {
  const std::string wide(kColumns + 1, 'x'), just(kColumns, 'x');
  plant("base/text.cpp", "f(R\"page(" + wide + "\n" + wide + "\n)page\");\n" + just + "\n");
  plant("base/wide.cpp", just + "\n// " + wide + "\n");
  plant("base/wide.py", "r = R\"" + wide + "\"\n");
  EXPECT_THAT(lines_too_wide(folder_.path()), ElementsAre("src/colossal/base/wide.py:1 has 128 columns",
                                                          "src/colossal/base/wide.cpp:2 has 124 columns"));
}

}  // namespace
}  // namespace colossal::file_limits_test
