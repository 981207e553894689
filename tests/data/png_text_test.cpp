// Text chunks of PNG files: written, read back, damaged.
#include <gmock/gmock.h>
#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/data/pictures/picture.h"
#include "support/thrown_message.h"

namespace colossal::data::png_text_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const Picture kPicture{3, 2, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}};

std::string big_endian(uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift);
  return bytes;
}

/// Returns a chunk of a PNG.
std::string chunk(const std::string& kind, const std::string& data) {
  const std::string body = kind + data;
  const auto sum =
      static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size())));
  return big_endian(static_cast<uint32_t>(data.size())) + body + big_endian(sum);
}

/// Returns a PNG of kPicture with this chunk before the pixels, or after them.
std::string with_chunk(const std::string& bytes, bool after_pixels = false) {
  std::string png = encode_png(kPicture);
  return png.insert(png.find(after_pixels ? "IEND" : "IDAT") - 4, bytes);
}

std::string refusal(const std::vector<PngText>& texts) {
  return test::thrown_message([&] { encode_png(kPicture, texts); });
}

TEST(PngText, ReadsBackWhatItWrites) {
  const std::vector<PngText> texts = {{"parameters", "a star\nSteps: 20, Seed: 7"},
                                      {"Title", "Stern \xE2\x98\x85 \xF0\x9F\x8C\x9F, caf\xC3\xA9"},
                                      {"Comment", ""},
                                      {"Comment", "twice"},
                                      {"Long", std::string(kMaxPngTextBytes, 'x')}};
  const std::string bytes = encode_png(kPicture, texts);
  EXPECT_EQ(read_png_texts(bytes, "a"), texts);
  EXPECT_EQ(decode_picture(bytes, "a").rgb, kPicture.rgb);
  EXPECT_THAT(bytes, HasSubstr(std::string("tEXtparameters\0a star\n", 22)));
  EXPECT_THAT(bytes, HasSubstr(std::string("iTXtTitle\0\0\0\0\0Stern", 19)));
  EXPECT_THAT(read_png_texts(encode_png(kPicture), "a"), ElementsAre());
}

TEST(PngText, ReadsLatin1AndCompressedTexts) {
  const std::string text = "a long text of Caf\xE9";
  std::string packed(compressBound(text.size()), '\0');
  uLongf size = packed.size();
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(text.data()), text.size());
  packed.resize(size);
  const PngText want{"Where", "a long text of Caf\xC3\xA9"};
  const std::string plain = chunk("tEXt", std::string("Where\0", 6) + text);
  EXPECT_THAT(read_png_texts(with_chunk(plain), "a"), ElementsAre(want));
  EXPECT_THAT(read_png_texts(with_chunk(plain, true), "a"), ElementsAre(want)) << "after the pixels";
  EXPECT_THAT(read_png_texts(with_chunk(chunk("zTXt", std::string("Where\0\0", 7) + packed)), "a"), ElementsAre(want));
  const std::string international = std::string("Where\0\0\0de\0Wo\0", 14) + want.text;
  EXPECT_THAT(read_png_texts(with_chunk(chunk("iTXt", international)), "a"), ElementsAre(want));
}

TEST(PngText, RefusesDamagedTextsThatPicturesMayHave) {
  std::string flipped = encode_png(kPicture, {{"parameters", "a star"}});
  flipped[flipped.find("a star")] = 'b';
  const std::string no_text = with_chunk(chunk("zTXt", std::string("Where\0\0nonsense", 15)));
  const std::string not_utf8 = with_chunk(chunk("iTXt", std::string("Where\0\0\0\0\0caf\xE9", 14)));
  for (const auto& [bytes, reason] :
       {std::pair{flipped, "tEXt: CRC error"}, {no_text, "zTXt: "}, {not_utf8, "Where is not UTF-8"}}) {
    EXPECT_THAT(test::thrown_message([&] { read_png_texts(bytes, "a-file"); }),
                HasSubstr(std::string("a-file has a damaged text: ") + reason));
    EXPECT_EQ(decode_picture(bytes, "a-file").rgb, kPicture.rgb);
  }
  const std::string whole = encode_png(kPicture, {{"parameters", "a star"}});
  EXPECT_THAT(test::thrown_message([&] { read_png_texts(whole.substr(0, whole.size() - 20), "a-file"); }),
              HasSubstr("a-file is cut short"));
  EXPECT_THAT(test::thrown_message([] { read_png_texts("text", "a-file"); }), HasSubstr("a-file is not a PNG file"));
}

TEST(PngText, RefusesWhatReadersWouldLose) {
  const std::vector<std::string> keywords = {"",     std::string(80, 'k'),   " a",   "a ",
                                             "a  b", std::string("a\0b", 3), "a\nb", "caf\xC3\xA9"};
  for (const std::string& keyword : keywords)
    EXPECT_THAT(refusal({{keyword, "x"}}), HasSubstr("the keyword of a PNG's text must be 1 to 79")) << keyword;
  EXPECT_EQ(refusal({{std::string(79, 'k'), "x"}, {"a b", "x"}}), "");
  for (const std::string& text :
       {std::string("a\0b", 3), std::string("caf\xE9"), std::string(kMaxPngTextBytes + 1, 'x')})
    EXPECT_THAT(refusal({{"Title", text}}),
                HasSubstr("the text Title of a PNG must be UTF-8 of at most 1048576 bytes"));
  EXPECT_EQ(read_png_texts(encode_png(kPicture, std::vector<PngText>(64, {"a", "x"})), "a").size(), 64u);
  EXPECT_THAT(refusal(std::vector<PngText>(65, {"a", "x"})), HasSubstr("at most 64 texts: got 65"));
}

}  // namespace
}  // namespace colossal::data::png_text_test
