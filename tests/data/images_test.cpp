// CIFAR-10's files, and images as samples: errors, the same batches for any number of ranks, and augmentation that
// depends only on seeds.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/data/pictures/image_samples.h"
#include "colossal/data/streams/unpacked_file.h"
#include "support/cifar_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::images_test {
namespace {

using test::cifar_records;
using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

class Cifar : public testing::Test {
 protected:
  void SetUp() override {
    folder = testing::TempDir() + "/cifar-" + testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }
  std::string refusal(CifarPart part = CifarPart::Training) const {
    return test::thrown_message([&] { read_cifar(folder, part); });
  }
  std::string folder;
};

TEST_F(Cifar, ReadsRecordsInTheOrderOfTheNames) {
  test::write_gzip(folder + "/data_batch_2.bin.gz", cifar_records(3, 7));
  test::write_plain(folder + "/data_batch_1.bin", cifar_records(2));
  test::write_plain(folder + "/test_batch.bin", cifar_records(1, 4));
  test::write_plain(folder + "/batches.meta.txt", "airplane");
  const ImageSet set = read_cifar(folder, CifarPart::Training);
  EXPECT_TRUE(set.labels.equal(at::tensor({0, 1, 7, 8, 9}, at::kLong)));
  EXPECT_EQ(set.pixels.sizes(), (std::vector<int64_t>{5, 3, 32, 32}));
  const std::string third = cifar_records(1, 7);
  for (const auto& [channel, y, x] : {std::tuple{0, 0, 0}, {1, 5, 31}, {2, 31, 2}, {0, 22, 9}})
    EXPECT_EQ(set.pixels[2][channel][y][x].item<int>(),
              static_cast<unsigned char>(third[1 + channel * 1024 + y * 32 + x]));
  EXPECT_TRUE(read_cifar(folder, CifarPart::Test).labels.equal(at::tensor({4}, at::kLong)));
}

TEST_F(Cifar, ReadsTheSameSetPackedOrNot) {
  test::write_plain(folder + "/data_batch_1.bin", cifar_records(5));
  const std::string plain = read_cifar(folder, CifarPart::Training).fingerprint;
  fs::remove(folder + "/data_batch_1.bin");
  test::write_gzip(folder + "/data_batch_1.bin.gz", cifar_records(5));
  EXPECT_EQ(read_cifar(folder, CifarPart::Training).fingerprint, plain);
  test::write_gzip(folder + "/data_batch_1.bin.gz", cifar_records(5, 1));
  EXPECT_NE(read_cifar(folder, CifarPart::Training).fingerprint, plain);
}

TEST_F(Cifar, NamesTheFilesToGet) {
  EXPECT_THAT(
      refusal(),
      HasSubstr("holds no data_batch*.bin; get CIFAR-10's binary version from https://www.cs.toronto.edu/~kriz/"));
  EXPECT_THAT(refusal(CifarPart::Test), HasSubstr("holds no test_batch*.bin"));
  fs::remove_all(folder);
  EXPECT_THAT(refusal(), HasSubstr("no such folder of images: data.path = " + folder));
}

TEST_F(Cifar, RefusesFilesThatAreNotItsFormat) {
  const std::string file = folder + "/data_batch_1.bin";
  test::write_plain(file, cifar_records(2).substr(1));
  EXPECT_THAT(refusal(),
              HasSubstr("data_batch_1.bin must hold whole records of 3073 bytes (label, 3072 pixels): got 6145 bytes"));
  test::write_plain(file, "");
  EXPECT_THAT(refusal(), HasSubstr("got 0 bytes"));
  std::string bytes = cifar_records(3);
  bytes[3073] = 10;
  test::write_plain(file, bytes);
  EXPECT_THAT(refusal(), HasSubstr("image 1 has label 10, CIFAR-10 only 0 to 9"));
  bytes[3073] = static_cast<char>(255);
  test::write_plain(file, bytes);
  EXPECT_THAT(refusal(), HasSubstr("label 255"));
  test::write_plain(file, cifar_records(1));
  test::write_gzip(file + ".gz", cifar_records(1));
  EXPECT_THAT(refusal(), HasSubstr("holds data_batch_1.bin twice"));
  fs::remove(file + ".gz");
  for (const std::string& pipe : {file, file + ".gz"}) {
    fs::remove(file);
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_THAT(refusal(), HasSubstr("must be a regular file: " + pipe));
  }
}

TEST_F(Cifar, RefusesDamagedGzip) {
  const std::string file = folder + "/data_batch_1.bin.gz";
  test::write_gzip(file, cifar_records(20));
  const auto size = fs::file_size(file);
  fs::resize_file(file, size - 20);
  EXPECT_THAT(refusal(), HasSubstr("data_batch_1.bin.gz is damaged or cut short"));
  test::write_gzip(file, cifar_records(20));
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(static_cast<std::streamoff>(size / 2))
      << "damage";
  EXPECT_THAT(refusal(), HasSubstr("data_batch_1.bin.gz is damaged or cut short"));
  test::write_plain(file, cifar_records(1));
  EXPECT_THAT(refusal(), HasSubstr("is not a gzip file, although its name ends in .gz"));
  test::write_gzip(file, std::string(5000, 'a'));
  EXPECT_EQ(read_unpacked(file, 5000), std::string(5000, 'a'));
  EXPECT_THROW(read_unpacked(file, 4999), Error);
}

/// Returns images in which every pixel of image i is i.
ImageSet numbered(int64_t count) {
  const at::Tensor numbers = at::arange(count, at::kLong);
  return {.pixels = numbers.to(at::kByte).view({count, 1, 1, 1}).expand({count, 1, 8, 8}).contiguous(),
          .labels = numbers,
          .classes = count,
          .mean = {0},
          .deviation = {1.0f / 255},
          .fingerprint = concat("numbered ", count)};
}

ImageSet random_images(int64_t count) {
  auto generator = at::detail::createCPUGenerator(5);
  ImageSet set = numbered(count);
  set.pixels = at::randint(1, 256, {count, 1, 8, 8}, generator, at::TensorOptions(at::kByte));
  return set;
}

tensor::Batch global_batch(const ImageSet& set, BatchOptions options, int ranks, int64_t number) {
  std::vector<at::Tensor> inputs, labels;
  for (int rank = 0; rank < ranks; ++rank) {
    options.rank = rank;
    options.ranks = ranks;
    Batches mine(std::make_shared<ImageSamples>(set, true), options);
    for (int64_t i = 0; i < number; ++i) mine.next();
    const tensor::Batch batch = mine.next();
    inputs.push_back(batch.at("images"));
    labels.push_back(batch.at("labels"));
  }
  return image_batch(at::cat(inputs), at::cat(labels));
}

TEST(ImageBatches, EqualsOneRankOnSeveralRanks) {
  const ImageSet set = random_images(21);
  const BatchOptions options{.batch_size = 4, .seed = 9};
  for (const int64_t number : {0, 5, 12}) {  // batch 5 contains the end of the first epoch
    const tensor::Batch serial = global_batch(set, options, 1, number);
    for (const int ranks : {2, 4}) {
      const tensor::Batch batch = global_batch(set, options, ranks, number);
      EXPECT_TRUE(batch.at("images").equal(serial.at("images")));
      EXPECT_TRUE(batch.at("labels").equal(serial.at("labels")));
    }
  }
}

TEST(ImageBatches, VisitsEachImageOncePerEpochWithItsLabel) {
  Batches batches(std::make_shared<ImageSamples>(numbered(20), false), {.batch_size = 5, .seed = 3});
  std::vector<at::Tensor> labels;
  for (int i = 0; i < 4; ++i) {
    const tensor::Batch batch = batches.next();
    EXPECT_EQ(batch.at("images").sizes(), (std::vector<int64_t>{5, 1, 8, 8}));
    EXPECT_EQ(batch.at("labels").sizes(), (std::vector<int64_t>{5, 1}));
    EXPECT_TRUE(at::allclose(batch.at("images").flatten(1).amax(1), batch.at("labels").flatten().to(at::kFloat)));
    EXPECT_TRUE(batch.at("images").flatten(1).amax(1).equal(batch.at("images").flatten(1).amin(1)));
    labels.push_back(batch.at("labels").flatten());
  }
  EXPECT_TRUE(std::get<0>(at::cat(labels).sort()).equal(at::arange(20, at::kLong)));
}

TEST(ImageBatches, ResumesAnywhere) {
  const auto samples = std::make_shared<ImageSamples>(random_images(10), true);
  const BatchOptions options{.batch_size = 4, .seed = 1};
  for (const int before : {0, 2, 7}) {
    Batches through(samples, options), resumed(samples, options);
    for (int i = 0; i < before; ++i) through.next();
    resumed.restore(nlohmann::json::parse(through.state().dump()));
    for (int i = 0; i < 5; ++i)
      EXPECT_TRUE(resumed.next().at("images").equal(through.next().at("images"))) << before << " + " << i;
  }
}

TEST(ImageBatches, RefusesThePositionInOtherImages) {
  const auto refusal = [](const ImageSamples& from, const ImageSamples& to) -> std::string {
    const BatchOptions options{.batch_size = 2};
    return test::thrown_message([&] {
      Batches(std::make_shared<ImageSamples>(to), options)
          .restore(Batches(std::make_shared<ImageSamples>(from), options).state());
    });
  };
  EXPECT_EQ(refusal({numbered(5), true}, {numbered(5), true}), "");
  EXPECT_THAT(refusal({numbered(5), true}, {numbered(6), true}),
              HasSubstr("images was numbered 5, now it is numbered 6"));
  EXPECT_THAT(refusal({numbered(5), true}, {numbered(5), false}), HasSubstr("augment was true, now it is false"));
}

at::Tensor filled(const ImageSamples& samples, int64_t index, uint64_t seed) {
  tensor::Batch batch = samples.make(1);
  samples.fill(index, seed, batch, 0);
  return batch.at("images")[0];
}

TEST(ImageSamples, NormalisesByChannel) {
  ImageSet set{.pixels = at::full({1, 2, 4, 4}, 51, at::kByte),
               .labels = at::zeros({1}, at::kLong),
               .classes = 1,
               .mean = {0.1f, 0.3f},
               .deviation = {0.2f, 0.5f},
               .fingerprint = ""};
  const at::Tensor image = filled(ImageSamples(set, false), 0, 0);
  EXPECT_TRUE(at::allclose(image[0], at::full({4, 4}, 0.5f)));
  EXPECT_TRUE(at::allclose(image[1], at::full({4, 4}, -0.2f)));
}

// An augmented image is the image, mirrored or not, shifted by up to 4 pixels with zeros at the border. All
// combinations occur.
TEST(ImageSamples, MirrorsAndShifts) {
  const ImageSamples plain(random_images(1), false), changed(random_images(1), true);
  const at::Tensor image = filled(plain, 0, 0)[0];
  std::vector<at::Tensor> possible;
  for (const at::Tensor& mirrored : {image, image.flip(1)})
    for (int64_t y = 0; y < 9; ++y)
      for (int64_t x = 0; x < 9; ++x)
        possible.push_back(at::constant_pad_nd(mirrored, {4, 4, 4, 4}).narrow(0, y, 8).narrow(1, x, 8).flatten());
  const at::Tensor all = at::stack(possible);
  at::Tensor seen = at::zeros({all.size(0)}, at::kLong);
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const at::Tensor equal = all.eq(filled(changed, 0, seed)[0].flatten()).all(1);
    ASSERT_EQ(equal.sum().item<int64_t>(), 1) << seed;
    seen += equal;
  }
  EXPECT_GT(seen.min().item<int64_t>(), 0);
}

TEST(ImageSamples, DependsOnTheSeedAlone) {
  const ImageSamples samples(random_images(3), true);
  EXPECT_TRUE(filled(samples, 1, 7).equal(filled(samples, 1, 7)));
  int64_t different = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) different += !filled(samples, 1, seed).equal(filled(samples, 1, 7));
  EXPECT_GT(different, 15);
  const ImageSamples plain(random_images(3), false);
  EXPECT_TRUE(filled(plain, 1, 1).equal(filled(plain, 1, 2)));
}

TEST(ImageSamples, RefusesAnEmptySet) {
  ImageSet none = numbered(1);
  none.pixels = none.pixels.narrow(0, 0, 0);
  EXPECT_THROW(ImageSamples(none, false), Error);
}

}  // namespace
}  // namespace colossal::data::images_test
