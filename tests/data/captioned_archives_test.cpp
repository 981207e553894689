// Pictures with captions in tar and Parquet files: what is read, refused and skipped, whole, damaged and hostile.
#include <gmock/gmock.h>

#include <filesystem>
#include <random>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/data/pictures/captioned.h"
#include "colossal/data/pictures/tar.h"
#include "data/tiny_pictures.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::captioned_archives_test {
namespace {

using test_pictures::png;
using test_pictures::tar;
using test_pictures::tar_member;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const CaptionedOptions kSkip{.on_error = OnError::Skip};
const std::string kParquet = test::source_dir() + "/tests/data/parquet/";  // files that make_files.py wrote
const std::string kEnd(1024, '\0');

/// Returns `name WxH: caption` of each picture.
std::vector<std::string> read(const std::string& path, const CaptionedOptions& options = {}) {
  const auto pictures = open_captioned(path, options);
  std::vector<std::string> all;
  for (int64_t i = 0; i < pictures->count(); ++i) {
    const CaptionedPicture& p = pictures->at(i);
    all.push_back(concat(p.name, " ", p.width, "x", p.height, ": ", p.caption));
  }
  return all;
}

std::string refusal(const std::string& path, const CaptionedOptions& options = {}) {
  return test::thrown_message([&] { open_captioned(path, options); });
}

class CaptionedTars : public testing::Test {
 protected:
  void SetUp() override {
    if (!reads_tars()) GTEST_SKIP() << "built without libarchive";
  }
  test::TemporaryFolder folder;
};

TEST(CaptionedTarsWithoutLibrary, NameThePackage) {
  if (reads_tars()) GTEST_SKIP() << "built with libarchive";
  const test::TemporaryFolder folder;
  EXPECT_THAT(refusal(folder.write("a.tar", tar({{"x.png", png(3, 2)}, {"x.txt", "x"}})), kSkip),
              HasSubstr("install libarchive-dev"));
}

TEST_F(CaptionedTars, GroupMembersByNameUpToTheFirstPoint) {
  const std::string path = folder.write("a.tar", tar({{"x.txt", " a cat \n"},
                                                      {"x.png", png(3, 2)},
                                                      {"deep.er/y.JPG", test_pictures::turned_jpeg()},
                                                      {"deep.er/y.json", R"({"caption": "a dog", "url": "u"})"},
                                                      {"x.json", R"({"caption": "not read"})"},
                                                      {"x.mask.png", "no picture"},
                                                      {"z.caption", "z"},
                                                      {"z.pkl", "pickle"},
                                                      {"z.png", png(5, 4)},
                                                      {"lost.json", "{}"},
                                                      {"._x.png", "of a Mac"}}));
  EXPECT_THAT(read(path),
              ElementsAre("a.tar/x.png 3x2: a cat", "a.tar/deep.er/y.JPG 20x30: a dog", "a.tar/z.png 5x4: z"));
  const auto pictures = open_captioned(path);
  EXPECT_EQ(pictures->bytes(0), png(3, 2));
  EXPECT_EQ(pictures->bytes(1), test_pictures::turned_jpeg());
  EXPECT_EQ(pictures->bytes(2), png(5, 4));
  EXPECT_THAT(pictures->take_notices(), ElementsAre("in " + path + " 1 samples have no picture"));
  folder.write("a.tar", tar({{"x.txt", "another size"}}));
  EXPECT_THAT(test::thrown_message([&] { pictures->bytes(0); }), HasSubstr("a.tar changed since it was opened"));
}

TEST_F(CaptionedTars, HaveControlPicturesBesidePictures) {
  const std::string path = folder.write("a.tar", tar({{"d.r/x.control.png", png(7, 2)},
                                                      {"d.r/x.png", png(3, 2)},
                                                      {"d.r/x.txt", "x"},
                                                      {"y.png", png(4, 2)},
                                                      {"y.txt", "y"},
                                                      {"lost.control.png", png(9, 2)}}));
  const auto pictures = open_captioned(path, {.has_controls = true});
  ASSERT_EQ(pictures->count(), 2);
  EXPECT_TRUE(pictures->has_control(0));
  EXPECT_EQ(pictures->control_bytes(0), png(7, 2));
  EXPECT_EQ(pictures->control_name(0), "a.tar/d.r/x.control.png");
  EXPECT_FALSE(pictures->has_control(1));
  EXPECT_EQ(pictures->control_name(1), "a.tar/y.control.png");
  EXPECT_THAT(test::thrown_message([&] { pictures->control_bytes(1); }), HasSubstr("a.tar/y.png has no control"));
}

TEST_F(CaptionedTars, HaveNamesOfAnyForm) {
  const std::string name = "\xc3\xa9/" + std::string(150, 'n') + ".png";
  std::string bytes = tar_member("a folder/", "", '5') + test_pictures::pax_path(name) + tar_member("cut", png(3, 2)) +
                      test_pictures::pax_path(name.substr(0, name.size() - 3) + "txt") + tar_member("cut", "n") +
                      tar_member("\xc3\xa9.png", png(4, 2)) + tar_member("\xc3\xa9.txt", "e") + kEnd;
  bytes += tar({{"joined.png", png(5, 2)}, {"joined.txt", "after the end of the first"}});
  const auto pictures = open_captioned(folder.write("a.tar", bytes));
  ASSERT_EQ(pictures->count(), 3);
  EXPECT_EQ(pictures->at(0).name, "a.tar/" + name);
  EXPECT_EQ(pictures->at(1).name, "a.tar/\xc3\xa9.png");
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(pictures->bytes(i), png(3 + i, 2)) << i;
}

TEST_F(CaptionedTars, FollowOneAnother) {
  for (int i = 8; i < 11; ++i)
    folder.write("t/" + concat(i < 10 ? "0" : "", i) + ".tar",
                 tar({{"x.png", png(i, 1)}, {"x.txt", concat("caption ", i)}}));
  const std::vector<std::string> want = {"08.tar/x.png 8x1: caption 8", "09.tar/x.png 9x1: caption 9",
                                         "10.tar/x.png 10x1: caption 10"};
  EXPECT_EQ(read(folder / "t"), want);
  EXPECT_EQ(read(folder / "t/{08..10}.tar"), want);
  EXPECT_THAT(read(folder / "t/0{8..9}.tar"), testing::SizeIs(2));
  EXPECT_THAT(refusal(folder / "t/{08..11}.tar"), HasSubstr("t/11.tar"));
  EXPECT_EQ(read(folder / "t/{08..11}.tar", kSkip), want);
  EXPECT_THAT(refusal(folder / "t/{10..08}.tar"), HasSubstr("needs two numbers in this order"));
  EXPECT_THAT(refusal(folder / "t/{a..b}.tar"), HasSubstr("needs two numbers in this order"));
}

TEST_F(CaptionedTars, NeedOnePictureAndACaption) {
  const std::pair<std::string, std::string> good{"x.png", png(3, 2)}, caption{"x.txt", "x"};
  for (const auto& [members, why] :
       std::vector<std::pair<std::vector<std::pair<std::string, std::string>>, std::string>>{
           {{{"y.png", png(3, 2)}}, "a.tar/y.png has no caption"},
           {{{"y.png", png(3, 2)}, {"y.txt", "\n"}}, "a.tar/y.png has no caption"},
           {{{"y.png", png(3, 2)}, {"y.txt", "\xff"}}, "a.tar/y.png: the caption is not UTF-8"},
           {{{"y.png", png(3, 2)}, {"y.json", "{"}}, "a.tar/y.png"},
           {{{"y.png", png(3, 2)}, {"y.json", "{}"}}, "a.tar/y.png: no caption: it has no text or caption"},
           {{{"y.png", png(3, 2)}, {"y.jpg", ""}, {"y.txt", "y"}}, "a.tar/y.jpg is one of several pictures"},
           {{{"y.png", png(3, 2).substr(0, 50)}, {"y.txt", "y"}}, "a.tar/y.png is cut short"}}) {
    auto all = members;
    all.insert(all.begin(), {good, caption});
    const std::string path = folder.write("a.tar", tar(all));
    EXPECT_THAT(refusal(path), AllOf(HasSubstr(why), HasSubstr("data.on_error = \"skip\"")));
    EXPECT_THAT(read(path, kSkip), ElementsAre("a.tar/x.png 3x2: x")) << why;
    EXPECT_THAT(open_captioned(path, kSkip)->take_notices(), Contains(HasSubstr(why)));
  }
}

TEST_F(CaptionedTars, MayNotBeCompressed) {
  for (const auto& [start, program] : {std::pair{"\x1f\x8b\x08", "gzip -d"}, std::pair{"\x28\xb5\x2f\xfd", "zstd -d"},
                                       std::pair{"BZh9", "bzip2 -d"}, std::pair{"\xfd\x37zXZ", "xz -d"}})
    for (const char* name : {"a.tar", "a.tar.gz"})
      EXPECT_THAT(refusal(folder.write(name, start + std::string(600, 'x'))),
                  AllOf(HasSubstr(concat(name, " is a compressed tar")), HasSubstr(program)));
}

// A tar that ends early may end between two members, where only the end mark shows it.
TEST_F(CaptionedTars, NameWhereTheyAreCutShort) {
  const std::string whole =
      tar({{"x.png", png(3, 2)}, {"x.txt", "x"}, {"y.png", png(4, 2)}, {"y.txt", "a cat"}, {"z.png", png(4, 2)}});
  for (size_t size = 0; size + 1024 < whole.size(); size += size % 512 == 0 ? 1 : 511) {
    const std::string path = folder.write("a.tar", whole.substr(0, size));
    EXPECT_THAT(refusal(path), AllOf(HasSubstr("a.tar "), HasSubstr("fetch it again"))) << size;
    if (size >= 2048) {
      EXPECT_THAT(open_captioned(path, kSkip)->at(0).caption, "x") << size;
      EXPECT_THAT(open_captioned(path, kSkip)->take_notices(), Contains(HasSubstr("fetch it again"))) << size;
    }
  }
  EXPECT_THAT(refusal(folder.write("a.tar", std::string(2000, 'x'))), HasSubstr("a.tar is no tar file or is damaged"));
}

// The content of members is passed over: such a tar, of which one member is a hole of the disk, takes no time.
TEST_F(CaptionedTars, ReadMembersAtTheirPlaces) {
  std::string start = tar_member("x.bin", "");
  std::string bytes = tar({{"x.png", png(3, 2)}, {"x.txt", "x"}});
  constexpr int64_t kHole = int64_t{7} << 30;  // 7 GiB: eleven octal digits hold it
  char size[16];
  std::snprintf(size, sizeof size, "%011llo", static_cast<unsigned long long>(kHole));
  start.replace(124, 11, size);
  unsigned sum = 8 * ' ';
  for (size_t i = 0; i < 512; ++i) sum += i >= 148 && i < 156 ? 0 : static_cast<uint8_t>(start[i]);
  std::snprintf(size, sizeof size, "%06o", sum);
  start.replace(148, 6, size);
  const std::string path = folder.write("a.tar", start);
  std::filesystem::resize_file(path, 512 + kHole);
  std::ofstream(path, std::ios::binary | std::ios::app) << bytes;
  const auto pictures = open_captioned(path);
  ASSERT_EQ(pictures->count(), 1);
  EXPECT_EQ(pictures->bytes(0), png(3, 2));
}

TEST_F(CaptionedTars, SurviveAnyBytes) {
  const std::string whole = test_pictures::pax_path("x.png") + tar({{"a", png(3, 2)}, {"x.json", R"({"text": "x"})"}});
  std::mt19937 random(5);
  int64_t refused = 0;
  for (int i = 0; i < 100; ++i) {
    std::string bytes = whole;
    const size_t first = 512 * (random() % (bytes.size() / 512));
    for (int change = 0; change <= i % 3; ++change)
      bytes[i % 2 == 0 ? random() % bytes.size() : first + random() % 512] = static_cast<char>(random() % 256);
    if (i % 10 == 0) bytes.resize(random() % bytes.size());
    const std::string path = folder.write("a.tar", bytes);
    for (const CaptionedOptions& options : {CaptionedOptions(), kSkip})
      refused += !test::thrown_message([&] { open_captioned(path, options)->bytes(0); }).empty();
  }
  EXPECT_GT(refused, 60);
}

const std::vector<std::string> kCaptions = {"picture 0", "picture 1", "picture 2", "picture 3",
                                            "picture 4", "picture 5", "picture 6"};

/// Checks the seven pictures of make_files.py, in any order, as often as `times`.
void check_pictures(const CaptionedPictures& pictures, int times) {
  ASSERT_EQ(pictures.count(), 7);
  for (int k = 0; k < times * 7; ++k) {
    const int64_t i = k * 3 % 7;
    EXPECT_EQ(pictures.at(i).width, 5 + i);
    EXPECT_EQ(pictures.at(i).height, 3 + i);
    EXPECT_EQ(pictures.at(i).caption, kCaptions[i]);
    const Picture picture = decode_picture(pictures.bytes(i), pictures.at(i).name);
    EXPECT_EQ(picture.width, 5 + i);
    EXPECT_EQ(picture.rgb[0], 10 * i);
  }
}

TEST(CaptionedParquet, ReadsPicturesAndStructuresOfThem) {
  for (const char* name : {"pictures", "pictures_plain", "pictures_version2"}) {
    SCOPED_TRACE(name);
    const auto pictures = open_captioned(kParquet + name + ".parquet");
    EXPECT_EQ(pictures->at(6).name, concat(name, ".parquet:7"));
    check_pictures(*pictures, 2);
    EXPECT_THAT(pictures->take_notices(), IsEmpty());
  }
  const std::string path = kParquet + "pictures_bytes.parquet";
  check_pictures(*open_captioned(path, {.text_column = "title"}), 1);
  EXPECT_THAT(refusal(path), AllOf(HasSubstr(path), HasSubstr("no column of captions: text or caption"),
                                   HasSubstr("set data.text_columns")));
  EXPECT_THAT(refusal(kParquet + "snappy.parquet"), HasSubstr("no column of encoded pictures"));
}

// Row 1 has no control picture, and row 2 an empty structure; the columns alternate between two blocks.
TEST(CaptionedParquet, ReadsTheColumnOfControlPictures) {
  for (const char* name : {"controls", "controls_plain"}) {
    SCOPED_TRACE(name);
    const std::string path = kParquet + name + ".parquet";
    const auto pictures = open_captioned(path, {.has_controls = true});
    check_pictures(*pictures, 2);
    for (int64_t i = 0; i < 7; ++i) {
      ASSERT_EQ(pictures->has_control(i), i != 1 && i != 2) << i;
      EXPECT_EQ(pictures->control_name(i), concat("column conditioning_image of ", name, ".parquet:", i + 1));
      if (pictures->has_control(i)) {
        EXPECT_EQ(decode_picture(pictures->control_bytes(i), "a").rgb[0], 200 - i);
      }
    }
    EXPECT_THAT(test::thrown_message([&] { pictures->control_bytes(1); }), HasSubstr("has no control picture"));
    const auto without = open_captioned(path);
    check_pictures(*without, 1);
    EXPECT_FALSE(without->has_control(0));
  }
  EXPECT_FALSE(open_captioned(kParquet + "pictures.parquet", {.has_controls = true})->has_control(0));
}

TEST(CaptionedParquet, ReadsAFolderOfFiles) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "data");
  std::filesystem::copy(kParquet + "pictures.parquet", folder / "data/b.parquet");
  std::filesystem::copy(kParquet + "pictures_plain.parquet", folder / "data/a.parquet");
  const auto pictures = open_captioned(folder.path());
  ASSERT_EQ(pictures->count(), 14);
  EXPECT_EQ(pictures->at(0).name, "data/a.parquet:1");
  EXPECT_EQ(pictures->at(13).name, "data/b.parquet:7");
  EXPECT_EQ(pictures->bytes(2), pictures->bytes(9));
  folder.write("data/a.parquet", "PAR1");
  EXPECT_THAT(test::thrown_message([&] { pictures->bytes(0); }), HasSubstr("a.parquet changed since it was opened"));
  EXPECT_THAT(refusal(folder.path()),
              AllOf(HasSubstr("data/a.parquet: it is not a Parquet file"), HasSubstr("data.on_error = \"skip\"")));
  EXPECT_EQ(open_captioned(folder.path(), kSkip)->count(), 7);
}

TEST(CaptionedParquet, NamesFaultyRows) {
  const std::string path = kParquet + "pictures_faulty.parquet";
  EXPECT_THAT(refusal(path), HasSubstr("pictures_faulty.parquet:3: no picture"));
  const auto pictures = open_captioned(path, kSkip);
  ASSERT_EQ(pictures->count(), 3);
  EXPECT_EQ(pictures->at(2).name, "pictures_faulty.parquet:7");
  EXPECT_EQ(decode_picture(pictures->bytes(2), "a").width, 11);
  EXPECT_THAT(pictures->take_notices(),
              ElementsAre(HasSubstr("faulty.parquet:3: no picture"), HasSubstr("faulty.parquet:4: no picture"),
                          HasSubstr("faulty.parquet:5: no caption"), HasSubstr("faulty.parquet:6 is cut short")));
}

TEST(CaptionedParquet, ServesThreads) {
  const auto pictures = open_captioned(kParquet + "pictures.parquet");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { check_pictures(*pictures, 20); });
  for (std::thread& thread : threads) thread.join();
}

TEST(CaptionedParquet, SurvivesAnyBytes) {
  const test::TemporaryFolder folder;
  std::mt19937 random(6);
  int64_t refused = 0;
  for (int i = 0; i < 100; ++i) {
    const char* names[] = {"pictures", "pictures_plain", "pictures_version2"};
    std::string bytes = test::read_all(kParquet + names[i % 3] + ".parquet");
    for (int change = 0; change <= i % 3; ++change) {
      const size_t at = i % 2 == 0 ? random() % bytes.size() : bytes.size() - 1 - random() % 900;
      bytes[at] = static_cast<char>(random() % 256);
    }
    if (i % 20 == 0) bytes.resize(random() % bytes.size());
    const std::string path = folder.write("a.parquet", bytes);
    for (const CaptionedOptions& options : {CaptionedOptions(), kSkip}) {
      refused += !test::thrown_message([&] {
                    const auto pictures = open_captioned(path, options);
                    for (int64_t k = 0; k < pictures->count(); ++k) pictures->bytes(k);
                  }).empty();
    }
  }
  EXPECT_GT(refused, 30);
}

}  // namespace
}  // namespace colossal::data::captioned_archives_test
