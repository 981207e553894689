#include "colossal/data/texts/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/data/texts/files.h"
#include "colossal/data/texts/stored_tokens.h"
#include "colossal/text/tokenizers/byte.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::corpus_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::StartsWith;

const text::ByteTokenizer kBytes;

std::vector<int64_t> tokens(const Corpus& corpus) {
  std::vector<int64_t> ids(corpus.size());
  corpus.read(0, corpus.size(), ids.data());
  return ids;
}

std::string text(const Corpus& corpus) {  // an end token becomes `|`
  std::string out;
  for (int64_t id : tokens(corpus)) out += id == text::ByteTokenizer::kEnd ? '|' : static_cast<char>(id);
  return out;
}

std::string refusal(const std::string& path, const std::vector<std::string>& excluded = {}) {
  return test::thrown_message([&] { Corpus::open(path, kBytes, excluded); });
}

/// A tokenizer of upper-case letters, each of which is a token.
class LetterTokenizer final : public text::Tokenizer {
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
  test::TemporaryFolder folder;
  EXPECT_EQ(text(Corpus::open(folder.write("a.anything", "hello\xff"), kBytes)), "hello\xff|");
}

TEST(Corpus, ReadsAFolderInOrderOfNames) {
  test::TemporaryFolder folder;
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
  folder.write("finished/metrics.jsonl", "no");
  folder.write("finished/config.toml", "no");
  folder.write("last.toml", "L");
  EXPECT_EQ(text(Corpus::open(folder.path(), kBytes, {folder / "mine", folder / "last.toml"})), "AB|AZ|B|");
  EXPECT_EQ(text(Corpus::open(folder.path() + "/", kBytes, {folder / "a/../mine/"})), "AB|AZ|B|L|");
}

TEST(Corpus, EqualsACopyOfTheText) {
  test::TemporaryFolder folder;
  folder.write("from/b.md", "B");
  folder.write("from/a/z.cpp", "AZ");
  folder.write("from/.x.md", "no");
  folder.write("from/c.png", "no text");
  folder.write("from/run/config.toml", "no");
  folder.write("from/run/copy/old.md", "of an earlier run");
  const std::string copy = folder / "from/run/copy";
  copy_text_files(folder / "from", {folder / "from/run"}, copy);
  EXPECT_EQ(text(Corpus::open(copy, kBytes)), "AZ|B|");
  EXPECT_EQ(Corpus::open(copy, kBytes).contents(),
            Corpus::open(folder / "from", kBytes, {folder / "from/run"}).contents());
  folder.write("file", "in the way");
  EXPECT_THROW(copy_text_files(folder / "from", {}, folder / "file/copy"), Error);
}

TEST(Corpus, RemovesACopyThatFailsHalfway) {
  test::TemporaryFolder folder;
  folder.write("from/a.md", "A");
  folder.write("from/b.md", std::string(5000, 'B'));
  const auto copy_with_room_for = [&](rlim_t bytes) {
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit small{bytes, before.rlim_max};
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // as on a full disk, a write fails
    setrlimit(RLIMIT_FSIZE, &small);
    EXPECT_THROW(copy_text_files(folder / "from", {}, folder / "copy"), Error);
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
  };
  copy_with_room_for(100);
  EXPECT_FALSE(std::filesystem::exists(folder / "copy")) << "a run that goes on would take it for its text";
  EXPECT_FALSE(std::filesystem::exists(folder / "copy.partial")) << "it takes the room that there is too little of";
  folder.write("copy/old.md", "O");
  copy_with_room_for(100);
  EXPECT_EQ(text(Corpus::open(folder / "copy", kBytes)), "O|");
}

TEST(Corpus, EncodesWithATokenizerThatIsNotBytes) {
  test::TemporaryFolder folder;
  EXPECT_THAT(tokens(Corpus::open(folder.write("a.txt", "A-B.C"), LetterTokenizer())), ElementsAre(0, 1, 2, 26));
}

TEST(Corpus, ReadsAcrossDocuments) {
  test::TemporaryFolder folder;
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

TEST(Corpus, ReadsWrittenTokenFilesInBothWidths) {
  test::TemporaryFolder folder;
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

TEST(Corpus, RefusesBadTokenFiles) {
  test::TemporaryFolder folder;
  const std::string path = folder.write("a.bin", std::string("\1\0\2\0\3", 5));
  const auto with = [&](const std::string& sidecar) {
    folder.write("a.bin.json", sidecar);
    return refusal(path);
  };
  EXPECT_THAT(refusal(path), HasSubstr("needs a sidecar"));
  EXPECT_THAT(with("{"), HasSubstr("a.bin.json: not valid JSON"));
  EXPECT_THAT(with(std::string(1 << 19, '[') + std::string(1 << 19, ']')), HasSubstr("a.bin.json: nested too deeply"));
  EXPECT_THAT(with("{}"), HasSubstr("with a dtype"));
  EXPECT_THAT(with(R"({"dtype": "int8"})"), HasSubstr("uint16 or uint32: got \"int8\""));
  for (const char* end : {"\"x\"", "257", "-2", "18446744073709551615", "1e3", "null", "[]"})
    EXPECT_THAT(with(concat(R"({"dtype": "uint16", "end_id": )", end, "}")),
                HasSubstr("end_id must be a token id below the vocabulary of 257"));
  EXPECT_THAT(with(R"({"dtype": "uint16"})"), HasSubstr("whole tokens of 2 bytes: got 5"));
  folder.write("a.bin", "");
  EXPECT_THAT(refusal(path), HasSubstr("is empty"));
  folder.write("a.bin", std::string("\1\0\1\1", 4));  // the ids 1 and 257
  EXPECT_THAT(refusal(path), HasSubstr("token 1 has id 257, but the vocabulary has 257"));
}

TEST(Corpus, RefusesOtherFormatsByTheirFirstBytes) {
  using namespace std::string_literals;
  const test::TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string>> formats{
      {"\x1f\x8b\x08\0"s, "a gzip file; unpack it first"},
      {"\x28\xb5\x2f\xfd$"s, "a Zstandard file"},
      {"\xfd"
       "7zXZ\0"s,
       "an xz file"},
      {"BZh91AY&SY"s, "a bzip2 file"},
      {"PAR1\x15\x04"s, "a Parquet file; rename it so that its name ends in .parquet"},
      {"ARROW1\0\0"s, "an Arrow file; convert it to Parquet"},
      {"\xff\xff\xff\xff\x10\0"s, "an Arrow stream; convert it to Parquet"},
      {"PK\x03\x04\x14"s, "a zip archive"},
      {std::string(257, 'x') + "ustar", "a tar archive"},
      {"%PDF-1.7"s, "a PDF; extract its text"},
      {"\x89PNG\r\n\x1a\n"s, "a PNG picture"},
      {"\xff\xd8\xff\xe0"s, "a JPEG picture"},
      {"GIF89a"s, "a GIF picture"},
      {"RIFF1234WEBPVP8 "s, "a WebP picture"},
      {"\xff\xfeh\0i\0"s, "UTF-16 text; convert it"}};
  for (const auto& [bytes, what] : formats) {
    for (const char* name : {"x", "text.txt.gz", "X.ARROW", "sub/a.txt"}) {
      const std::string path = folder.write(name, bytes);
      EXPECT_THAT(refusal(path), HasSubstr(path + " must be a text file: got " + what));
    }
    EXPECT_THAT(refusal(folder / "sub"), HasSubstr("holds no text files"));
    EXPECT_THAT(refusal(folder / "sub"),
                HasSubstr("1 file is not read: 1 .txt (" + what.substr(0, what.find(';')) + ")"));
  }
  EXPECT_THAT(refusal(folder.write("x", "a\0b"s)), HasSubstr("got bytes of value 0; convert it to UTF-8"));
  for (const char* text : {"BZh is a text", "BZh", "PAR is one", "PK",
                           "\xef\xbb\xbf"
                           "byte order mark",
                           "caf\xe9", "GIF8"})
    EXPECT_EQ(Corpus::open(folder.write("x.unknown", text), kBytes).size(), std::string(text).size() + 1) << text;
}

TEST(Corpus, SkipsFilesOfOtherFormatsInAFolder) {
  using namespace std::string_literals;
  const test::TemporaryFolder folder;
  folder.write("a.md", "A");
  folder.write("b.h", "\xff\xfeh\0i\0"s);
  folder.write("c.C", "a\0b"s);
  folder.write("sub/d.c", "a\0b"s);
  folder.write("sub/e.txt", std::string(5000, 'E') + "\0"s);  // only the first 4096 bytes are checked
  const Corpus corpus = Corpus::open(folder.path(), kBytes);
  EXPECT_EQ(corpus.left_out(),
            "in " + folder.path() + " 3 files are not read: 2 .c (bytes of value 0), 1 .h (UTF-16 text)");
  EXPECT_THAT(corpus.contents(), ElementsAre(Pair("a.md", testing::_), Pair("sub/e.txt", testing::_)));
  folder.write("a.md", "");
  folder.write("sub/e.txt", "");
  EXPECT_THAT(refusal(folder.path()), HasSubstr(" is empty; in " + folder.path() + " 3 files are not read"));
}

TEST(Corpus, RefusesASingleJsonFile) {
  const test::TemporaryFolder folder;
  const std::string large = "[" + [] {
    std::string items;
    for (int i = 0; i < 20000; ++i) items += concat("{\"text\": \"number ", i, "\"}, ");
    return items;
  }() + "0]";
  for (const std::string& list : {std::string("[{\"text\": \"a\"},\n{\"text\": \"b\"}]\n"), std::string("  []"), large})
    EXPECT_THAT(refusal(folder.write("x.json", list)), HasSubstr("got a JSON list; write its records as JSON lines"));
  EXPECT_THAT(refusal(folder.write("x.json", "\xef\xbb\xbf{\"a\":\n1}")), HasSubstr("got a JSON object"));
  for (const char* name : {"x.json", "x.txt", "x"})
    EXPECT_THAT(refusal(folder.write(name, "{\"text\": \"a\"}\n{\"text\": \"b\"}\n")),
                HasSubstr("got JSON lines; rename it so that its name ends in .jsonl"));
  for (const char* text : {"[1] Introduction\n", "[1]\nText", "{a}", "[", "{\n  x", "[Chapter 1]", "(", "{} is empty",
                           "{\"a\": 1} and text"})
    EXPECT_NO_THROW(Corpus::open(folder.write("x.json", text), kBytes)) << text;
}

TEST(Corpus, ReadsEndingsInEitherCase) {
  const test::TemporaryFolder folder;
  folder.write("a.TXT", "A");
  folder.write("b.Md", "B");
  EXPECT_EQ(text(Corpus::open(folder.path(), kBytes)), "A|B|");
  const std::string path = folder / "t.BIN";
  write_token_file(path, {1, 2}, 257, -1);
  EXPECT_THAT(tokens(Corpus::open(path, kBytes)), ElementsAre(1, 2));
}

TEST(Corpus, CountsFilesThatItDoesNotReadByEnding) {
  const test::TemporaryFolder folder;
  folder.write("a.md", "A");
  EXPECT_EQ(Corpus::open(folder.path(), kBytes).left_out(), std::nullopt);
  for (const char* name : {"x.JSON", "sub/y.json", "z.webp", "LICENSE", ".hidden", "build/x.json"})
    folder.write(name, "{}");
  std::filesystem::create_symlink("a.md", folder / "b.md");
  std::filesystem::create_symlink("nowhere", folder / "c.md");
  EXPECT_EQ(Corpus::open(folder.path(), kBytes).left_out(),
            "in " + folder.path() + " 5 files are not read: 2 .json, 1 .md (links), 1 .webp, 1 without an ending");
  std::filesystem::remove(folder / "a.md");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("4 files are not read")) << "its link leads nowhere now";
}

TEST(Corpus, RefusesMissingEmptyAndUnreadableData) {
  test::TemporaryFolder folder;
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

TEST(Corpus, RefusesPipesAndOpensHugeFilesWithoutReadingThem) {
  test::TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe.txt").c_str(), 0600), 0);
  EXPECT_THAT(refusal(folder / "pipe.txt"), HasSubstr("must be a regular file: " + (folder / "pipe.txt")));
  EXPECT_THAT(refusal("/dev/zero"), HasSubstr("must be a regular file: /dev/zero"));
  std::filesystem::create_symlink(folder / "b", folder / "a");
  std::filesystem::create_symlink(folder / "a", folder / "b");
  EXPECT_THAT(refusal(folder / "a"), HasSubstr("no such file or folder"));
  EXPECT_THAT(refusal("nowhere/at-all.txt"), HasSubstr("(seen from " + std::filesystem::current_path().string() + ")"));
  folder.write("tree/a.md", "A");
  std::filesystem::create_directory_symlink(folder / "tree", folder / "tree/again");
  ASSERT_EQ(mkfifo((folder / "tree/pipe.md").c_str(), 0600), 0);
  EXPECT_EQ(text(Corpus::open(folder / "tree", kBytes)), "A|");
  const std::string sparse = folder.write("sparse.txt", std::string(1 << 16, 'x'));
  std::error_code refused;
  std::filesystem::resize_file(sparse, uintmax_t{1} << 40, refused);
  if (refused) GTEST_SKIP() << "no sparse files of 1 TiB here: " << refused.message();
  const Corpus corpus = Corpus::open(sparse, kBytes);
  EXPECT_EQ(corpus.size(), (int64_t{1} << 40) + 1);
  int64_t last[2];
  corpus.read(corpus.size() - 2, 2, last);
  EXPECT_THAT(last, ElementsAre(0, text::ByteTokenizer::kEnd));
}

TEST(Corpus, RefusesAFileOfTooManyBytes) {
  // This file system allows a sparse file of that size.
  const std::string path = concat("/dev/shm/colossal-test-", ::getpid(), ".txt");
  std::ofstream{path} << std::string(1 << 16, 'x');
  std::error_code refused;
  std::filesystem::resize_file(path, uintmax_t{1} << 59, refused);
  if (!refused) EXPECT_THAT(refusal(path), HasSubstr("must have at most 2^56 bytes: got 576460752303423488"));
  std::filesystem::remove(path);
  if (refused) GTEST_SKIP() << "no sparse files of 2^59 bytes here: " << refused.message();
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
  test::TemporaryFolder folder;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) folder.write(std::string(name) + ".md", name);
  const auto [training, held_out] = Corpus::open(folder.path(), kBytes).split(1.0 / 3);
  EXPECT_EQ(text(training), "a|b|d|e|g|");
  EXPECT_EQ(text(held_out), "c|f|");
}

bool crosses_a_border(const std::string& text) {
  for (size_t i = 1; i < text.size(); ++i)
    if (text[i] != '|' && text[i - 1] != '|' && text[i] != text[i - 1]) return true;
  return false;
}

/// Returns the held-out text of documents of these sizes; document i consists of one letter, a, b, ... Checks that no
/// token is lost or doubled, that the held-out part is not too large, and that an end token separates documents in the
/// training part.
std::string held_out_of(const std::vector<int64_t>& sizes, double fraction) {
  test::TemporaryFolder folder;
  std::string all;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string content(sizes[i] - 1, static_cast<char>('a' + i % 26));  // an end token is added
    folder.write(concat(1000 + i, ".md"), content);
    all += content + "|";
  }
  const auto [training, held_out] = Corpus::open(folder.path(), kBytes).split(fraction);
  const double wanted = std::floor(fraction * static_cast<double>(all.size()));
  EXPECT_LE(held_out.size(), wanted);
  EXPECT_GE(held_out.size(), 0.9 * wanted);
  // Each document is its training part followed by its held-out part, except for one token per cut, which an end token
  // replaces.
  const std::string kept = text(training), held = text(held_out);
  EXPECT_EQ(kept.size() + held.size(), all.size());
  EXPECT_EQ(kept.back(), '|');
  EXPECT_FALSE(crosses_a_border(kept)) << "two documents without an end token between them";
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    const auto in = [&](const std::string& text) { return std::count(text.begin(), text.end(), letter); };
    EXPECT_LE(in(kept) + in(held), in(all)) << letter << " is doubled";
    EXPECT_GE(in(kept) + in(held), in(all) - static_cast<int64_t>(sizes.size() / 26 + 1)) << letter << " is lost";
  }
  return held;
}

TEST(Corpus, HoldsOutItsFractionForAnySizes) {
  EXPECT_EQ(held_out_of(std::vector<int64_t>(20, 3), 0.1), "jj|tt|") << "equal documents stay whole";
  const std::string tail = std::string(49, 'a') + "|";
  EXPECT_EQ(held_out_of({1000, 3}, 0.05), tail) << "a large one and a tiny one";
  EXPECT_EQ(held_out_of({3, 1000}, 0.05), std::string(49, 'b') + "|");
  EXPECT_EQ(held_out_of({1000}, 0.05), tail) << "one alone";
  EXPECT_EQ(held_out_of({100, 100, 100}, 0.1), "aaaaaaaaa|bbbbbbbbb|ccccccccc|") << "none fits: each gives its end";
  EXPECT_EQ(held_out_of(std::vector<int64_t>(10, 2), 0.05), "|") << "all tiny";
  EXPECT_EQ(held_out_of({2, 2}, 0.05), "");
  // One document fits, and the largest document contributes the missing tokens from its end.
  EXPECT_EQ(held_out_of({8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 9}, 0.15).size(), 13u);
  std::vector<int64_t> mixed{50'000};
  for (int64_t i = 0; i < 60; ++i) mixed.push_back(2 + i * i * 7919 % 997);
  for (const double fraction : {0.001, 0.05, 0.5, 0.9}) held_out_of(mixed, fraction);
  std::rotate(mixed.begin(), mixed.begin() + 1, mixed.end());
  for (const double fraction : {0.001, 0.05, 0.5, 0.9}) held_out_of(mixed, fraction);
}

TEST(Corpus, DescribesTheContentsOfDocuments) {
  test::TemporaryFolder here, there;
  for (const test::TemporaryFolder* folder : {&here, &there}) {
    folder->write("a.md", "abc");
    folder->write("sub/a.md", "abd");
    folder->write("\xff.md", "e");
    folder->write("large.txt", std::string(StoredTokens::kKept + 1, 'x'));
  }
  const auto contents = [](const std::string& path) { return Corpus::open(path, kBytes).contents(); };
  const auto before = contents(here.path());
  EXPECT_EQ(contents(there.path()), before) << "the same text in another place";
  EXPECT_EQ(contents(there.path() + "/"), before);
  EXPECT_THAT(before,
              ElementsAre(Pair("?.md", StartsWith("1 bytes with checksum ")),
                          Pair("a.md", StartsWith("3 bytes with checksum ")),
                          Pair("large.txt", StartsWith("1048577 bytes")), Pair("sub/a.md", StartsWith("3 bytes"))));
  EXPECT_NE(before.at("a.md"), before.at("sub/a.md"));
  there.write("large.txt", std::string(StoredTokens::kKept, 'x') + "y");
  there.write("sub/a.md", "dba");
  auto edited = contents(there.path());
  EXPECT_NE(edited.at("large.txt"), before.at("large.txt"));
  EXPECT_NE(edited.at("sub/a.md"), before.at("sub/a.md"));
  EXPECT_THAT(Corpus::of({1, 2, 3, 4}, -1, 5).split(0.5).first.contents().at("memory"),
              HasSubstr("of which tokens 0 to 2"));
}

TEST(Corpus, ListsDocumentsWhoseNamesAreEqualAsUtf8) {
  test::TemporaryFolder folder;
  folder.write("\xfe.md", "a");
  folder.write("\xff.md", "b");
  const auto before = Corpus::open(folder.path(), kBytes).contents();
  EXPECT_EQ(before.size(), 1u);
  for (const char* name : {"\xfe.md", "\xff.md"}) {
    folder.write(name, "c");
    EXPECT_NE(Corpus::open(folder.path(), kBytes).contents(), before) << static_cast<int>(name[0]);
    folder.write(name, name[0] == '\xfe' ? "a" : "b");
  }
}

TEST(Corpus, SummarizesManyDocuments) {
  test::TemporaryFolder folder;
  for (int i = 0; i <= 1000; ++i) folder.write(concat(i, ".md"), "x");
  const auto before = Corpus::open(folder.path(), kBytes).contents();
  EXPECT_THAT(before, ElementsAre(Pair("1001 documents", StartsWith("checksum "))));
  folder.write("500.md", "y");
  EXPECT_NE(Corpus::open(folder.path(), kBytes).contents(), before);
}

TEST(Corpus, KeepsOrRefusesTextThatIsEditedLater) {
  test::TemporaryFolder folder;
  const std::string small = folder.write("small.txt", "hello"),
                    large = folder.write("large.txt", std::string(StoredTokens::kKept + 1, 'x'));
  const std::string tokens_file = folder / "t.bin";
  write_token_file(tokens_file, std::vector<uint32_t>(StoredTokens::kKept, 3), 257, -1);
  const Corpus kept = Corpus::open(small, kBytes), text_on_disk = Corpus::open(large, kBytes),
               tokens_on_disk = Corpus::open(tokens_file, kBytes);
  for (const std::string& path : {small, large, tokens_file}) std::filesystem::resize_file(path, 2);
  EXPECT_EQ(text(kept), "hello|");
  for (const Corpus* corpus : {&text_on_disk, &tokens_on_disk}) {
    std::vector<int64_t> out(100);
    try {
      corpus->read(corpus->size() - 100, 100, out.data());
      ADD_FAILURE() << "read what is not there";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("became shorter while it was read: it had "));
      EXPECT_THAT(error.what(), HasSubstr(corpus == &text_on_disk ? large : tokens_file));
    }
  }
  const Corpus replaced = Corpus::open(folder.write("large.txt", std::string(StoredTokens::kKept + 1, 'y')), kBytes);
  std::filesystem::rename(folder.write("new.txt", "short"), large);
  EXPECT_EQ(tokens(replaced)[StoredTokens::kKept], 'y') << "a file that is replaced goes on to be read as it was";
}

TEST(Corpus, HasEnoughTextInTheProjectItself) {
  const Corpus corpus = Corpus::open(test::source_dir(), kBytes);
  EXPECT_GT(corpus.size(), 100'000);
  const auto [training, held_out] = corpus.split(0.05);
  EXPECT_GT(held_out.size(), 1000);
  EXPECT_EQ(training.size() + held_out.size(), corpus.size());
}

}  // namespace
}  // namespace colossal::data::corpus_test
