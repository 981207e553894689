// Checks of the documents: their lengths, the targets of their links, and that docs/index.md lists every page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "colossal/base/file.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::documents_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const fs::path kSourceDir = test::source_dir();

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string replaced(const std::string& text, const char* pattern, const char* with) {
  static std::map<std::string, std::regex> compiled;  // a cache, because compiling takes longer than a replacement
  return std::regex_replace(text, compiled.try_emplace(pattern, pattern).first->second, with);
}

/// Returns all lines. Lines inside fenced blocks and comments are empty, so line numbers do not change.
std::vector<std::string> prose_lines(const std::string& text) {
  std::vector<std::string> lines = lines_of(text);
  bool fenced = false, comment = false;
  for (std::string& line : lines) {
    const bool fence = !comment && line.find("```") == line.find_first_not_of(" >");
    const bool opens = !fenced && line.find("<!--") != std::string::npos;
    const bool blank = fenced || comment || fence || opens;
    if (fence && line.find("```") != std::string::npos) fenced = !fenced;
    if (opens) comment = true;
    if (comment && line.find("-->") != std::string::npos) comment = false;
    if (blank) line.clear();
  }
  return lines;
}

/// Returns the text that a reader of Markdown sees, with the texts of links, and one word for each piece of code.
std::string shown(const std::string& markdown) {
  std::string text = replaced(markdown, R"(`[^`]*`)", "code");
  text = replaced(text, R"(!?\[([^\]]*)\]\([^)]*\))", "$1");
  return replaced(text, R"([*_#])", "");
}

bool is_row(const std::string& line) {
  return line.find_first_not_of(' ') != std::string::npos && line[line.find_first_not_of(' ')] == '|';
}

std::vector<std::string> cells_of(const std::string& row) {
  std::vector<std::string> cells;
  std::string cell;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] == '|' && (i == 0 || row[i - 1] != '\\')) {
      cells.push_back(shown(cell));
      cell.clear();
    } else {
      cell += row[i];
    }
  }
  return cells;
}

/// Returns the paragraphs, list items, headings and table cells of a document.
std::vector<std::string> units_of(const std::string& markdown) {
  std::vector<std::string> units(1);
  for (const std::string& line : prose_lines(markdown)) {
    const size_t first = line.find_first_not_of(' ');
    if (is_row(line)) {
      for (const std::string& cell : cells_of(line)) units.push_back(cell);
      units.emplace_back();
    } else if (first == std::string::npos || line[first] == '#') {
      units.push_back(line);
      units.emplace_back();
    } else {
      static const std::regex item(R"(\s*([-*]|[0-9]+\.) .*)");
      const bool begins = std::regex_match(line, item);
      if (begins) units.emplace_back();
      units.back() += " " + (begins ? line.substr(line.find(' ', first) + 1) : line);
    }
  }
  for (std::string& unit : units) unit = shown(unit);
  return units;
}

std::vector<std::string> sentences_longer_than(size_t words, const std::string& markdown) {
  std::vector<std::string> found;
  for (const std::string& unit : units_of(markdown)) {
    std::string sentence;
    size_t count = 0;
    for (const std::string& word : words_of(unit)) {
      sentence += (sentence.empty() ? "" : " ") + word;
      ++count;
      if (word.find_last_of(".!?") != word.size() - 1) continue;
      if (count > words) found.push_back(sentence);
      sentence.clear();
      count = 0;
    }
    if (count > words) found.push_back(sentence);
  }
  return found;
}

std::vector<fs::path> markdown_below(const fs::path& root) {
  static const std::set<std::string> skipped{"build", ".venv", ".git", "runs", "out"};
  std::vector<fs::path> files;
  for (auto entry = fs::recursive_directory_iterator(root); entry != fs::recursive_directory_iterator(); ++entry) {
    if (entry->is_directory() && skipped.count(entry->path().filename())) entry.disable_recursion_pending();
    if (entry->is_regular_file() && entry->path().extension() == ".md") files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Returns the anchors that GitHub makes of headings: lower case, hyphens for blanks, no other punctuation, and a
/// number for repeated headings.
std::set<std::string> anchors_of(const std::string& markdown) {
  std::set<std::string> anchors;
  std::map<std::string, int> seen;
  for (const std::string& line : prose_lines(markdown)) {
    if (line.empty() || line[0] != '#') continue;
    std::string title = line.substr(std::min(line.size(), line.find_first_not_of("# ")));
    title = replaced(title, R"(!?\[([^\]]*)\]\([^)]*\))", "$1");
    std::string anchor;
    for (const char c : title) {
      if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || (c & 0x80))
        anchor += static_cast<char>(std::tolower(c));
      if (c == ' ') anchor += '-';
    }
    const int before = seen[anchor]++;
    anchors.insert(before == 0 ? anchor : anchor + "-" + std::to_string(before));
  }
  return anchors;
}

std::vector<std::string> links_of(const std::string& markdown) {
  static const std::regex pattern(R"(\]\(([^)\s]+)\))");
  std::vector<std::string> links;
  for (const std::string& line : prose_lines(markdown)) {
    const std::string text = replaced(line, R"(`[^`]*`)", "code");
    for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match)
      links.push_back((*match)[1]);
  }
  return links;
}

std::string relative_to(const fs::path& root, const fs::path& path) {
  return fs::relative(path, root).generic_string();
}

/// The targets of links. The anchors of a page are read once.
class Targets {
 public:
  /// Returns true if the file exists and, if it is a page and `anchor` is not empty, has that anchor.
  bool has(const fs::path& file, const std::string& anchor) {
    if (!fs::exists(file)) return false;
    if (anchor.empty() || file.extension() != ".md") return true;
    const auto [known, is_new] = anchors_.try_emplace(file);
    if (is_new) known->second = anchors_of(read_file(file, 1 << 24));
    return known->second.count(anchor) > 0;
  }

 private:
  std::map<fs::path, std::set<std::string>> anchors_;
};

std::vector<std::string> dead_links(const fs::path& root) {
  std::vector<std::string> dead;
  Targets targets;
  for (const fs::path& file : markdown_below(root)) {
    for (const std::string& link : links_of(read_file(file, 1 << 24))) {
      if (link.find("://") != std::string::npos || link.rfind("mailto:", 0) == 0) continue;
      const size_t hash = link.find('#');
      const std::string path = link.substr(0, hash);
      const fs::path target = path.empty() ? file : (file.parent_path() / path).lexically_normal();
      const bool found = targets.has(target, hash == std::string::npos ? "" : link.substr(hash + 1));
      if (!found) dead.push_back(relative_to(root, file) + ": " + link);
    }
  }
  return dead;
}

/// Returns the mentions of pages or anchors that do not exist, "docs/x/y.md#anchor", in the sources of the program, its
/// examples and its tests.
std::vector<std::string> dead_mentions(const fs::path& root) {
  static const std::regex pattern(R"(docs/[A-Za-z0-9_/-]+\.(?:md|svg)(?:#[a-z0-9_-]+)?)");
  std::vector<std::string> dead;
  Targets targets;
  for (const char* folder : {"src", "examples", "apps", "tests", "benchmarks", "cmake"}) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || entry.path().extension() == ".md") continue;
      if (entry.path().filename() == "documents_test.cpp" || entry.file_size() > (1 << 20)) continue;
      const std::string text = read_file(entry.path(), 1 << 24);
      for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
        const std::string mention = match->str();
        const size_t hash = mention.find('#');
        const fs::path target = root / mention.substr(0, hash);
        if (!targets.has(target, hash == std::string::npos ? "" : mention.substr(hash + 1)))
          dead.push_back(relative_to(root, entry.path()) + ": " + mention);
      }
    }
  }
  return dead;
}

std::string readme() { return read_file(kSourceDir / "README.md", 1 << 24); }

TEST(Documents, LimitsTheReadmeTo180LinesAnd1500Words) {
  EXPECT_LE(lines_of(readme()).size(), 180U);
  size_t words = 0;
  for (const std::string& unit : units_of(readme())) words += words_of(unit).size();
  EXPECT_LE(words, 1500U);
}

TEST(Documents, LimitsCellsOfTheReadmeTo25Words) {
  for (const std::string& line : prose_lines(readme()))
    if (is_row(line))
      for (const std::string& cell : cells_of(line)) EXPECT_LE(words_of(cell).size(), 25U) << cell;
}

TEST(Documents, AllowsAtMost60SentencesOfMoreThan35Words) {
  std::vector<std::string> long_ones;
  for (const fs::path& file : markdown_below(kSourceDir / "docs")) {
    if (file.filename() == "log.md") continue;
    for (const std::string& sentence : sentences_longer_than(35, read_file(file, 1 << 24)))
      long_ones.push_back(relative_to(kSourceDir, file) + ": " + sentence);
  }
  EXPECT_LE(long_ones.size(), 60U) << ::testing::PrintToString(long_ones);
}

TEST(Documents, LinksOnlyToPagesAndAnchorsThatExist) { EXPECT_THAT(dead_links(kSourceDir), IsEmpty()); }

TEST(Documents, NamesOnlyPagesThatExistInSources) { EXPECT_THAT(dead_mentions(kSourceDir), IsEmpty()); }

TEST(Documents, ListsEveryPageInTheIndex) {
  const fs::path docs = kSourceDir / "docs";
  std::set<std::string> linked;
  for (const std::string& link : links_of(read_file(docs / "index.md", 1 << 24)))
    linked.insert(link.substr(0, link.find('#')));
  for (const fs::path& file : markdown_below(docs)) {
    const std::string page = relative_to(docs, file);
    if (page != "index.md" && page != "log.md") EXPECT_TRUE(linked.count(page)) << "docs/index.md must link " << page;
  }
}

TEST(Documents, LinksTheLogOnlyFromContributing) {
  for (const fs::path& file : markdown_below(kSourceDir))
    for (const std::string& link : links_of(read_file(file, 1 << 24)))
      if (fs::path(link.substr(0, link.find('#'))).filename() == "log.md")
        EXPECT_EQ(relative_to(kSourceDir, file), "CONTRIBUTING.md");
}

TEST(Documents, LimitsChangelogEntriesToTwoLinesAnd50Words) {
  std::vector<std::string> entry;
  const auto check = [&entry] {
    std::string text;
    for (const std::string& line : entry) text += line + " ";
    EXPECT_LE(entry.size(), 2U) << text;
    EXPECT_LE(words_of(text).size(), 51U) << text;  // the dash of the item counts as a word
    entry.clear();
  };
  for (const std::string& line : prose_lines(read_file(kSourceDir / "CHANGELOG.md", 1 << 24))) {
    const bool begins = line.rfind("- ", 0) == 0, ends = line.empty() || line[0] == '#' || line[0] == '|';
    if (begins || ends) check();
    if (begins || (!entry.empty() && !ends)) entry.push_back(line);
  }
  check();
}

TEST(Documents, FindsPlantedFaults) {
  const test::TemporaryFolder folder;
  const fs::path root(folder / "");
  fs::create_directories(root / "src");
  std::ofstream(root / "a.md")
      << "# A title, with `code`\n\n[here](#a-title-with-code) [b](b.md) [c](b.md#none) `[d](no.md)`\n"
         "```\n[e](no.md)\n```\n<!-- [f](no.md) -->\n## Same\n## Same\n[g](#same-1) [h](#same-2)\n";
  std::ofstream(root / "b.md") << "text\n";
  std::ofstream(root / "src" / "x.cpp") << "// docs/none.md says more\n";
  EXPECT_THAT(dead_links(root), ElementsAre("a.md: b.md#none", "a.md: #same-2"));
  EXPECT_THAT(dead_mentions(root), ElementsAre("src/x.cpp: docs/none.md"));
  EXPECT_THAT(sentences_longer_than(3,
                                    "One two three. One two\nthree four.\n\n- five six seven\n- eight [nine "
                                    "ten](x.md)\n  eleven twelve\n| a b c | `a b c d` e |\n"),
              ElementsAre("One two three four.", "eight nine ten eleven twelve"));
}

}  // namespace
}  // namespace colossal::documents_test
