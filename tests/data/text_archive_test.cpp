#include "colossal/data/texts/text_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/data/texts/corpus.h"
#include "colossal/data/texts/files.h"
#include "colossal/text/tokenizers/byte.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::text_archive_test {
namespace {

using testing::HasSubstr;

const text::ByteTokenizer kBytes;

std::string gzip_of(const std::string& path, const std::string& content) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
  gzclose(file);
  return path;
}

std::string refusal(const std::string& path) {
  return test::thrown_message([&] { read_text_archive(path); });
}

/// A folder with small texts, one above 1 MiB, an empty one, one of another format and files that are no texts.
struct TextArchive : testing::Test {
  void SetUp() override {
    folder.write("from/b.md", "B\n3 c.md\nno file");
    folder.write("from/a/z.cpp", "AZ");
    folder.write("from/empty.txt", "");
    folder.write("from/large.txt", [] {
      std::string text;
      for (int i = 0; text.size() < (3 << 19); ++i) text += concat(i, " lines, ");
      return text;
    }());
    folder.write("from/packed.txt", "\x1f\x8b\x08 begins like gzip");
    folder.write("from/c.png", "no text");
    folder.write("from/env/pyvenv.cfg", "home = /usr/bin");
    folder.write("from/env/module.py", "no source of the project");
    archive = folder / "texts.gz";
  }
  test::TemporaryFolder folder;
  std::string archive;
};

TEST_F(TextArchive, HoldsTheTextsOfAFolder) {
  write_text_archive(folder / "from", archive);
  const std::vector<ArchivedText> files = read_text_archive(archive);
  const std::vector<std::string> wanted = text_files(folder / "from", {});
  ASSERT_EQ(files.size(), wanted.size());
  EXPECT_EQ(files.size(), 5u);
  for (size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(folder / ("from/" + files[i].name), wanted[i]);
    EXPECT_TRUE(files[i].text == read_file(wanted[i], 1 << 24)) << wanted[i];
  }
}

TEST_F(TextArchive, DependsOnTheTextsOnly) {
  write_text_archive(folder / "from", archive);
  const std::string first = read_file(archive, 1 << 24);
  std::filesystem::rename(folder / "from", folder / "moved");
  write_text_archive(folder / "moved", archive);
  EXPECT_TRUE(read_file(archive, 1 << 24) == first);
  EXPECT_LT(first.size(), size_t{1} << 19) << "of 1.5 MiB";
}

TEST_F(TextArchive, OpensAsTheFolder) {
  write_text_archive(folder / "from", archive);
  const Corpus packed = Corpus::open_archive(archive, kBytes), plain = Corpus::open(folder / "from", kBytes);
  EXPECT_EQ(packed.contents(), plain.contents());
  ASSERT_EQ(packed.size(), plain.size());
  std::vector<int64_t> got(packed.size()), want(packed.size());
  packed.read(0, packed.size(), got.data());
  plain.read(0, plain.size(), want.data());
  EXPECT_TRUE(got == want);
}

TEST_F(TextArchive, UnpacksToACopyOfTheFolder) {
  write_text_archive(folder / "from", archive);
  copy_text_files(archive, {}, folder / "copy");
  EXPECT_EQ(Corpus::open(folder / "copy", kBytes).contents(), Corpus::open(folder / "from", kBytes).contents());
  EXPECT_EQ(read_file(folder / "copy/empty.txt", 1), "");
  folder.write("file", "in the way");
  EXPECT_THROW(copy_text_files(archive, {}, folder / "file/copy"), Error);
}

TEST_F(TextArchive, SelectsFoldersUpToANumberOfBytes) {
  folder.write("tree/a/one.cpp", "12345");
  folder.write("tree/b/two.cpp", "ab\xC3\xA9");
  folder.write("tree/b/three.md", "1234567890");
  folder.write("tree/c.md", "not selected");
  const auto selected = [&](int64_t bytes, std::vector<std::string> folders) {
    write_text_archive(folder / "tree", archive, {.folders = std::move(folders), .bytes = bytes});
    std::string texts;
    for (const ArchivedText& file : read_text_archive(archive)) texts += file.name + "=" + file.text + ";";
    return texts;
  };
  EXPECT_EQ(selected(0, {"b", "a"}), "a/one.cpp=12345;b/three.md=1234567890;b/two.cpp=ab\xC3\xA9;");
  EXPECT_EQ(selected(13, {"b", "a"}), "b/three.md=1234567890;b/two.cpp=ab;");  // not half a character
  EXPECT_EQ(selected(17, {"b", "a"}), "a/one.cpp=123;b/three.md=1234567890;b/two.cpp=ab\xC3\xA9;");
  EXPECT_EQ(selected(5, {}), "a/one.cpp=12345;");
  EXPECT_THROW(selected(5, {"none"}), Error);
}

// The size of the built-in text does not follow that of the tree.
TEST(ProjectText, HasAFixedNumberOfBytes) {
  const test::TemporaryFolder folder;
  write_text_archive(test::source_dir(), folder / "text.gz", project_text());
  int64_t bytes = 0;
  for (const ArchivedText& file : read_text_archive(folder / "text.gz"))
    bytes += static_cast<int64_t>(file.text.size());
  EXPECT_EQ(bytes, 5'500'000);
}

TEST_F(TextArchive, RefusesFoldersWithoutTexts) {
  folder.write("none/a.png", "no text");
  EXPECT_THROW(write_text_archive(folder / "none", archive), Error);
  folder.write("lines/a\nb.md", "A");
  EXPECT_THROW(write_text_archive(folder / "lines", archive), Error);
  EXPECT_FALSE(std::filesystem::exists(archive));
}

TEST_F(TextArchive, RefusesWrongContent) {
  const std::string start = "colossal text archive 1\n";
  EXPECT_EQ(refusal(gzip_of(archive, start + "1 a.md\nA")), "");
  for (const std::string& wrong :
       {std::string("another file"), start, start + "1 a.md\n", start + "2 a.md\nA", start + "1 a.md\nAB",
        start + "-1 a.md\nA", start + "x a.md\nA", start + "1a.md\nA", start + "99999999999999999999 a.md\nA",
        start + "1 ../a.md\nA", start + "1 /a.md\nA", start + "1 a/../../b.md\nA", start + "1 \nA", start + "1 a/\nA"})
    EXPECT_THAT(refusal(gzip_of(archive, wrong)),
                testing::AllOf(HasSubstr("[data] " + archive + " is not a text archive: wrong content at byte "),
                               HasSubstr("; install the program again")))
        << wrong;
  write_text_archive(folder / "from", archive);
  const std::string whole = read_file(archive, 1 << 24);
  std::ofstream(archive) << whole.substr(0, whole.size() / 2);
  EXPECT_THAT(refusal(archive), HasSubstr("is damaged or cut short"));
  std::ofstream(archive) << "plain";
  EXPECT_THAT(refusal(archive), HasSubstr("is not a gzip file"));
}

}  // namespace
}  // namespace colossal::data::text_archive_test
