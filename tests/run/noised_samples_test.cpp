// Samples of noised pictures: fields, and what noise, times and labels depend on.
#include "colossal/run/objectives/diffusion/noised_samples.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>

#include "colossal/data/pictures/shape_samples.h"
#include "colossal/run/objectives/diffusion/variance_bound.h"
#include "support/thrown_message.h"

namespace colossal::run::noised_samples_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kSide = 8;

std::shared_ptr<const data::Samples> shapes(int64_t count = 40) {
  return std::make_shared<data::ShapeSamples>(
      data::ShapeOptions{.count = count, .width = kSide, .mean = {0.5, 0.5, 0.5}, .deviation = {0.5, 0.5, 0.5}});
}

NoisedOptions options_of(DiffusionKeys keys) {
  return {.keys = completed(std::move(keys), {.target = "epsilon", .schedule = "linear", .guidance = 4}),
          .channels = 3,
          .height = kSide,
          .width = kSide,
          .null_class = 10};
}

tensor::Batch filled(const NoisedSamples& samples, int64_t index, uint64_t seed) {
  tensor::Batch batch = samples.make(1);
  samples.fill(index, seed, batch, 0);
  return batch;
}

tensor::Batch picture(int64_t index, uint64_t seed) {
  const auto source = shapes();
  tensor::Batch batch = source->make(1);
  source->fill(index, seed, batch, 0);
  return batch;
}

double item(const tensor::Batch& batch, const char* field) { return batch.at(field)[0].item<double>(); }

TEST(NoisedSamples, MixPictureAndNoiseByTheLevel) {
  const NoisedSamples samples(shapes(), options_of({.drop_label = 0}));
  const noise::NoiseLevels levels({.schedule = "linear"});
  for (const uint64_t seed : {1, 2, 3}) {
    const tensor::Batch batch = filled(samples, 7, seed);
    const auto t = static_cast<int64_t>(item(batch, kTimes));
    const at::Tensor want = levels.signal(t) * picture(7, seed).at("images") + levels.noise(t) * batch.at(kTargets);
    EXPECT_TRUE(at::allclose(batch.at(kNoised), want, 1e-5, 1e-5));
    EXPECT_NEAR(batch.at(kTargets).std().item<double>(), 1, 0.2) << "the target is the noise";
    EXPECT_EQ(item(batch, kClasses), 7);
    EXPECT_NEAR(item(batch, kLevels), static_cast<double>(t) / 1000, 1e-6);
  }
}

TEST(NoisedSamples, DependOnTheSeedOfASampleAlone) {
  const NoisedSamples samples(shapes(), options_of({}));
  const tensor::Batch one = filled(samples, 7, 5), same = filled(samples, 7, 5), other = filled(samples, 7, 6);
  for (const char* name : {kNoised, kTimes, kClasses, kTargets}) EXPECT_TRUE(at::equal(one.at(name), same.at(name)));
  EXPECT_FALSE(at::equal(one.at(kTargets), other.at(kTargets)));
  EXPECT_NE(item(one, kTimes), item(other, kTimes));
}

TEST(NoisedSamples, DropLabelsByTheirShare) {
  const NoisedSamples samples(shapes(), options_of({.drop_label = 0.3}));
  int dropped = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) dropped += item(filled(samples, 3, seed), kClasses) == 10 ? 1 : 0;
  EXPECT_NEAR(dropped, 90, 4 * std::sqrt(300 * 0.3 * 0.7));
}

TEST(NoisedSamples, SpreadTheTimesOfHeldOutPicturesEvenly) {
  NoisedOptions options = options_of({.drop_label = 1});
  options.is_held_out = true;
  options.mirror = true;
  const NoisedSamples samples(shapes(), options);
  for (const int64_t first : {8, 40}) {
    std::vector<int> quarters(4);
    for (int64_t i = 0; i < first; ++i) ++quarters.at(static_cast<size_t>(4 * item(filled(samples, i, 1), kLevels)));
    for (const int count : quarters) EXPECT_NEAR(count, static_cast<double>(first) / 4, 1.01);
  }
  const tensor::Batch one = filled(samples, 7, 5);
  for (const char* name : {kNoised, kTimes, kClasses, kTargets})
    EXPECT_TRUE(at::equal(one.at(name), filled(samples, 7, 6).at(name)) || std::string(name) == kNoised) << name;
  EXPECT_EQ(item(one, kClasses), 7) << "no label is dropped";
}

TEST(NoisedSamples, MirrorEverySecondPicture) {
  NoisedOptions options = options_of({});
  options.has_pictures = options.mirror = true;
  const NoisedSamples samples(shapes(), options);
  int mirrored = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const at::Tensor found = filled(samples, 3, seed).at(kPictures)[0], plain = picture(3, seed).at("images")[0];
    const bool is_plain = at::equal(found, plain);
    EXPECT_TRUE(is_plain || at::equal(found, plain.flip({2})));
    mirrored += is_plain ? 0 : 1;
  }
  EXPECT_NEAR(mirrored, 50, 20);
}

TEST(NoisedSamples, ShareOffsetsOfNoiseInAChannel) {
  const auto spread = [](double offset) {
    const NoisedSamples samples(shapes(), options_of({.offset_noise = offset}));
    double sum = 0;
    for (uint64_t seed = 0; seed < 20; ++seed)
      sum += filled(samples, 3, seed).at(kTargets).mean({2, 3}).abs().mean().item<double>();
    return sum / 20;
  };
  EXPECT_GT(spread(2), 4 * spread(0)) << "means of channels differ from 0";
}

TEST(NoisedSamples, PerturbInputsButNotTargets) {
  const NoisedSamples plain(shapes(), options_of({})), perturbed(shapes(), options_of({.input_perturbation = 0.5}));
  const tensor::Batch one = filled(plain, 3, 4), other = filled(perturbed, 3, 4);
  EXPECT_TRUE(at::equal(one.at(kTargets), other.at(kTargets)));
  EXPECT_FALSE(at::equal(one.at(kNoised), other.at(kNoised)));
}

TEST(NoisedSamples, RefusePicturesOfAnotherSize) {
  NoisedOptions options = options_of({});
  options.width = 4;
  const NoisedSamples samples(shapes(), options);
  EXPECT_THAT(test::thrown_message([&] { filled(samples, 0, 1); }), HasSubstr("3 x 8 x 4: got [3, 8, 8]"));
}

TEST(DiffusionKeys, TakeTheShiftAsANumberOrAWord) {
  EXPECT_EQ(DiffusionKeys({.shift = "3.5"}).flow().shift, 3.5);
  EXPECT_EQ(DiffusionKeys().flow().shift, 1);
}

// The values are those of an independent implementation in NumPy.
TEST(VarianceBound, HasKnownValues) {
  const VarianceBound bound({.schedule = "linear"});
  const auto waves = [](double a, double b) {
    return at::sin(a * at::arange(4 * 12, at::kDouble) + b).view({4, 3, 2, 2});
  };
  const at::Tensor bits = bound.of_rows({.pictures = waves(0.3, 0.1),
                                         .noised = waves(0.2, 0.4),
                                         .times = at::tensor({0.0, 1.0, 500.0, 999.0}, at::kDouble),
                                         .noise = waves(0.7, 0.2),
                                         .variance = waves(0.5, 0)});
  const std::vector<double> want{29.942896664373, 2669.255122349696, 0.010805312678, 0.012798152459};
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(bits[static_cast<int64_t>(i)].item<double>() / want[i], 1, 1e-9) << i;
}

}  // namespace
}  // namespace colossal::run::noised_samples_test
