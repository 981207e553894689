// Videos that this program, Python and hands have written, frame by frame; damaged ones; and the writers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "colossal/data/pictures/shapes.h"
#include "colossal/data/videos/clip_writer.h"
#include "colossal/data/videos/palette.h"
#include "colossal/data/videos/video.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::videos_test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// The bytes of a video and its reader.
struct Opened {
  explicit Opened(std::string content, const std::string& name = "a-video")
      : bytes(std::move(content)), reader(open_video(bytes_of(bytes), name)) {}
  std::string bytes;
  std::unique_ptr<VideoReader> reader;
};

std::string stored(const std::string& name) {
  return test::read_all(test::source_dir() + "/tests/data/videos/" + name);  // make_files.py wrote them
}

std::string refusal(const std::string& bytes) {
  return test::thrown_message([&] {
    const Opened video(bytes);
    while (video.reader->next()) video.reader->picture();
    EXPECT_FALSE(video.reader->next()) << "still at the end";
  });
}

std::vector<int> pixel(const Picture& picture, int64_t x, int64_t y) {
  const uint8_t* at = &picture.rgb[(y * picture.width + x) * 3];
  return {at[0], at[1], at[2]};
}

Picture gray(int64_t width, int64_t height, int value) {
  return {width, height, std::vector<uint8_t>(static_cast<size_t>(width * height * 3), static_cast<uint8_t>(value))};
}

/// Returns the numbers of the frames that are shown at a rate, in videos whose frame i has the gray 20 (i + 1).
std::vector<int> frames_at(VideoReader& video, double fps, int count) {
  std::vector<int> frames;
  for (int i = 0; i < count; ++i) {
    const Picture picture = frame_at(video, i / fps);
    frames.push_back(static_cast<int>(std::lround(pixel(picture, picture.width / 2, picture.height / 2)[1] / 20.0)) -
                     1);
  }
  return frames;
}

int largest_difference(const Picture& a, const Picture& b) {
  int largest = a.rgb.size() == b.rgb.size() ? 0 : 256;
  for (size_t i = 0; largest < 256 && i < a.rgb.size(); ++i) largest = std::max(largest, std::abs(a.rgb[i] - b.rgb[i]));
  return largest;
}

std::string written(const std::string& name, const std::vector<Picture>& frames, double fps) {
  const test::TemporaryFolder folder;
  ClipWriter clip(folder / name, {.width = frames.at(0).width, .height = frames[0].height, .fps = fps});
  for (const Picture& frame : frames) clip.add(frame);
  clip.finish();
  return test::read_all(folder / name);
}

std::vector<Picture> moving_star(int64_t width, int64_t height, int64_t count) {
  std::vector<Picture> frames;
  for (int64_t i = 0; i < count; ++i) frames.push_back(draw_moving_shape(6, 5, width, height, i));
  return frames;
}

// By hand: black, white, and red as ITU-R BT.601 has it.
TEST(Y4m, HasItsPlanesAsColours) {
  const std::string first = "FRAME\n\x10\xeb\x51\xeb\x10\x51\x80\x5a\x80\xf0",
                    second = "FRAME Ip\n\x10\x10\x10\x10\x10\x10\x80\x80\x80\x80";
  const Opened video("YUV4MPEG2 W3 H2 F5:2 C420jpeg Ip\n" + first + second);
  EXPECT_EQ(video.reader->size(), (PictureSize{3, 2}));
  EXPECT_DOUBLE_EQ(video.reader->seconds(), 0.8);
  ASSERT_TRUE(video.reader->next());
  EXPECT_THAT(pixel(video.reader->picture(), 0, 0), ElementsAre(0, 0, 0));
  EXPECT_THAT(pixel(video.reader->picture(), 1, 0), ElementsAre(255, 255, 255)) << "it shares the colour of the first";
  EXPECT_THAT(pixel(video.reader->picture(), 2, 0), ElementsAre(254, 0, 0));
  EXPECT_THAT(pixel(video.reader->picture(), 0, 1), ElementsAre(255, 255, 255)) << "so do rows";
  EXPECT_THAT(pixel(video.reader->picture(), 2, 1), ElementsAre(254, 0, 0));
  ASSERT_TRUE(video.reader->next());
  EXPECT_DOUBLE_EQ(video.reader->time().begin, 0.4);
  EXPECT_DOUBLE_EQ(video.reader->time().end, 0.8);
  EXPECT_FALSE(video.reader->next());
  const Opened full("YUV4MPEG2 W1 H1 F1:1 Cmono XCOLORRANGE=FULL\nFRAME\n\x51");
  ASSERT_TRUE(full.reader->next());
  EXPECT_THAT(pixel(full.reader->picture(), 0, 0), ElementsAre(81, 81, 81));
}

TEST(Y4m, NamesWhatIsWrong) {
  const std::string head = "YUV4MPEG2 W2 H1 F1:1 Cmono\n";
  EXPECT_EQ(refusal(head + "FRAME\nab"), "");
  EXPECT_THAT(refusal(head), HasSubstr("a-video has no frames"));
  EXPECT_THAT(refusal(head + "FRAME\nabFRAME\na"), HasSubstr("a-video is cut short within frame 1"));
  EXPECT_THAT(refusal(head + "FRAME\nabFRA"), HasSubstr("a-video is damaged or cut short"));
  EXPECT_THAT(refusal(head + "FRAME\nabGRAME\nab"), HasSubstr("damaged: no frame begins"));
  EXPECT_THAT(refusal("YUV4MPEG2 W2 H1 Cmono\nFRAME\nab"), HasSubstr("has no rate of frames"));
  EXPECT_THAT(refusal("YUV4MPEG2 W2 H1 F0:0\nFRAME\nab"), HasSubstr("has no rate of frames"));
  EXPECT_THAT(refusal("YUV4MPEG2 W2 F1:1\nFRAME\nab"), HasSubstr("has frames of 2x0 pixels"));
  EXPECT_THAT(refusal("YUV4MPEG2 W99999 H1 F1:1\nFRAME\nab"), HasSubstr("has frames of 99999x1 pixels"));
  EXPECT_THAT(refusal("YUV4MPEG2 W2 H1 F1:1 C420p10\nFRAME\nab"), HasSubstr("planes of the kind C420p10"));
  EXPECT_THAT(refusal(""), HasSubstr("a-video is empty"));
}

TEST(Y4m, KeepsClipsUpToRounding) {
  const std::vector<Picture> frames = moving_star(7, 5, 3);
  const std::string bytes = written("clip.y4m", frames, 24000.0 / 1001);
  EXPECT_TRUE(bytes.starts_with("YUV4MPEG2 W7 H5 F24000:1001 Ip A1:1 C444\nFRAME\n"));
  const Opened video(bytes);
  for (const Picture& frame : frames) {
    ASSERT_TRUE(video.reader->next());
    EXPECT_LE(largest_difference(video.reader->picture(), frame), 2);
  }
  video.reader->seek(0.05);
  EXPECT_LE(largest_difference(frame_at(*video.reader, 0.05), frames[1]), 2);
}

TEST(Rates, HaveWholeNumbersOrThoseOfTelevision) {
  const auto words = [](double fps) { return concat(rate_of(fps).frames, "/", rate_of(fps).seconds); };
  EXPECT_EQ(words(24), "24/1");
  EXPECT_EQ(words(29.97), "30000/1001");
  EXPECT_EQ(words(23.976), "24000/1001");
  EXPECT_EQ(words(12.5), "25/2");
  EXPECT_EQ(words(24.01), "2401/100");
  EXPECT_EQ(words(30000. / 4004), "7500/1001");
  EXPECT_EQ(words(1 / 3.), "1/3");
  EXPECT_EQ(words(1e-7), "1/65535");
  const Rate odd = rate_of(17.123456789);
  EXPECT_LE(std::max(odd.frames, odd.seconds), 65535);
  EXPECT_NEAR(static_cast<double>(odd.frames) / static_cast<double>(odd.seconds), 17.123456789, 1e-7);
}

// 1/3 of a frame a second: 300 hundredths each, though 3 * 100 / (1 / 3.) is not 900 in all roundings.
TEST(Rates, AddUpToTheirClips) {
  for (const double fps : {23.976, 24., 7., 0.3, 1 / 3., 49.9}) {
    const std::string bytes = written("clip.gif", moving_star(4, 4, 40), fps);
    const Rate rate = rate_of(fps);
    EXPECT_NEAR(Opened(bytes).reader->seconds(), static_cast<double>(100 * 40 * rate.seconds / rate.frames) / 100, 1e-9)
        << fps;
  }
}

TEST(Gif, KeepsDrawnClipsBitForBit) {
  const std::vector<Picture> frames = moving_star(33, 20, 25);
  const std::string bytes = written("clip.gif", frames, 24);
  EXPECT_TRUE(bytes.starts_with("GIF89a"));
  EXPECT_NE(bytes.find("NETSCAPE2.0"), std::string::npos) << "it is shown again and again";
  const Opened video(bytes);
  EXPECT_EQ(video.reader->size(), (PictureSize{33, 20}));
  EXPECT_NEAR(video.reader->seconds(), 25 / 24.0, 0.01);
  for (size_t i = 0; i < frames.size(); ++i)
    EXPECT_EQ(frame_at(*video.reader, static_cast<double>(i) / 24).rgb, frames[i].rgb) << i;
  video.reader->seek(0.5);
  EXPECT_EQ(frame_at(*video.reader, 0.5).rgb, frames[12].rgb);
}

TEST(Gif, ChoosesColoursNearThoseOfTheFrame) {
  Picture many = gray(64, 64, 0), few = gray(16, 16, 0);
  for (size_t i = 0; i < 64 * 64; ++i) {
    many.rgb[3 * i] = static_cast<uint8_t>(i % 64 * 4);
    many.rgb[3 * i + 1] = static_cast<uint8_t>(i / 64 * 4);
    many.rgb[3 * i + 2] = static_cast<uint8_t>(i % 7);
  }
  for (size_t i = 0; i < 256; ++i) few.rgb[3 * i] = few.rgb[3 * i + 2] = static_cast<uint8_t>(i);
  const auto error = [](const Picture& picture) {
    const Opened video(written("one.gif", {picture}, 8));
    return largest_difference(frame_at(*video.reader, 0), picture);
  };
  EXPECT_EQ(error(few), 0) << "it has 256 colours";
  EXPECT_LE(error(many), 12) << "16 x 16 boxes, each 16 wide";
  EXPECT_EQ(with_palette(gray(4, 4, 9)).colours.size(), 1u);
}

TEST(Gif, ShowsPillowsImages) {
  const Opened video(stored("pillow.gif"));
  EXPECT_NEAR(video.reader->seconds(), 0.55, 1e-9);
  EXPECT_THAT(pixel(frame_at(*video.reader, 0.19), 5, 0), ElementsAre(255, 0, 0));
  EXPECT_THAT(pixel(frame_at(*video.reader, 0.2), 5, 0), ElementsAre(0, 255, 0));
  EXPECT_THAT(pixel(frame_at(*video.reader, 0.25), 5, 0), ElementsAre(0, 0, 255));
  EXPECT_THAT(pixel(frame_at(*video.reader, 0.5), 0, 3), ElementsAre(255, 0, 0));
}

/// Returns an image of a GIF by hand: a colour of four for each pixel. Codes have 3 bits, and a code that clears the
/// table comes before each pixel, so that it stays empty.
std::string gif_image(int left, int top, int width, const std::string& pixels, int flags, int disposal, int clear) {
  std::string bits, packed;
  const auto put = [&](int code) {
    for (int bit = 0; bit < 3; ++bit) bits += (code >> bit & 1) != 0 ? '1' : '0';
  };
  for (const char pixel : pixels) put(4), put(pixel - '0');
  put(5);
  while (bits.size() % 8 != 0) bits += '0';
  for (size_t i = 0; i < bits.size(); i += 8) {
    int byte = 0;
    for (size_t bit = 0; bit < 8; ++bit) byte |= (bits[i + bit] - '0') << bit;
    packed += static_cast<char>(byte);
  }
  const auto byte = [](int value) { return std::string(1, static_cast<char>(value)); };
  return std::string("\x21\xf9\x04", 3) + byte(disposal << 2 | (clear >= 0 ? 1 : 0)) + std::string("\x0a\0", 2) +
         byte(std::max(clear, 0)) + std::string("\0\x2c", 2) + byte(left) + byte(0) + byte(top) + byte(0) +
         byte(width) + byte(0) + byte(static_cast<int>(pixels.size()) / width) + byte(0) + byte(flags) + "\x02" +
         byte(static_cast<int>(packed.size())) + packed + byte(0);
}

/// A screen of 3 x 5 with the colours black, red, green and blue, of which blue is the background.
const std::string kScreen =
    std::string("GIF89a\3\0\5\0\x81\3\0", 13) + std::string("\0\0\0\xff\0\0\0\xff\0\0\0\xff", 12);

TEST(Gif, TakesImagesAwayAndKeepsWhatIsTransparent) {
  const Opened video(kScreen + gif_image(0, 0, 3, "111111111111111", 0, 1, -1) + gif_image(1, 1, 2, "2002", 0, 3, 0) +
                     gif_image(0, 0, 1, "22222", 0, 2, -1) + gif_image(2, 4, 1, "0", 0, 0, -1) + ";");
  const auto row = [&](int64_t y) {
    std::string colours;
    const Picture picture = video.reader->picture();
    for (int64_t x = 0; x < 3; ++x) {
      const auto rgb = pixel(picture, x, y);
      colours += rgb[0] > 0 ? 'r' : rgb[1] > 0 ? 'g' : rgb[2] > 0 ? 'b' : '-';
    }
    return colours;
  };
  ASSERT_TRUE(video.reader->next());
  EXPECT_EQ(row(1), "rrr");
  ASSERT_TRUE(video.reader->next());
  EXPECT_EQ(row(1), "rgr");
  EXPECT_EQ(row(2), "rrg");
  ASSERT_TRUE(video.reader->next());
  EXPECT_EQ(row(1), "grr") << "the second image is taken away";
  ASSERT_TRUE(video.reader->next());
  EXPECT_EQ(row(1), "brr") << "the background stands in for the third image";
  EXPECT_EQ(row(4), "br-");
  EXPECT_NEAR(video.reader->time().begin, 0.3, 1e-9);
  EXPECT_FALSE(video.reader->next());
  const Opened interlaced(kScreen + gif_image(0, 0, 3, "111222333000111", 0x40, 0, -1) + ";");
  ASSERT_TRUE(interlaced.reader->next());
  EXPECT_THAT(pixel(interlaced.reader->picture(), 0, 4), ElementsAre(0, 255, 0)) << "the second of the stored rows";
  EXPECT_THAT(pixel(interlaced.reader->picture(), 0, 1), ElementsAre(0, 0, 0)) << "the fourth";
}

TEST(Gif, NamesWhatIsWrong) {
  const std::string image = gif_image(0, 0, 3, "111111111111111", 0, 1, -1);
  EXPECT_EQ(refusal(kScreen + image + ";"), "");
  EXPECT_EQ(refusal(kScreen + image + std::string(1, '\0')), "") << "a wrong trailer";
  EXPECT_THAT(refusal(kScreen + "x" + image + ";"), HasSubstr("a-video is damaged or cut short"));
  EXPECT_THAT(refusal(kScreen + ";"), HasSubstr("a-video has no frames"));
  EXPECT_THAT(refusal(kScreen + image), HasSubstr("a-video is damaged or cut short"));
  EXPECT_THAT(refusal(kScreen + image.substr(0, 24)), HasSubstr("a-video is damaged or cut short"));
  EXPECT_THAT(refusal(kScreen.substr(0, 9)), HasSubstr("a-video cannot be read as GIF"));
  EXPECT_THAT(refusal(kScreen + gif_image(1, 0, 3, "111", 0, 1, -1) + ";"), HasSubstr("not within the screen"));
}

TEST(Videos, SurviveAThousandMutations) {
  const std::string gif = written("clip.gif", moving_star(12, 9, 4), 10),
                    y4m = written("clip.y4m", moving_star(6, 4, 4), 10);
  std::mt19937 random(7);
  int refused = 0, read = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string bytes = i % 2 == 0 ? gif : y4m;
    for (int change = 0; change <= static_cast<int>(random() % 4); ++change) {
      const size_t at = random() % std::min<size_t>(bytes.size(), random() % 2 == 0 ? 60 : bytes.size());
      if (at >= 6 && at < 10 && i % 2 == 0) continue;  // a screen of millions of pixels takes its time
      bytes[at] = static_cast<char>(random());
      if (random() % 8 == 0) bytes.resize(at + 1);
    }
    (refusal(bytes).empty() ? read : refused) += 1;
  }
  EXPECT_GT(refused, 300);
  EXPECT_GT(read, 100);
}

TEST(ClipWriters, RefuseWhatTheyCannotWrite) {
  const test::TemporaryFolder folder;
  const auto words = [&](const std::string& name, const ClipFormat& format) {
    return test::thrown_message([&] { ClipWriter(folder / name, format).finish(); });
  };
  EXPECT_THAT(words("a.webm", {4, 4, 8}), HasSubstr("must be written as .gif, .y4m or .mp4"));
  EXPECT_THAT(words("a.gif", {4, 0, 8}), HasSubstr("got 4 x 0"));
  EXPECT_THAT(words("a.gif", {4, 4, 60}), HasSubstr("at most 50 frames a second: got 60; write .y4m or .mp4"));
  EXPECT_THAT(words("a.gif", {4, 4, 0.001}), HasSubstr("at least 0.01 frames a second: got 0.001"));
  EXPECT_THAT(words("a.y4m", {4, 4, 0}), HasSubstr("a rate above 0"));
  EXPECT_THAT(words("a.y4m", {4, 4, 8}), HasSubstr("must have frames: got none"));
  EXPECT_THAT(test::thrown_message([&] { ClipWriter(folder / "a.GIF", {4, 4, 8}).add(gray(4, 5, 0)); }),
              HasSubstr("must have 4 x 4 pixels: got 4 x 5 in frame 0"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "a file was left";
  EXPECT_TRUE(has_clip_ending("a.Y4M") && !has_clip_ending("a.png") && has_video_ending("A.MOV"));
}

TEST(VideosWithoutLibav, NameTheFileAndThePackage) {
  if (reads_videos()) GTEST_SKIP() << "FFmpeg's libraries are there";
  EXPECT_THAT(refusal("no GIF and no y4m"), AllOf(HasSubstr("a-video"), HasSubstr("install libavformat")));
}

class Libav : public testing::Test {
 protected:
  void SetUp() override {
    if (!reads_videos()) GTEST_SKIP() << "FFmpeg's libraries are not there";
  }
};

TEST_F(Libav, ChoosesFramesByTheirStamps) {
  const Opened video(stored("variable_rate.mp4"));  // frames at 0, 0.1, 0.15, 0.4, 0.9 and 1 second
  EXPECT_THAT(frames_at(*video.reader, 10, 11), ElementsAre(0, 1, 2, 2, 3, 3, 3, 3, 3, 4, 5));
  video.reader->seek(0);
  EXPECT_THAT(frames_at(*video.reader, 5, 6), ElementsAre(0, 2, 3, 3, 3, 5));
  const Opened rounded(stored("milliseconds.webm"));  // 24 frames a second, stamps in milliseconds
  EXPECT_THAT(frames_at(*rounded.reader, 24, 12), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
}

TEST_F(Libav, ReadsPartsOfVideos) {
  const Opened video(stored("variable_rate.mp4"));
  std::vector<int> values;
  const auto take = [&](const Picture& picture) { values.push_back((pixel(picture, 9, 9)[1] + 10) / 20 - 1); };
  read_clip(*video.reader, {.start = 3, .frames = 3, .fps = 5}, take);
  read_clip(*video.reader, {.start = 1, .frames = 3, .fps = 10}, take);
  EXPECT_THAT(values, ElementsAre(3, 3, 5, 1, 2, 2));
}

// A recording that was written as it was made. The duration becomes an element that is passed over (RFC 8794).
TEST_F(Libav, MeasuresAFileWhoseHeadersSayNoLength) {
  std::string bytes = stored("milliseconds.webm");
  const double seconds = Opened(bytes).reader->seconds();
  const std::string duration = "\x44\x89\x88", nothing = "\xec\x89";
  const size_t place = bytes.find(duration);
  ASSERT_NE(place, std::string::npos);
  bytes.replace(place, nothing.size(), nothing);
  const Opened video(bytes), whole(stored("milliseconds.webm"));
  EXPECT_NEAR(video.reader->seconds(), seconds, 0.05);
  EXPECT_EQ(frame_at(*video.reader, 0).rgb, frame_at(*whole.reader, 0).rgb) << "from the beginning again";
  EXPECT_EQ(frame_at(*video.reader, seconds - 0.1).rgb, frame_at(*whole.reader, seconds - 0.1).rgb);
}

TEST_F(Libav, TurnsAsTheFileSays) {
  const Opened video(stored("turned.mp4"));
  EXPECT_EQ(video.reader->size(), (PictureSize{16, 32}));
  const Picture picture = frame_at(*video.reader, 0);
  EXPECT_EQ(picture.width, 16);
  EXPECT_GT(pixel(picture, 8, 4)[0], 200) << "red was left, and is above";
  EXPECT_GT(pixel(picture, 8, 28)[2], 200);
}

TEST_F(Libav, ReadsBackWhatItWrote) {
  std::vector<Picture> frames;
  for (int i = 0; i < 12; ++i) frames.push_back(gray(48, 32, 20 * (i + 1)));
  const std::string bytes = written("clip.mp4", frames, 24000.0 / 1001);
  const Opened video(bytes);
  EXPECT_NEAR(video.reader->seconds(), 12 * 1001 / 24000.0, 1e-3);
  EXPECT_THAT(frames_at(*video.reader, 24000.0 / 1001, 12), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  const Picture star = draw_shape(6, 5, 64, 48);
  const Opened one(written("one.mp4", {star}, 8));
  EXPECT_DOUBLE_EQ(one.reader->seconds(), 0.125);
  double error = 0;
  const Picture read = frame_at(*one.reader, 0);
  for (size_t i = 0; i < star.rgb.size(); ++i) error += std::abs(read.rgb[i] - star.rgb[i]);
  EXPECT_LT(error / static_cast<double>(star.rgb.size()), 6) << "colours are those of the picture";
  ASSERT_TRUE(!one.reader->next());
}

TEST_F(Libav, SeeksAnyTime) {
  std::vector<Picture> frames;
  for (int i = 0; i < 60; ++i) frames.push_back(gray(32, 32, 4 * i));
  const std::string bytes = written("clip.mp4", frames, 10);
  const Opened video(bytes);
  for (const double seconds : {5.0, 1.2, 0.0, 3.3, 5.9, 2.5}) {
    video.reader->seek(seconds);
    EXPECT_NEAR(pixel(frame_at(*video.reader, seconds), 16, 16)[0], 40 * seconds, 3) << seconds;
  }
}

TEST_F(Libav, NamesWhatIsWrong) {
  const std::string whole = stored("variable_rate.mp4");
  const auto words = [](const std::string& bytes) {
    return test::thrown_message([&] {
      const Opened video(bytes);
      frame_at(*video.reader, video.reader->seconds() - 0.01);
    });
  };
  EXPECT_EQ(words(whole), "");
  for (size_t size = 40; size < whole.size(); size += 20)
    EXPECT_THAT(
        words(whole.substr(0, size)),
        AllOf(HasSubstr("a-video "), AnyOf(HasSubstr("cut short"), HasSubstr("no video"), HasSubstr("damaged"))))
        << size;
  EXPECT_THAT(words("#EXTM3U\n#EXTINF:1,\n/etc/passwd\n"), HasSubstr("a-video is no video that can be read"));
  const test::TemporaryFolder folder;
  EXPECT_THAT(test::thrown_message([&] { ClipWriter(folder / "a.mp4", {5, 4, 8}); }),
              HasSubstr("an MP4 must have even sides: got 5 x 4; write .gif or .y4m"));
}

}  // namespace
}  // namespace colossal::data::videos_test
