// Sizes of pictures from the headers of their files, WebP pictures, and both for damaged files.
#include "colossal/data/pictures/picture_header.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <random>

#include "colossal/base/error.h"
#include "colossal/data/pictures/picture.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::picture_header_test {
namespace {

using testing::HasSubstr;

// Pillow wrote the WebP files. The first has 4 x 2 pixels without loss, with reds in the upper row and blues in the
// lower one.
const std::string kLossless = std::string(
    "\122\111\106\106\066\000\000\000\127\105\102\120\126\120\070\114\051\000\000\000\057\003\100\000"
    "\000\077\020\002\201\044\177\265\241\046\223\266\211\254\371\177\047\252\363\037\136\104\232\231"
    "\201\100\004\215\065\313\054\263\034\321\377\070\001\000",
    62);
/// The same with EXIF orientation 6, and the second pixel of the upper row transparent.
const std::string kTurned = std::string(
    "\122\111\106\106\156\000\000\000\127\105\102\120\126\120\070\130\012\000\000\000\030\000\000\000"
    "\003\000\000\001\000\000\126\120\070\114\055\000\000\000\057\003\100\000\020\077\020\002\201\044"
    "\177\265\241\046\223\266\211\254\371\177\047\252\002\202\042\377\107\013\137\104\232\131\033\002"
    "\021\064\326\054\263\314\162\104\377\343\004\000\105\130\111\106\032\000\000\000\115\115\000\052"
    "\000\000\000\010\000\001\001\022\000\003\000\000\000\001\000\006\000\000\000\000\000\000",
    118);
/// 20 x 10 pixels of gray, with loss.
const std::string kLossy = std::string(
    "\122\111\106\106\056\000\000\000\127\105\102\120\126\120\070\040\042\000\000\000\260\002\000\235"
    "\001\052\024\000\012\000\076\155\054\223\105\244\042\241\230\004\000\100\006\304\264\200\000\112"
    "\304\000\000\344\100\000",
    54);
/// An animation of two pictures.
const std::string kAnimation = std::string(
    "\122\111\106\106\240\000\000\000\127\105\102\120\126\120\070\130\012\000\000\000\002\000\000\000"
    "\003\000\000\001\000\000\101\116\111\115\006\000\000\000\000\000\000\000\000\000\101\116\115\106"
    "\102\000\000\000\000\000\000\000\000\000\003\000\000\001\000\000\000\000\000\002\126\120\070\114"
    "\051\000\000\000\057\003\100\000\000\077\020\002\201\244\375\305\306\042\223\266\111\105\315\377"
    "\073\131\363\037\136\104\236\210\200\100\200\214\055\150\321\242\105\104\377\243\021\000\101\116"
    "\115\106\052\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\126\120"
    "\070\114\021\000\000\000\057\000\000\000\000\007\320\204\046\064\241\377\201\210\350\177\000\000",
    168);
/// An EXIF block with orientation 6: turned by a quarter to the right.
const std::string kExifBlock("MM\0\x2a\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0", 26);

PictureHeader header_of(const std::string& bytes) { return read_picture_header(bytes_of(bytes), "a-file"); }

std::string refusal(const std::string& bytes) {
  return test::thrown_message([&] { header_of(bytes); });
}

std::string decoder_refusal(const std::string& bytes) {
  return test::thrown_message([&] { decode_picture(bytes, "a-file"); });
}

std::vector<int> pixel(const Picture& picture, int64_t x, int64_t y) {
  const uint8_t* at = &picture.rgb[(y * picture.width + x) * 3];
  return {at[0], at[1], at[2]};
}

/// Returns a JPEG up to its first scan: 30 x 20 pixels, with an EXIF block and a thumbnail of another size before it.
std::string jpeg_start(const std::string& exif, int kind = 0xC0) {
  const std::string block = std::string("Exif\0\0", 6) + exif;
  std::string bytes = "\xff\xd8";
  bytes += std::string("\xff\xe0\x00\x06", 4) + "\xff\xc0\x01\x02";  // a marker within a segment is none
  bytes += std::string("\xff\xe1\x00", 3) + static_cast<char>(block.size() + 2) + block;
  bytes += std::string("\xff\xff", 2) + static_cast<char>(kind) + std::string("\0\x0b\x08\0\x14\0\x1e\1\1\x11\0", 11);
  return bytes + std::string("\xff\xda\0\x08\1\1\0\0\x3f\0", 10) + "pixels";
}

std::string png_of(int64_t width, int64_t height) {
  return encode_png({width, height, std::vector<uint8_t>(width * height * 3, 9)}, {{"Comment", "a text"}});
}

TEST(PictureHeader, HasTheSizeOfEachFormat) {
  const PictureHeader png = header_of(png_of(7, 5));
  EXPECT_EQ(png.format, PictureFormat::Png);
  EXPECT_EQ(std::pair(png.width, png.height), std::pair(int64_t{7}, int64_t{5}));
  EXPECT_EQ(png.orientation, 1);
  const PictureHeader jpeg = header_of(jpeg_start(kExifBlock));
  EXPECT_EQ(jpeg.format, PictureFormat::Jpeg);
  EXPECT_EQ(std::pair(jpeg.width, jpeg.height), std::pair(int64_t{30}, int64_t{20}));
  EXPECT_EQ(jpeg.orientation, 6);
  EXPECT_EQ(std::pair(jpeg.upright_width(), jpeg.upright_height()), std::pair(int64_t{20}, int64_t{30}));
  EXPECT_EQ(std::pair(header_of(kLossless).width, header_of(kLossless).height), std::pair(int64_t{4}, int64_t{2}));
  EXPECT_EQ(std::pair(header_of(kLossy).width, header_of(kLossy).height), std::pair(int64_t{20}, int64_t{10}));
  EXPECT_EQ(header_of(kTurned).format, PictureFormat::Webp);
  EXPECT_EQ(header_of(kTurned).upright_width(), 2);
  EXPECT_EQ(header_of(kTurned).upright_height(), 4);
}

// Both must agree, because pictures are sorted by the one and cut by the other.
TEST(PictureHeader, AgreesWithTheDecoders) {
  const std::string folder = test::source_dir() + "/../shared/data/images/odd";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  int64_t compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string bytes = test::read_all(entry.path().string());
    Picture picture;
    if (!test::thrown_message([&] { picture = decode_picture(bytes, "a"); }).empty()) continue;
    SCOPED_TRACE(entry.path());
    const PictureHeader header = header_of(bytes);
    EXPECT_EQ(header.upright_width(), picture.width);
    EXPECT_EQ(header.upright_height(), picture.height);
    ++compared;
  }
  EXPECT_GT(compared, 50);
}

// An orientation may follow the pixels of a PNG. One with a wrong checksum is ignored, as libpng does.
TEST(PictureHeader, TurnsAPngByAnyOfItsChunks) {
  const std::string sum("\xd6\x67\x4b\x69", 4);  // made with Python's zlib.crc32(b"eXIf" + block)
  const std::string chunk = std::string("\0\0\0\x1a", 4) + "eXIf" + kExifBlock;
  const std::string whole = png_of(3, 2);
  std::string late = whole;
  late.insert(whole.size() - 12, chunk + sum);
  EXPECT_EQ(header_of(late).orientation, 6);
  EXPECT_EQ(decode_picture(late, "a").height, 3);
  std::string wrong = whole;
  wrong.insert(whole.size() - 12, chunk + "sums");
  EXPECT_EQ(header_of(wrong).orientation, 1);
  EXPECT_EQ(decode_picture(wrong, "a").height, 2);
}

TEST(PictureHeader, ReadsPiecesOfAFile) {
  const std::string whole = jpeg_start(kExifBlock) + std::string(1 << 20, 'x');
  int64_t read = 0;
  const PictureBytes bytes{static_cast<int64_t>(whole.size()), [&](int64_t begin, int64_t count, char* out) {
                             std::copy_n(whole.data() + begin, count, out);
                             read += count;
                           }};
  EXPECT_EQ(read_picture_header(bytes, "a").width, 30);
  EXPECT_LT(read, 2000);
}

TEST(PictureHeader, RefusesWhatIsNoPicture) {
  EXPECT_THAT(refusal("some text"), HasSubstr("a-file is neither a PNG nor a JPEG nor a WebP file"));
  EXPECT_THAT(refusal(""), HasSubstr("a-file is neither"));
  EXPECT_THAT(refusal("RIFF\x04\0\0\0WAVE"), HasSubstr("a-file is neither"));
  EXPECT_THAT(refusal(jpeg_start("", 0xC3)), HasSubstr("a-file is damaged: it is of a kind that is not read"));
  EXPECT_THAT(refusal("\xff\xd8\xff\xd9"), HasSubstr("it has no size before its first scan"));
  EXPECT_THAT(refusal(kAnimation), HasSubstr("a-file is an animation"));
  std::string empty = png_of(3, 2);
  empty[19] = 0;
  EXPECT_THAT(refusal(empty), HasSubstr("a-file is damaged: it has no pixels"));
  std::string huge = png_of(3, 2);
  huge[17] = 1;
  EXPECT_THAT(refusal(huge), HasSubstr("a-file has 65539 x 2 pixels, more than"));
}

TEST(PictureHeader, NamesFilesThatAreCutShort) {
  for (const std::string& whole : {png_of(7, 5), kLossless, kTurned, kLossy})
    for (size_t cut = 12; cut < whole.size(); ++cut)
      EXPECT_THAT(refusal(whole.substr(0, cut)), HasSubstr("a-file is cut short")) << cut << " of " << whole.size();
  const std::string jpeg = jpeg_start(kExifBlock);
  const size_t scan = jpeg.find("\xff\xda");
  for (size_t cut = 2; cut < scan; ++cut)
    EXPECT_THAT(refusal(jpeg.substr(0, cut)), HasSubstr("a-file is cut short")) << cut;
}

TEST(Webp, DecodesExactlyWithoutLoss) {
  if (!reads_webp()) GTEST_SKIP() << "built without libwebp";
  const Picture picture = decode_picture(kLossless, "a");
  EXPECT_EQ(std::pair(picture.width, picture.height), std::pair(int64_t{4}, int64_t{2}));
  for (int x = 0; x < 4; ++x) {
    EXPECT_EQ(pixel(picture, x, 0), (std::vector<int>{200 + x, 0, 0}));
    EXPECT_EQ(pixel(picture, x, 1), (std::vector<int>{0, 0, 200 + x}));
  }
  const Picture gray = decode_picture(kLossy, "a");
  ASSERT_EQ(gray.rgb.size(), 20u * 10 * 3);
  for (const uint8_t value : gray.rgb) EXPECT_NEAR(value, 128, 2);
}

TEST(Webp, TurnsAndLosesItsAlpha) {
  if (!reads_webp()) GTEST_SKIP() << "built without libwebp";
  int64_t called = 0;
  const Picture picture = decode_picture(kTurned, "a", [&](int64_t width, int64_t height) {
    ++called;
    EXPECT_EQ(std::pair(width, height), std::pair(int64_t{2}, int64_t{4}));
    return Crop{{0, 0, 2, 4}, 2};
  });
  EXPECT_EQ(called, 1);
  ASSERT_EQ(std::pair(picture.width, picture.height), std::pair(int64_t{2}, int64_t{4}));
  EXPECT_EQ(pixel(picture, 1, 0), (std::vector<int>{200, 0, 0}));
  EXPECT_EQ(pixel(picture, 1, 1), (std::vector<int>{201, 0, 0})) << "a transparent pixel has its colour";
  EXPECT_EQ(pixel(picture, 0, 3), (std::vector<int>{0, 0, 203}));
}

TEST(Webp, RefusesDamageAndNamesAMissingLibrary) {
  if (!reads_webp()) {
    EXPECT_THAT(decoder_refusal(kLossless), HasSubstr("install libwebp-dev"));
    return;
  }
  EXPECT_THAT(decoder_refusal(kAnimation), HasSubstr("a-file is an animation"));
  EXPECT_THAT(decoder_refusal(kLossless.substr(0, 40)), HasSubstr("a-file is cut short"));
  std::string shorter = kLossless.substr(0, 40);  // the chunk is as long as the file, and its pixels are missing
  shorter[4] = 32, shorter[16] = 20;
  EXPECT_THAT(decoder_refusal(shorter), HasSubstr("a-file cannot be read as WebP"));
}

// For any bytes, both end with a size or an error. If both find a picture, they find the same size.
TEST(PictureHeader, ReadsOrRefusesMutatedFiles) {
  std::mt19937 random(7);
  const std::vector<std::string> files = {png_of(7, 5), jpeg_start(kExifBlock), kLossless, kTurned, kLossy};
  int64_t refused = 0, decoded = 0;
  for (size_t i = 0; i < 4000; ++i) {
    std::string bytes = files[i % files.size()];
    for (size_t change = 0; change <= i % 4; ++change)
      bytes[random() % bytes.size()] = static_cast<char>(random() % 256);
    if (i % 7 == 0) bytes.resize(random() % bytes.size());
    PictureHeader header;
    const bool is_read = test::thrown_message([&] { header = header_of(bytes); }).empty();
    refused += !is_read;
    if (is_read && header.width * header.height > 1 << 16) continue;  // takes long to decode
    Picture picture;
    if (!test::thrown_message([&] { picture = decode_picture(bytes, "a"); }).empty()) continue;
    ++decoded;
    EXPECT_TRUE(is_read) << i;
    EXPECT_EQ(picture.width, header.upright_width()) << i;
    EXPECT_EQ(picture.height, header.upright_height()) << i;
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(decoded, reads_webp() ? 100 : 0);
}

}  // namespace
}  // namespace colossal::data::picture_header_test
