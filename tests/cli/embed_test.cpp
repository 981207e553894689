// `colossal embed` as a user runs it. The values of vectors are tested in tests/infer/embed_test.cpp and tests/interop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "cli/outcome.h"
#include "colossal/base/json.h"
#include "colossal/cli/embedding_output.h"
#include "support/generated_text.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::cli::embed_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class Embed : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder;
    test::write_model(*folder_, "bert-tiny");
  }
  static void TearDownTestSuite() { delete folder_; }
  static const test::TemporaryFolder& folder() { return *folder_; }

  static Outcome embed(std::vector<std::string> words) {
    words.insert(words.begin(), {"--from", folder() / "run"});
    return run_command("embed", words);
  }
  static std::vector<json> lines_of(const std::string& text) {
    std::vector<json> lines;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      lines.push_back(json::parse(text.substr(begin, end - begin)));
      begin = end + 1;
    }
    return lines;
  }

 private:
  static inline test::TemporaryFolder* folder_ = nullptr;
};

TEST_F(Embed, WritesALinePerTextForAnyInput) {
  const std::string plain = folder().write("plain", "to be\nor not"), quoted = folder().write("json", R"("to be"
{"text": "or not"})");
  const Outcome outcome = embed({"--text", "to be", "--text", "or not"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::vector<json> lines = lines_of(outcome.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].size(), 1u);
  EXPECT_EQ(lines[0]["embedding"].size(), 64u);
  EXPECT_EQ(embed({"--input", plain}).out, outcome.out);
  EXPECT_EQ(embed({"--input", quoted, "--json"}).out, outcome.out);
  EXPECT_EQ(embed({"--input", plain, "--output", folder() / "out"}).out, "");
  EXPECT_EQ(test::read_all(folder() / "out"), outcome.out);
  const std::vector<json> with_text = lines_of(embed({"--input", plain, "--with-text"}).out);
  EXPECT_EQ(with_text[1]["text"], "or not");
  EXPECT_EQ(with_text[1]["embedding"], lines[1]["embedding"]);
}

TEST_F(Embed, WritesAnArrayForNumpy) {
  const std::string plain = folder().write("plain", "to be\nor not\n");
  ASSERT_EQ(embed({"--input", plain, "--output", folder() / "v.npy"}).status, 0);
  const std::string bytes = test::read_all(folder() / "v.npy");
  const std::vector<json> lines = lines_of(embed({"--input", plain}).out);
  const size_t begin = bytes.size() - 2 * 64 * sizeof(float);
  EXPECT_EQ(begin % 64, 0u);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  EXPECT_THAT(bytes, HasSubstr("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 64), }"));
  float first = 0;
  std::memcpy(&first, bytes.data() + begin + 64 * sizeof(float), sizeof first);
  EXPECT_EQ(first, lines[1]["embedding"][0].get<float>());
}

TEST_F(Embed, ReportsTruncatedTexts) {
  const std::string file =
      folder().write("long", "short\n" + std::string(40, 'a') + "\n" + std::string(50, 'b') + "\n");
  const Outcome outcome = embed({"--input", file});
  EXPECT_EQ(lines_of(outcome.out).size(), 3u);
  EXPECT_THAT(outcome.err, HasSubstr("2 texts have more than 32 tokens and were truncated, first text 2"));
  EXPECT_THAT(embed({"--input", file, "--max-tokens", "45"}).err, HasSubstr("2 texts have more than 32 tokens"));
  // Matrix products may round differently in the last bits if a batch has other texts.
  const auto cut =
      lines_of(embed({"--input", file, "--max-tokens", "5"}).out)[0]["embedding"].get<std::vector<double>>();
  const auto alone = lines_of(embed({"--text", "short"}).out)[0]["embedding"].get<std::vector<double>>();
  EXPECT_THAT(cut, testing::Pointwise(testing::DoubleNear(1e-4), alone));
}

TEST_F(Embed, RefusesInvalidOptions) {
  const auto expect = [](const std::vector<std::string>& words, int status, const std::string& message) {
    const Outcome outcome = embed(words);
    EXPECT_EQ(outcome.status, status) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(outcome.out, "");
  };
  expect({"--text", "a", "--input", "x"}, 2, "--text and --input exclude each other");
  expect({"--text", "a", "--json"}, 2, "--text and --json exclude each other");
  expect({"--text", "a", "--with-text", "--output", "x.npy"}, 2,
         "--with-text needs JSON lines: got --output with an .npy file");
  expect({"--output", "x.npy"}, 2, "name a file with --input");
  expect({"--parallel.tensor=2"}, 2, "several ranks cannot read standard input; name a file with --input");
  expect({"--text", "a", "--pooling", "sum"}, 2, "sum");
  expect({"--text", ""}, 1, "text 1 is empty, and the tokenizer adds no special tokens; leave it out");
  expect({"--text", "a", "--prompt-name", "query"}, 1, "one of the folder's prompts: got query; available: none");
  expect({"--text", "a", "--pooling", "pooler"}, 1, "pooling `pooler` needs a BERT that has one");
  expect({"--input", folder() / "absent"}, 1, "cannot read " + folder() / "absent");
  expect({"--input", folder().write("bad", "\"a\"\nb\n"), "--json"}, 1, "[embed] line 2 must be a JSON string");
}

TEST(EmbedOutput, RefusesInvalidValuesAndCounts) {
  const test::TemporaryFolder folder;
  const float numbers[] = {1, std::numeric_limits<float>::quiet_NaN()};
  const auto json_lines = json_output(folder / "out", false);
  EXPECT_THAT(test::thrown_message([&] { json_lines->put("", numbers, 2); }), HasSubstr("must be finite"));
  const auto npy = npy_output(folder / "v.npy", 2, 2);
  npy->put("", numbers, 2);
  EXPECT_THAT(test::thrown_message([&] { npy->finish(); }), HasSubstr("the number was 2, now 1"));
  EXPECT_FALSE(std::filesystem::exists(folder / "v.npy"));
}

}  // namespace
}  // namespace colossal::cli::embed_test
