// Pictures of all kinds, whole, damaged and hostile, and samples from folders of pictures.
#include "colossal/data/pictures/picture.h"

// clang-format off: jpeglib.h wants what stands before it.
#include <jpeglib.h>

#include <cstdio>
// clang-format on

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <zlib.h>

#include <cmath>
#include <filesystem>
#include <random>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/data/pictures/folder.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::picture_test {
namespace {

using testing::HasSubstr;

/// A PNG of 4 x 2 pixels, with reds in the upper row and blues in the lower one. It was made with Python's zlib and
/// struct.
const std::string kPng = std::string(
    "\211\120\116\107\015\012\032\012\000\000\000\015\111\110\104\122\000\000\000\004\000\000\000\002"
    "\010\002\000\000\000\360\312\352\064\000\000\000\027\111\104\101\124\170\332\143\070\301\300\160"
    "\222\201\341\024\003\303\151\006\020\100\160\001\121\330\006\115\373\230\101\202\000\000\000\000"
    "\111\105\116\104\256\102\140\202",
    80);
/// A gray JPEG of 8 x 8 pixels, all with the value 128.
const std::string kJpeg = std::string(
    "\377\330\377\333\000\103\000\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020"
    "\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020"
    "\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\020\377"
    "\300\000\013\010\000\010\000\010\001\001\021\000\377\304\000\024\000\001\000\000\000\000\000\000"
    "\000\000\000\000\000\000\000\000\000\000\377\304\000\024\020\001\000\000\000\000\000\000\000\000"
    "\000\000\000\000\000\000\000\000\377\332\000\010\001\001\000\000\077\000\077\377\331",
    141);

std::string refusal(const std::string& bytes) {
  return test::thrown_message([&] { decode_picture(bytes, "a-file"); });
}

std::vector<int> pixel(const Picture& picture, int64_t x, int64_t y) {
  const uint8_t* at = &picture.rgb[(y * picture.width + x) * 3];
  return {at[0], at[1], at[2]};
}

TEST(Picture, DecodesOddFilesLikePillow) {
  const std::string folder = test::source_dir() + "/../shared/data/images/odd";
  if (!std::filesystem::exists(folder + "/expected.json")) GTEST_SKIP() << "no " << folder;
  // libpng checks the ends of files and the checksums of critical chunks, which Pillow does not. It ignores damage of
  // other chunks, which Pillow refuses. Pillow shows the rest of a JPEG whose scans are damaged.
  const std::set<std::string> stricter = {"libpng-badcrc.png", "libpng-huge_IDAT.png", "jd-dc-predictor-overflow.jpg",
                                          "jd-partial_progressive.jpg"};
  const std::set<std::string> milder = {"libpng-empty_ancillary_chunks.png", "pillow-png_decompression_dos.png",
                                        "pillow-unknown_compression_method.png"};
  const nlohmann::json files = read_json_object(folder + "/expected.json", "test")["files"];
  EXPECT_EQ(files.size(), 94u);
  for (const auto& [name, want] : files.items()) {
    SCOPED_TRACE(name);
    Picture got;
    std::string error;
    try {
      got = decode_picture(test::read_all(folder + "/" + name), name);
    } catch (const Error& refused) {
      error = refused.message();
      EXPECT_THAT(error, HasSubstr(name));
    }
    if (stricter.contains(name) || milder.contains(name)) {
      EXPECT_EQ(error.empty(), milder.contains(name)) << error;
      continue;
    }
    EXPECT_EQ(!error.empty(), want.contains("error")) << error;
    if (!error.empty() || want.contains("error")) continue;
    const bool turned = want.contains("size_upright");
    const auto size = want[turned ? "size_upright" : "size"].get<std::vector<int64_t>>();
    EXPECT_EQ((std::vector<int64_t>{got.width, got.height}), size);
    const int tolerance = want["format"] == "PNG" ? 0 : 2;  // two JPEG decoders round differently
    for (const auto& sample : want[turned ? "samples_upright" : "samples"]) {
      const std::vector<int> mine = pixel(got, sample[0], sample[1]);
      for (int c = 0; c < 3; ++c) EXPECT_NEAR(mine[c], sample[2 + c].get<int>(), tolerance) << sample.dump();
    }
  }
}

TEST(Picture, DecodesPngExactlyAndJpegClosely) {
  const Picture png = decode_picture(kPng, "a");
  EXPECT_EQ(png.width, 4);
  EXPECT_EQ(png.height, 2);
  EXPECT_EQ(pixel(png, 3, 0), (std::vector<int>{203, 0, 0}));
  EXPECT_EQ(pixel(png, 1, 1), (std::vector<int>{0, 0, 201}));
  const Picture jpeg = decode_picture(kJpeg, "b");
  EXPECT_EQ(jpeg.rgb, std::vector<uint8_t>(8 * 8 * 3, 128));
}

TEST(Picture, RefusesOtherFilesByName) {
  EXPECT_THAT(refusal("some text"), HasSubstr("a-file is neither a PNG nor a JPEG"));
  EXPECT_THAT(refusal(""), HasSubstr("a-file is neither"));
  EXPECT_THAT(refusal(kPng.substr(0, kPng.size() - 20)), HasSubstr("a-file is cut short"));
  EXPECT_THAT(refusal(kJpeg.substr(0, kJpeg.size() - 2)), HasSubstr("a-file is cut short"));
  EXPECT_THAT(refusal("\xff\xd8\xff"), HasSubstr("a-file"));
}

/// Returns a PNG whose header claims this size, with few bytes of data.
std::string claiming(uint32_t width, uint32_t height) {
  std::string bytes = kPng;
  for (int i = 0; i < 4; ++i) {
    bytes[16 + i] = static_cast<char>(width >> (24 - 8 * i));
    bytes[20 + i] = static_cast<char>(height >> (24 - 8 * i));
  }
  const auto sum = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(bytes.data()) + 12, 17));
  for (int i = 0; i < 4; ++i) bytes[29 + i] = static_cast<char>(sum >> (24 - 8 * i));
  return bytes;
}

TEST(Picture, RefusesAHostileSizeBeforeAllocation) {
  for (const auto& [width, height] : {std::pair{1, 1 << 26}, {1 << 26, 1}, {1 << 14, 1 << 13}, {70'000, 2}})
    EXPECT_THAT(refusal(claiming(width, height)), HasSubstr(std::to_string(width) + " x " + std::to_string(height)));
  EXPECT_THAT(refusal(claiming(8000, 8000)), HasSubstr("cut short"));
}

/// Returns a JPEG of waves and noise. As in files of cameras, colour has half the resolution by default.
std::string jpeg_of(int width, int height, int subsampled = 2, int restart = 0) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &out, &size);
  jpeg.image_width = width, jpeg.image_height = height;
  jpeg.input_components = 3, jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg.restart_interval = restart;
  jpeg.comp_info[0].h_samp_factor = jpeg.comp_info[0].v_samp_factor = subsampled;
  jpeg_start_compress(&jpeg, TRUE);
  std::mt19937 random(5);
  std::vector<uint8_t> row(width * 3);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < 3; ++c)
        row[x * 3 + c] =
            static_cast<uint8_t>(100 + 60 * std::sin(x * 0.05 * (c + 1)) * std::cos(y * 0.07) + random() % 30);
    JSAMPROW line = row.data();
    jpeg_write_scanlines(&jpeg, &line, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::string bytes(reinterpret_cast<char*>(out), size);
  jpeg_destroy_compress(&jpeg);
  free(out);
  return bytes;
}

// Pixels outside the shown part need not be decoded, and this must not change the shown part.
TEST(Picture, DecodesAPartLikeTheWholePicture) {
  std::mt19937 random(9);
  const auto draw = [&](double most) { return most * static_cast<double>(random() % 1000) / 1000; };
  for (const int subsampled : {1, 2}) {
    const std::string bytes = jpeg_of(203, 157, subsampled);
    const Picture whole = decode_picture(bytes, "a");
    for (int i = 0; i < 60; ++i) {
      Box box{0, 0, 20 + draw(180), 20 + draw(130)};
      box.left = draw(203 - box.width), box.top = draw(157 - box.height);
      const int64_t side = static_cast<int64_t>(std::min(box.width, box.height) * 0.6) + static_cast<int64_t>(draw(60));
      const Picture part = decode_picture(bytes, "a", [&](int64_t width, int64_t height) {
        EXPECT_EQ(width, 203);
        EXPECT_EQ(height, 157);
        return Crop{box, side};
      });
      EXPECT_LE(part.rgb.size(), whole.rgb.size());
      ASSERT_EQ(resample(part, box, side).rgb, resample(whole, box, side).rgb)
          << i << ": " << box.left << " " << box.top << " " << box.width << " " << box.height << " to " << side;
    }
    const Box all{0, 0, 200, 150};
    const Picture small = decode_picture(bytes, "a", [&](int64_t, int64_t) { return Crop{all, 30}; });
    EXPECT_EQ(small.height, 40);
    const Picture one = resample(small, all, 30), other = resample(whole, all, 30);
    double difference = 0;
    for (size_t i = 0; i < one.rgb.size(); ++i) difference += std::abs(one.rgb[i] - other.rgb[i]);
    EXPECT_LT(difference / static_cast<double>(one.rgb.size()), 3) << "close to averaging the whole one";
  }
}

TEST(Picture, RefusesADamagedScan) {
  const std::string bytes = jpeg_of(96, 64, 2, 2);  // with restart markers, so that decoding resumes after damage
  decode_picture(bytes, "a-file");
  const size_t scan = bytes.find("\xff\xda");
  const size_t marker = bytes.find("\xff\xd6", scan);
  ASSERT_NE(marker, std::string::npos);
  std::string lost = bytes;
  lost.erase(marker - 20, 20);
  EXPECT_THAT(refusal(lost), HasSubstr("a-file is damaged: Corrupt JPEG data"));
  const auto top_of = [](int64_t, int64_t) { return Crop{{0, 0, 96, 8}, 8}; };
  EXPECT_THAT(test::thrown_message([&] { decode_picture(lost, "b", top_of); }), HasSubstr("b is damaged"))
      << "below the part that is shown";
  std::string odd = bytes;
  odd.insert(scan, "\x00\x01\x02");  // bytes between markers, as some cameras write them
  EXPECT_EQ(refusal(odd), "");
  EXPECT_EQ(test::thrown_message([&] { decode_picture(bytes, "b", top_of); }), "");
  EXPECT_THAT(test::thrown_message([&] { decode_picture(bytes.substr(0, bytes.size() - 2), "b", top_of); }),
              HasSubstr("b is cut short"));
}

// For any bytes, decoding ends with a picture of at most the allowed size, or with an error.
TEST(Picture, DecodesOrRefusesMutatedFiles) {
  std::mt19937 random(3);
  const std::string photograph = jpeg_of(64, 48, 2, 4);
  int64_t refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = i % 3 == 0 ? kPng : i % 3 == 1 ? kJpeg : photograph;
    for (unsigned change = 0; change <= i % 5u; ++change)
      bytes[2 + random() % (bytes.size() - 2)] = static_cast<char>(random() % 256);
    try {
      const Picture picture = decode_picture(bytes, "m", [](int64_t width, int64_t height) {
        const auto wide = static_cast<double>(width), high = static_cast<double>(height);
        return Crop{{wide / 3, high / 4, wide / 2, high / 3}, 4};
      });
      EXPECT_EQ(static_cast<int64_t>(picture.rgb.size()), picture.width * picture.height * 3);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(Picture, TurnsByExifOrientation) {
  const std::string big("MM\0\x2a\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0", 26);
  EXPECT_EQ(exif_orientation(big), 6);
  EXPECT_EQ(exif_orientation(big.substr(0, 15)), 1);
  EXPECT_EQ(exif_orientation("nonsense and more"), 1);
}

TEST(Picture, KeepsEvenColoursAndMeansWhenResampled) {
  Picture even{9, 7, std::vector<uint8_t>(9 * 7 * 3, 77)};
  EXPECT_EQ(resample(even, {0.5, 0.25, 6.5, 6.5}, 4).rgb, std::vector<uint8_t>(4 * 4 * 3, 77));
  const Picture png = decode_picture(kPng, "a");
  const Picture same = resample(png, {0, 0, 2, 2}, 2);
  EXPECT_EQ(pixel(same, 1, 0), pixel(png, 1, 0));
  EXPECT_EQ(pixel(same, 0, 1), pixel(png, 0, 1));
}

// The two directions are resampled independently: in a picture of equal rows a rectangle has the rows of a square.
TEST(Picture, ResamplesToRectanglesAsToSquares) {
  const Picture photograph = decode_picture(jpeg_of(40, 30), "a");
  const Box part{3.5, 2, 30, 24};
  EXPECT_EQ(resample(photograph, part, 12, 12).rgb, resample(photograph, part, 12).rgb);
  const Picture wide = resample(photograph, part, 15, 6);
  EXPECT_EQ(wide.width, 15);
  EXPECT_EQ(wide.height, 6);
  EXPECT_EQ(wide.rgb.size(), 15u * 6 * 3);
  Picture rows{8, 8, {}}, columns{8, 8, {}};
  for (int i = 0; i < 8 * 8; ++i) {
    rows.rgb.insert(rows.rgb.end(), 3, static_cast<uint8_t>(i / 8 * 30));
    columns.rgb.insert(columns.rgb.end(), 3, static_cast<uint8_t>(i % 8 * 30));
  }
  const Picture low = resample(rows, {0, 0, 8, 8}, 5, 3), square = resample(rows, {0, 0, 8, 8}, 3);
  const Picture high = resample(columns, {0, 0, 8, 8}, 3, 5);
  for (int y = 0; y < 3; ++y)
    for (int x = 0; x < 5; ++x) {
      EXPECT_EQ(pixel(low, x, y), pixel(square, 0, y)) << x << " " << y;
      EXPECT_EQ(pixel(high, y, x), pixel(square, 0, y)) << x << " " << y;
    }
}

// A JPEG is reduced only as far as both directions of the result allow.
TEST(Picture, ReducesForTheLargerDirectionOfARectangle) {
  const std::string bytes = jpeg_of(200, 160);
  const Box all{0, 0, 200, 160};
  const auto decoded = [&](int64_t width, int64_t height) {
    return decode_picture(bytes, "a", [&](int64_t, int64_t) { return Crop{all, width, height}; });
  };
  EXPECT_EQ(decoded(25, 20).width, 25);
  EXPECT_EQ(decoded(25, 80).width, 100);
  EXPECT_EQ(decoded(26, 20).width, 50);
  const Crop square{all, 7};
  EXPECT_EQ(square.height, 7);
}

class PictureFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* hidden : {".git/x.png", "cat/.ipynb_checkpoints/0.PNG", ".hidden/y/z.jpeg", "ant/.z.png"})
      folder.write(hidden, kPng);
    for (int i = 0; i < 6; ++i) folder.write("cat/" + std::to_string(i) + ".PNG", kPng);
    for (int i = 0; i < 4; ++i) folder.write("ant/more/" + std::to_string(i) + ".jpeg", kJpeg);
    folder.write("README.txt", "");
    folder.write("ant/notes.txt", "");
    folder.write("empty/notes.txt", "");
  }
  test::TemporaryFolder folder;
};

TEST_F(PictureFolderTest, UsesItsFoldersAsClasses) {
  EXPECT_TRUE(PictureFolder::is_one(folder.path()));
  EXPECT_FALSE(PictureFolder::is_one(folder / "empty"));
  PictureFolder found = PictureFolder::open(folder.path());
  EXPECT_THAT(found.classes, testing::ElementsAre("ant", "cat"));
  EXPECT_THAT(found.labels, testing::ElementsAre(0, 0, 0, 0, 1, 1, 1, 1, 1, 1));
  found.number_as({"bee", "cat", "ant"});
  EXPECT_THAT(found.labels, testing::ElementsAre(2, 2, 2, 2, 1, 1, 1, 1, 1, 1));
  const auto [training, held_out] = found.split(0.3);
  EXPECT_EQ(training.names.size() + held_out.names.size(), 10u);
  EXPECT_THAT(test::thrown_message([&] { PictureFolder::open(folder / "empty"); }), HasSubstr("no pictures in"));
}

TEST_F(PictureFolderTest, CountsOtherFilesByEnding) {
  folder.write("cat/a.webp", "x");
  folder.write("cat/b.WEBP", "x");
  folder.write("stray.png", kPng);
  const std::string counts =
      "in " + folder.path() + " 6 files are not read: 2 .txt, 2 .webp, 1 .png (in no class), 1 .txt (in no class)";
  EXPECT_EQ(PictureFolder::open(folder.path()).left_out, counts);
  const test::TemporaryFolder other;
  other.write("cat/a.webp", "x");
  EXPECT_TRUE(PictureFolder::is_one(other.path()));
  EXPECT_THAT(test::thrown_message([&] { PictureFolder::open(other.path()); }),
              HasSubstr(".png or .jpg files in it; in " + other.path() + " 1 file is not read: 1 .webp"));
}

TEST_F(PictureFolderTest, IgnoresHiddenFilesAndRequiresUtf8Names) {
  const test::TemporaryFolder other;
  other.write("hidden/.git/x/y.png", kPng);
  EXPECT_FALSE(PictureFolder::is_one(other / "hidden"));
  other.write("latin/caf\xe9/x.png", kPng);
  EXPECT_THAT(test::thrown_message([&] { PictureFolder::open(other / "latin"); }), HasSubstr("must be UTF-8"));
}

TEST_F(PictureFolderTest, GivesEqualSamplesForAnyRanksAndThreads) {
  const auto samples =
      std::make_shared<PictureSamples>(PictureFolder::open(folder.path()), PictureOptions{.width = 2, .augment = true});
  const auto all = [&](int ranks, int threads) {
    std::vector<at::Tensor> rows(16);
    for (int rank = 0; rank < ranks; ++rank) {
      Batches batches(samples, {.batch_size = 4, .rank = rank, .ranks = ranks, .seed = 5, .threads = threads});
      for (int batch = 0; batch < 4; ++batch) {
        const tensor::Batch mine = batches.next();
        for (int row = 0; row < 4 / ranks; ++row)
          rows[batch * 4 + rank * 4 / ranks + row] =
              at::cat({mine.at("images")[row].flatten(), mine.at("labels")[row].to(at::kFloat)});
      }
    }
    return at::stack(rows);
  };
  const at::Tensor want = all(1, 1);
  EXPECT_TRUE(at::equal(all(1, 3), want));
  EXPECT_TRUE(at::equal(all(2, 2), want));
}

TEST_F(PictureFolderTest, ShowsTheMiddleOfPngAndJpeg) {
  for (const auto& [name, bytes] : {std::pair{"ant/more/2.png", kPng}, std::pair{"ant/more/2.png", kJpeg}}) {
    folder.write(name, bytes);
    const PictureOptions options{.width = 2};
    const PictureSamples samples(PictureFolder::open(folder.path()), options);
    const auto& names = PictureFolder::open(folder.path()).names;
    const int64_t index = std::find(names.begin(), names.end(), name) - names.begin();
    tensor::Batch batch = samples.make(1);
    samples.fill(index, 0, batch, 0);
    const Picture whole = decode_picture(bytes, "a");
    const double side = 224.0 / 256 * static_cast<double>(std::min(whole.width, whole.height));
    const Box middle{(static_cast<double>(whole.width) - side) / 2, (static_cast<double>(whole.height) - side) / 2,
                     side, side};
    const Picture shown = resample(whole, middle, 2);
    for (int64_t c = 0; c < 3; ++c)
      for (int64_t i = 0; i < 4; ++i)
        EXPECT_NEAR(batch.at("images")[0][c][i / 2][i % 2].item<float>(),
                    (shown.rgb[i * 3 + c] / 255.0 - options.mean[c]) / options.deviation[c], 1e-6)
            << name << " channel " << c << " pixel " << i;
  }
}

TEST(Picture, RequestsTheShownPartOnce) {
  for (const std::string& bytes : {kPng, kJpeg}) {
    int asked = 0;
    const Picture picture = decode_picture(bytes, "a", [&](int64_t width, int64_t height) {
      ++asked;
      return Crop{{0, 0, static_cast<double>(width), static_cast<double>(height)}, 1};
    });
    EXPECT_EQ(asked, 1);
  }
}

TEST_F(PictureFolderTest, RefusesOrSkipsUnreadablePictures) {
  folder.write("ant/more/2.jpeg", "no picture");
  const PictureFolder found = PictureFolder::open(folder.path());
  PictureOptions options{.width = 2};
  const PictureSamples strict(found, options);
  tensor::Batch batch = strict.make(1);
  EXPECT_THAT(test::thrown_message([&] { strict.fill(2, 0, batch, 0); }), HasSubstr("ant/more/2.jpeg is neither"));
  options.on_error = OnError::Skip;
  const PictureSamples mild(found, options);
  mild.fill(2, 0, batch, 0);
  EXPECT_EQ(batch.at("labels").item<int64_t>(), 0);
  EXPECT_TRUE(at::isfinite(batch.at("images")).all().item<bool>());
  EXPECT_THAT(mild.take_notices(), testing::ElementsAre(HasSubstr("2.jpeg is neither")));
}

}  // namespace
}  // namespace colossal::data::picture_test
