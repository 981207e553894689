// The prose of comments and test names: counts of the marks of half sentences, as upper bounds, and of words, as lower
// bounds. CONTRIBUTING.md, "How we write", has the rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "colossal/base/file.h"
#include "support/paths.h"

namespace colossal::prose_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const fs::path kSourceDir = test::source_dir();
const std::set<std::string> kMarkedWords = {"nobody",   "somebody", "anybody",   "whoever",   "behind",   "beside",
                                            "foretold", "foretell", "foretells", "meanwhile", "likewise", "dealt",
                                            "lies",     "lying",    "lent",      "lend",      "lends",    "brought",
                                            "anew",     "tells",    "told",      "hear",      "hears"};
/// The words with which a sentence without a subject begins.
const std::set<std::string> kFragmentOpenings = {"of", "those", "what", "whoever", "whose", "than", "nor", "likewise"};
/// The words with which a test name begins that does not say what happens.
const std::set<std::string> kNameOpenings = {"A",    "An",    "The",    "Of",      "In",     "On", "At",   "By",
                                             "For",  "From",  "With",   "Without", "To",     "As", "It",   "Its",
                                             "They", "What",  "Who",    "Where",   "Are",    "Is", "This", "That",
                                             "Each", "Every", "Nobody", "Nothing", "Whoever"};

/// A comment of several lines, or one behind code.
struct Comment {
  std::string file;
  size_t line = 0;
  std::vector<std::string> lines;  // without the slashes
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Returns the words of letters, in lower case.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text + " ") {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || (c == '\'' && !word.empty())) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!word.empty()) {
      words.push_back(word);
      word.clear();
    }
  }
  return words;
}

/// Returns where a comment begins in a line of code; npos if there is none. Slashes within quotes are no comment.
size_t comment_start(const std::string& line) {
  bool is_text = false;
  for (size_t i = 0; i + 1 < line.size(); ++i) {
    if (line[i] == '\\' && is_text) {
      ++i;
    } else if (line[i] == '"') {
      is_text = !is_text;
    } else if (!is_text && line[i] == '/' && line[i + 1] == '/') {
      return i;
    }
  }
  return std::string::npos;
}

std::vector<Comment> comments_of(const std::string& file, const std::string& text) {
  std::vector<Comment> comments;
  bool goes_on = false;  // the line before was a comment alone
  const std::vector<std::string> lines = lines_of(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t start = comment_start(lines[i]);
    const bool is_alone = start != std::string::npos && lines[i].find_first_not_of(' ') == start;
    if (start != std::string::npos) {
      const size_t words = std::min(lines[i].find_first_not_of("/<!", start), lines[i].size());
      if (!goes_on || !is_alone) comments.push_back({file, i + 1, {}});
      comments.back().lines.push_back(lines[i].substr(words));
    }
    goes_on = is_alone;
  }
  return comments;
}

/// Returns the lines that are prose: examples of code are indented by three blanks or more.
std::string prose_of(const Comment& comment) {
  std::string prose;
  for (const std::string& line : comment.lines)
    if (!line.starts_with("   ")) prose += line + " ";
  return prose;
}

/// Returns the sentences of a comment that begin with a word of kFragmentOpenings.
std::vector<std::string> fragments_of(const std::string& prose) {
  std::vector<std::string> fragments;
  for (size_t begin = prose.find_first_not_of(' '); begin < prose.size();) {
    size_t end = prose.find(". ", begin);
    end = end == std::string::npos ? prose.size() : end + 2;
    const std::string sentence = prose.substr(begin, end - begin);
    const std::vector<std::string> words = words_of(sentence);
    if (!words.empty() && kFragmentOpenings.contains(words[0]) && sentence.find(',') == std::string::npos)
      fragments.push_back(sentence);
    begin = end;
  }
  return fragments;
}

/// Returns "Suite.Name" of each test.
std::vector<std::string> tests_of(const std::string& text) {
  static const std::regex declaration(R"(^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+), *(\w+))", std::regex::multiline);
  std::vector<std::string> tests;
  for (std::sregex_iterator at(text.begin(), text.end(), declaration), end; at != end; ++at)
    tests.push_back((*at)[1].str() + "." + (*at)[2].str());
  return tests;
}

bool begins_like_half_a_sentence(const std::string& test) {
  const std::string name = test.substr(test.find('.') + 1);
  size_t end = 1;
  while (end < name.size() && std::isupper(static_cast<unsigned char>(name[end])) == 0) ++end;
  return kNameOpenings.contains(name.substr(0, end));
}

std::map<std::string, std::string> sources(const std::vector<std::string>& folders) {
  std::map<std::string, std::string> texts;
  for (const std::string& folder : folders)
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kSourceDir / folder)) {
      const std::string ending = entry.path().extension().string();
      if (ending == ".h" || ending == ".cpp" || ending == ".cu")
        texts[fs::relative(entry.path(), kSourceDir).string()] = read_file(entry.path().string(), int64_t{1} << 24);
    }
  return texts;
}

/// "5 of ...: a, b, c": the places of marks, for a message.
std::string list_of(const std::vector<std::string>& places) {
  std::string list;
  for (const std::string& place : places) list += "\n  " + place;
  return list;
}

TEST(Prose, FindsCommentsAndTheirMarks) {
  const std::vector<Comment> comments = comments_of(
      "x.h", "// Of the rank. It waits.\n//   lent = 1;\nint a;  ///< told, \"once\"\ntext(\"// nobody\");\n");
  ASSERT_EQ(comments.size(), 2u);
  EXPECT_EQ(comments[1].line, 3u);
  EXPECT_EQ(words_of(prose_of(comments[0])), (std::vector<std::string>{"of", "the", "rank", "it", "waits"}));
  EXPECT_THAT(fragments_of(prose_of(comments[0])), ElementsAre("Of the rank. "));
  EXPECT_THAT(fragments_of("Of two ranks, one waits. "), IsEmpty()) << "a sentence may begin with a clause";
  EXPECT_THAT(tests_of("TEST(A, TheFirst) {\n  TEST_F(\nTEST_P(B, Waits) {\n"), ElementsAre("A.TheFirst", "B.Waits"));
  EXPECT_TRUE(begins_like_half_a_sentence("A.TheFirst"));
  EXPECT_FALSE(begins_like_half_a_sentence("A.Thermal"));
}

TEST(Prose, CommentsAvoidMarkedWordsAndFragments) {
  size_t words = 0;
  std::vector<std::string> marks, fragments;
  for (const auto& [file, text] : sources({"src", "tests", "benchmarks", "examples"}))
    for (const Comment& comment : comments_of(file, text)) {
      const std::string prose = prose_of(comment), place = file + ":" + std::to_string(comment.line) + ": ";
      for (const std::string& word : words_of(prose)) {
        ++words;
        if (kMarkedWords.contains(word)) marks.push_back(place + word);
      }
      for (const std::string& sentence : fragments_of(prose)) fragments.push_back(place + sentence);
    }
  ASSERT_GT(words, 100000u);
  EXPECT_LE(marks.size() * 1000, words) << "marked words, one in 1000 at most:" << list_of(marks);
  EXPECT_LE(fragments.size() * 1000, words)
      << "sentences without a subject, one in 1000 words at most:" << list_of(fragments);
}

TEST(Prose, TestNamesSayWhatHappens) {
  std::vector<std::string> names;
  for (const auto& [file, text] : sources({"tests"}))
    for (const std::string& test : tests_of(text))
      if (begins_like_half_a_sentence(test)) names.push_back(test);
  EXPECT_LE(names.size(), 20u) << "use Suite.VerbObject:" << list_of(names);
}

TEST(Prose, HeadersDescribeWhatTheyDeclare) {
  size_t words = 0, code = 0, examples = 0;
  for (const auto& [file, text] : sources({"src"})) {
    if (!file.ends_with(".h")) continue;
    const std::vector<Comment> comments = comments_of(file, text);
    for (const Comment& comment : comments)
      for (const std::string& line : comment.lines) words += words_of(line).size();
    for (const std::string& line : lines_of(text)) {
      const size_t first = line.find_first_not_of(' ');
      code += first != std::string::npos && comment_start(line) != first ? 1 : 0;
    }
    const bool has_head = !comments.empty() && comments.front().line == 1;
    examples += has_head && std::any_of(comments.front().lines.begin(), comments.front().lines.end(),
                                        [](const std::string& line) { return line.starts_with("   "); })
                    ? 1
                    : 0;
  }
  EXPECT_GE(words * 100, code * 550) << words << " words of comments for " << code << " lines of code in headers";
  EXPECT_GE(examples, 150u) << "headers that begin with an example";
}

}  // namespace
}  // namespace colossal::prose_test
