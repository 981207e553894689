// Videos with captions: beside pictures in folders, lists and tar files, and clips of drawn shapes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/data/pictures/captioned.h"
#include "colossal/data/pictures/shapes.h"
#include "colossal/data/pictures/tar.h"
#include "colossal/data/videos/video.h"
#include "data/tiny_pictures.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::captioned_videos_test {
namespace {

using testing::Contains;
using testing::HasSubstr;

/// Two gray frames of 3 x 2 pixels, a second each.
const std::string kGray =
    "YUV4MPEG2 W3 H2 F1:1 Cmono\nFRAME\n\x10\x10\x10\x10\x10\x10"
    "FRAME\n\xeb\xeb\xeb\xeb\xeb\xeb";

std::vector<std::string> listed(const CaptionedPictures& pictures) {
  std::vector<std::string> lines;
  for (int64_t i = 0; i < pictures.count(); ++i) {
    const CaptionedPicture& one = pictures.at(i);
    lines.push_back(concat(one.name, " ", one.width, "x", one.height, " ", one.seconds, " s: ", one.caption));
  }
  return lines;
}

void expect_gray(const CaptionedPictures& pictures, int64_t index) {
  const auto video = open_video(pictures.open(index), pictures.at(index).name);
  EXPECT_EQ(frame_at(*video, 0.5).rgb, std::vector<uint8_t>(18, 0));
  EXPECT_EQ(frame_at(*video, 1.5).rgb, std::vector<uint8_t>(18, 255));
  EXPECT_EQ(pictures.bytes(index), kGray);
}

TEST(CaptionedVideos, StandBesidePictures) {
  const test::TemporaryFolder folder;
  folder.write("a.y4m", kGray);
  folder.write("a.txt", "it grows light");
  folder.write("b/b.png", test_pictures::png(5, 4));
  folder.write("b/b.txt", "a picture");
  const auto all = open_captioned(folder.path(), {.has_videos = true});
  EXPECT_THAT(listed(*all), testing::ElementsAre("a.y4m 3x2 2 s: it grows light", "b/b.png 5x4 0 s: a picture"));
  expect_gray(*all, 0);
  const auto pictures = open_captioned(folder.path());
  EXPECT_THAT(listed(*pictures), testing::ElementsAre("b/b.png 5x4 0 s: a picture"));
  EXPECT_THAT(pictures->take_notices(), Contains(HasSubstr("1 file is not read: 1 .y4m")));
}

TEST(CaptionedVideos, ReadListsAndTars) {
  const test::TemporaryFolder folder;
  folder.write("a.y4m", kGray);
  folder.write("metadata.jsonl", R"({"file_name": "a.y4m", "text": "light"})"
                                 "\n");
  const auto of_list = open_captioned(folder.path(), {.has_videos = true});
  EXPECT_THAT(listed(*of_list), testing::ElementsAre("a.y4m 3x2 2 s: light"));
  expect_gray(*of_list, 0);
  if (!reads_tars()) GTEST_SKIP() << "libarchive is not there";
  const test::TemporaryFolder tars;
  tars.write("x.tar", test_pictures::tar({{"1.txt", "one"}, {"1.y4m", kGray}}));
  const auto of_tar = open_captioned(tars / "x.tar", {.has_videos = true});
  EXPECT_THAT(listed(*of_tar), testing::ElementsAre("x.tar/1.y4m 3x2 2 s: one"));
  expect_gray(*of_tar, 0);
}

TEST(CaptionedVideos, RefuseOrSkipFilesByName) {
  const test::TemporaryFolder folder;
  folder.write("a.y4m", kGray.substr(0, kGray.size() - 1));
  folder.write("b.y4m", kGray);
  folder.write("c.gif", "");
  for (const char* name : {"a.txt", "b.txt", "c.txt"}) folder.write(name, "words");
  EXPECT_THAT(test::thrown_message([&] { open_captioned(folder.path(), {.has_videos = true}); }),
              HasSubstr("a.y4m is cut short within frame 1; to train without it set data.on_error = \"skip\""));
  const auto rest = open_captioned(folder.path(), {.on_error = OnError::Skip, .has_videos = true});
  EXPECT_THAT(listed(*rest), testing::ElementsAre("b.y4m 3x2 2 s: words"));
  EXPECT_THAT(rest->take_notices(), Contains(HasSubstr("c.gif is empty (2 so far)")));
}

TEST(CaptionedVideos, ShowDrawnShapes) {
  const CaptionedOptions options{.width = 20, .height = 16, .seed = 3, .has_videos = true, .frames = 5, .fps = 8};
  const auto clips = open_captioned("builtin-shapes:12", options);
  const auto pictures = open_captioned("builtin-shapes:12", {.width = 20, .height = 16, .seed = 3});
  for (const int64_t index : {0, 9, 11}) {
    EXPECT_EQ(clips->at(index).seconds, 0.625);
    const auto video = open_video(clips->open(index), "a clip");
    EXPECT_EQ(frame_at(*video, 0).rgb, decode_picture(pictures->bytes(index), "a picture").rgb) << "bit for bit";
    EXPECT_NE(frame_at(*video, 0.5).rgb, decode_picture(pictures->bytes(index), "a picture").rgb) << "it moves";
    EXPECT_THAT(clips->at(index).caption, testing::StartsWith(pictures->at(index).caption + " move"));
  }
  CaptionedOptions fast = options;
  fast.fps = 60;
  EXPECT_THAT(test::thrown_message([&] { open_captioned("builtin-shapes", fast); }),
              HasSubstr("at most 50 frames a second: got 60; set data.fps"));
}

}  // namespace
}  // namespace colossal::data::captioned_videos_test
