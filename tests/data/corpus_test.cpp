#include "colossal/data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>

#include "checkpoint/temporary_folder.h"
#include "colossal/base/error.h"
#include "colossal/data/byte_tokenizer.h"

namespace colossal::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const ByteTokenizer kBytes;

std::vector<int64_t> tokens(const Corpus& corpus) {
  std::vector<int64_t> ids(corpus.size());
  corpus.read(0, corpus.size(), ids.data());
  return ids;
}

std::string text(const Corpus& corpus) {  // `|` for the end token
  std::string out;
  for (int64_t id : tokens(corpus)) out += id == ByteTokenizer::kEnd ? '|' : static_cast<char>(id);
  return out;
}

std::string refusal(const std::string& path, const std::vector<std::string>& excluded = {}) {
  try {
    Corpus::open(path, kBytes, excluded);
    return "opened";
  } catch (const Error& error) {
    return error.what();
  }
}

/// Every letter is a token of its own; upper-case letters only.
class LetterTokenizer final : public Tokenizer {
 public:
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> ids;
    for (const char c : text)
      if (c >= 'A' && c <= 'Z') ids.push_back(c - 'A');
    return ids;
  }
  std::string piece(int64_t id) const override { return std::string(1, static_cast<char>('A' + id)); }
  int64_t vocabulary_size() const override { return 27; }
  int64_t end_id() const override { return 26; }
};

TEST(Corpus, ReadsOneFileAsBytesAndClosesIt) {
  TemporaryFolder folder;
  EXPECT_EQ(text(Corpus::open(folder.write("a.anything", "hello\xff"), kBytes)), "hello\xff|");
}

TEST(Corpus, ReadsAFolderInOrderOfNames) {
  TemporaryFolder folder;
  folder.write("b.md", "B");
  folder.write("a/z.cpp", "AZ");
  folder.write("a/b.txt", "AB");
  folder.write("c.png", "no text");
  folder.write("empty.md", "");
  folder.write(".hidden/x.md", "no");
  folder.write(".x.md", "no");
  folder.write("build/x.md", "no");
  folder.write("runs/quickstart/config.toml", "no");
  folder.write("out/CMakeCache.txt", "no");
  folder.write("out/x.md", "no");
  folder.write("mine/config.toml", "no");
  folder.write("last.toml", "L");
  EXPECT_EQ(text(Corpus::open(folder.path(), kBytes, {folder / "mine", folder / "last.toml"})), "AB|AZ|B|");
  EXPECT_EQ(text(Corpus::open(folder.path() + "/", kBytes, {folder / "a/../mine/"})), "AB|AZ|B|L|");
}

TEST(Corpus, EncodesWithATokenizerThatIsNotBytes) {
  TemporaryFolder folder;
  EXPECT_THAT(tokens(Corpus::open(folder.write("a.txt", "A-B.C"), LetterTokenizer())), ElementsAre(0, 1, 2, 26));
}

TEST(Corpus, ReadsAcrossDocuments) {
  TemporaryFolder folder;
  folder.write("a.md", "abc");
  folder.write("b.md", "de");
  const Corpus corpus = Corpus::open(folder.path(), kBytes);
  for (int64_t begin = 0; begin <= corpus.size(); ++begin) {
    for (int64_t count = 0; count <= corpus.size() - begin; ++count) {
      std::vector<int64_t> ids(count);
      corpus.read(begin, count, ids.data());
      const std::vector<int64_t> all = tokens(corpus);
      EXPECT_EQ(ids, std::vector<int64_t>(all.begin() + begin, all.begin() + begin + count));
    }
  }
  int64_t out[8];
  EXPECT_THROW(corpus.read(0, corpus.size() + 1, out), Error);
  EXPECT_THROW(corpus.read(-1, 1, out), Error);
}

TEST(Corpus, TokenFilesRoundTripInBothWidths) {
  TemporaryFolder folder;
  for (const int64_t vocabulary : {257, 100'000}) {
    const std::string path = folder / "tokens.bin";
    write_token_file(path, {5, 256, 0, 255}, vocabulary, 256);
    EXPECT_EQ(std::filesystem::file_size(path), vocabulary == 257 ? 8u : 16u);
    const Corpus corpus = Corpus::open(path, kBytes);
    EXPECT_THAT(tokens(corpus), ElementsAre(5, 256, 0, 255));
    EXPECT_EQ(corpus.end_id(), 256);
  }
  EXPECT_THROW(write_token_file(folder / "x.bin", {300}, 257, -1), Error);
}

TEST(Corpus, BadTokenFilesAreRefused) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.bin", std::string("\1\0\2\0\3", 5));
  const auto with = [&](const std::string& sidecar) {
    folder.write("a.bin.json", sidecar);
    return refusal(path);
  };
  EXPECT_THAT(refusal(path), HasSubstr("needs a sidecar"));
  EXPECT_THAT(with("{"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(with("{}"), HasSubstr("with a dtype"));
  EXPECT_THAT(with(R"({"dtype": "int8"})"), HasSubstr("uint16 or uint32: got \"int8\""));
  EXPECT_THAT(with(R"({"dtype": "uint16", "end_id": "x"})"), HasSubstr("end_id"));
  EXPECT_THAT(with(R"({"dtype": "uint16"})"), HasSubstr("whole tokens of 2 bytes: got 5"));
  folder.write("a.bin", "");
  EXPECT_THAT(refusal(path), HasSubstr("is empty"));
  folder.write("a.bin", std::string("\1\0\1\1", 4));  // 1, 257
  EXPECT_THAT(refusal(path), HasSubstr("token 1 has id 257, the vocabulary only 257"));
}

TEST(Corpus, MissingEmptyAndUnreadableDataAreRefused) {
  TemporaryFolder folder;
  EXPECT_THAT(refusal(folder / "none"), HasSubstr("no such file or folder"));
  EXPECT_THAT(refusal(folder.write("empty.txt", "")), HasSubstr("is empty"));
  std::filesystem::create_directories(folder / "sub");
  EXPECT_THAT(refusal(folder / "sub"), HasSubstr("holds no text files"));
  folder.write("sub/a.md", "");
  EXPECT_THAT(refusal(folder / "sub"), HasSubstr("is empty"));
  if (geteuid() == 0) return;  // root reads everything
  std::filesystem::permissions(folder / "sub", std::filesystem::perms::none);
  EXPECT_THAT(refusal(folder / "sub"), HasSubstr("cannot read"));
  std::filesystem::permissions(folder / "sub", std::filesystem::perms::owner_all);
}

TEST(Corpus, SplitsOneFileAtItsEnd) {
  const Corpus corpus = Corpus::of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, -1, 10);
  const auto [training, held_out] = corpus.split(0.25);
  EXPECT_THAT(tokens(training), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(tokens(held_out), ElementsAre(8, 9));
  EXPECT_EQ(corpus.split(0).first.size(), 10);
  EXPECT_EQ(corpus.split(0).second.size(), 0);
  EXPECT_THROW(corpus.split(1), Error);
  EXPECT_THROW(corpus.split(-0.1), Error);
}

TEST(Corpus, SplitsFoldersByDocuments) {
  TemporaryFolder folder;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) folder.write(std::string(name) + ".md", name);
  const auto [training, held_out] = Corpus::open(folder.path(), kBytes).split(1.0 / 3);
  EXPECT_EQ(text(training), "a|b|d|e|g|");
  EXPECT_EQ(text(held_out), "c|f|");
}

TEST(Corpus, FingerprintChangesWithTheData) {
  TemporaryFolder folder;
  folder.write("a.md", "abc");
  const std::string before = Corpus::open(folder.path(), kBytes).fingerprint();
  EXPECT_EQ(Corpus::open(folder.path(), kBytes).fingerprint(), before);
  folder.write("b.md", "d");
  EXPECT_NE(Corpus::open(folder.path(), kBytes).fingerprint(), before);
  EXPECT_NE(Corpus::of({1, 2}, -1, 3).fingerprint(), Corpus::of({1, 2}, -1, 4).fingerprint());
}

TEST(Corpus, TheProjectsOwnTextIsEnoughToTrainOn) {
  const Corpus corpus = Corpus::open(COLOSSAL_SOURCE_DIR, kBytes);
  EXPECT_GT(corpus.size(), 100'000);
  const auto [training, held_out] = corpus.split(0.05);
  EXPECT_GT(held_out.size(), 1000);
  EXPECT_EQ(training.size() + held_out.size(), corpus.size());
}

}  // namespace
}  // namespace colossal::data
