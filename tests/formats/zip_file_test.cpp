#include "colossal/formats/zip_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "support/torch_bytes.h"

namespace colossal::formats::zip_file_test {
namespace {

using testing::HasSubstr;

class ZipFiles : public testing::Test {
 protected:
  void SetUp() override {
    if (!reads_zips()) GTEST_SKIP() << "built without libzip";
  }
  std::string refusal(const std::string& bytes) {
    const std::string path = folder_.write("x.zip", bytes);
    return test::thrown_message([&] {
      const ZipFile file(path);
      for (const ZipMember& member : file.members()) file.content(member, 1 << 20);
    });
  }
  test::TemporaryFolder folder_;
};

TEST_F(ZipFiles, ReadsMembersAndPartsOfThem) {
  const std::string path =
      folder_.write("a.zip", test::zip_of({{"a/b", "0123456789"}, {"c", "abcdefghij", true}, {"empty", ""}}));
  const ZipFile file(path);
  ASSERT_EQ(file.members().size(), 3u);
  EXPECT_TRUE(is_zip(path));
  EXPECT_EQ(file.find("d"), nullptr);
  EXPECT_EQ(file.content(*file.find("empty"), 0), "");
  for (const auto& [name, want] : {std::pair("a/b", "0123456789"), std::pair("c", "abcdefghij")}) {
    const ZipMember& member = *file.find(name);
    EXPECT_EQ(member.is_stored, want[0] == '0');
    EXPECT_EQ(file.content(member, 10), want);
    std::string part(4, '\0');
    file.read(member, 3, 4, part.data());
    EXPECT_EQ(part, std::string(want).substr(3, 4));
  }
}

TEST_F(ZipFiles, RefusesRangesAndSizesOutsideAMember) {
  const ZipFile file(folder_.write("a.zip", test::zip_of({{"a", "0123456789"}})));
  const ZipMember& member = file.members()[0];
  char byte = 0;
  EXPECT_THAT(test::thrown_message([&] { file.content(member, 9); }), HasSubstr("may have at most 9 bytes: got 10"));
  EXPECT_THAT(test::thrown_message([&] { file.read(member, 11, 0, &byte); }), HasSubstr("must be within"));
  EXPECT_THAT(test::thrown_message([&] { file.read(member, 1, ~uint64_t{0}, &byte); }), HasSubstr("must be within"));
}

TEST_F(ZipFiles, RefusesDamage) {
  const std::string whole = test::zip_of({{"a", "0123456789"}});
  EXPECT_EQ(refusal(whole), "");
  EXPECT_THAT(refusal(whole.substr(0, 60)), HasSubstr("is no zip file or is damaged"));
  EXPECT_THAT(refusal(test::zip_of({{"a", "1"}, {"a", "2"}})), HasSubstr("a must be there once: got two"));
  std::string changed = whole;
  changed[changed.find("56")] = '6';
  EXPECT_THAT(refusal(changed), HasSubstr("CRC error"));
  // the size in the directory, which is 24 bytes after its mark
  const size_t size = whole.find("PK\x01\x02") + 24;
  changed = whole;
  changed.replace(size, 4, test::little(0x7fffffff, 4));
  EXPECT_THAT(refusal(changed), HasSubstr("must have a size that its bytes can have: got 2147483647 of 10"));
  changed.replace(size - 4, 4, test::little(0x7fffffff, 4));
  EXPECT_THAT(refusal(changed), testing::AnyOf(HasSubstr("2147483647 bytes in a file of"), HasSubstr("is damaged")));
  changed = whole;
  changed.replace(whole.find("PK\x01\x02") + 10, 2, test::little(12, 2));  // bzip2
  EXPECT_THAT(refusal(changed), HasSubstr("must be stored or deflated: got method 12"));
}

TEST(ZipFile, NamesTheLibraryThatABuildLacks) {
  if (reads_zips()) GTEST_SKIP() << "built with libzip";
  EXPECT_THAT(test::thrown_message([] { ZipFile file("a.zip"); }), HasSubstr("install libzip-dev"));
}

}  // namespace
}  // namespace colossal::formats::zip_file_test
