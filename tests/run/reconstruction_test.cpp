// The objective of autoencoders: its terms by formulas, gradients by finite differences, samples and refusals.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <cmath>

#include "colossal/data/pictures/shape_samples.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/objectives/reconstruction/adversarial.h"
#include "colossal/run/objectives/reconstruction/reconstruction_objective.h"
#include "support/thrown_message.h"

namespace colossal::run::reconstruction_test {
namespace {

using testing::HasSubstr;

models::ModelShape shape_of(const std::vector<std::string>& own = {}) {
  std::vector<std::string> all{"height=8", "width=8", "levels=[8,16]", "groups=4"};
  all.insert(all.end(), own.begin(), own.end());
  return models::built_in().resolve({.name = "autoencoder-kl-tiny", .own = models::own_keys(all)});
}

ReconstructionObjective objective_of(ReconstructionKeys keys, ReconstructionDataKeys data = {},
                                     const models::ModelShape& shape = shape_of()) {
  return {Config(), OwnTables({{kReconstruction, keys}, {kDiscriminator, DiscriminatorKeys()}}, data), shape};
}

at::Tensor waves(double a, double b, const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return at::sin(a * at::arange(count, at::kDouble) + b).view(sizes);
}

tensor::Batch batch_of(int64_t rows = 2) {
  using tensor::Dim;
  const std::vector<Dim> dims{Dim::Row, Dim::Other, Dim::Other, Dim::Other};
  tensor::Batch batch;
  batch.add("images", {waves(.3, .1, {rows, 3, 8, 8}), dims});
  batch.add("noise", {waves(.7, .2, {rows, 4, 4, 4}), dims});
  batch.add(kCounts, {at::ones({rows}), {Dim::Row}, /*ignored=*/0});
  return batch;
}

double number(const at::Tensor& t) { return t.item<double>(); }

/// Returns made-up ends of a model, for the rows of batch_of().
models::States ends() { return {waves(.2, .4, {2, 64, 3}), waves(.5, .3, {2, 16, 8}), at::Tensor()}; }

// The states are given, so no model takes part.
TEST(Reconstruction, HasTheTermsOfItsFormulas) {
  const nn::ForwardContext step = nn::step_of(batch_of());
  const models::States end = ends();
  std::vector<double> distance(2), divergence(2), decibels(2);
  const at::Tensor pictures = step.batch->at("images");
  for (int64_t b = 0; b < 2; ++b) {
    double squares = 0;
    for (int64_t i = 0; i < 64; ++i)
      for (int64_t c = 0; c < 3; ++c) {
        const double x = number(pictures[b][c][i / 8][i % 8]), y = number(end[0][b][i][c]);
        distance[b] += std::abs(x - y) / 192;
        squares += (x - y) * (x - y) / 192;
      }
    decibels[b] = 10 * std::log10(4 / squares);
    for (int64_t i = 0; i < 16; ++i)
      for (int64_t c = 0; c < 4; ++c) {
        const double mean = number(end[1][b][i][c]), logvar = number(end[1][b][i][c + 4]);
        divergence[b] += (mean * mean + std::exp(logvar) - 1 - logvar) / 2 / 192;
      }
  }
  const ReconstructionObjective objective = objective_of({.l1 = 2, .kl = 0.5});
  const double l1 = distance[0] + distance[1], kl = divergence[0] + divergence[1];
  EXPECT_NEAR(number(objective.loss({}, end, step)), 2 * l1 + 0.5 * kl, 1e-12);
  const at::Tensor sums = objective.evaluate({}, end, step);
  ASSERT_EQ(sums.sizes(), at::IntArrayRef({objective.sums()}));
  EXPECT_NEAR(number(sums[0]), 2 * l1 + 0.5 * kl, 1e-12);
  EXPECT_NEAR(number(sums[1]), l1, 1e-12);
  EXPECT_NEAR(number(sums[2]), kl, 1e-12);
  EXPECT_NEAR(number(sums[3]), decibels[0] + decibels[1], 1e-10);
  const std::vector<Metric> rows = objective.metrics({6, 2, 4, 50}, 2);
  const auto value = [&](size_t i) { return std::pair{rows.at(i).name, number_of(rows.at(i))}; };
  EXPECT_EQ(value(0), std::pair(std::string("eval_loss"), 3.0));
  EXPECT_EQ(value(1), std::pair(std::string("eval_l1"), 1.0));
  EXPECT_EQ(value(2), std::pair(std::string("eval_kl"), 2.0));
  EXPECT_EQ(value(3), std::pair(std::string("eval_psnr"), 25.0));
}

TEST(Reconstruction, LeavesOutRowsThatDoNotCount) {
  const ReconstructionObjective objective = objective_of({.l1 = 2, .kl = 0.5});
  const auto with_counts = [](const std::vector<float>& counts) {
    return batch_of().with(kCounts, {at::tensor(counts), {tensor::Dim::Row}, /*ignored=*/0});
  };
  const auto sums = [&](const std::vector<float>& counts) {
    return objective.evaluate({}, ends(), nn::step_of(with_counts(counts)));
  };
  EXPECT_EQ(objective.weight(with_counts({1, 0})), 1);
  EXPECT_TRUE(at::allclose(sums({1, 0}) + sums({0, 1}), sums({1, 1})));
  EXPECT_EQ(number(sums({1, 0})[0]), number(objective.loss({}, ends(), nn::step_of(with_counts({1, 0})))));
}

TEST(Reconstruction, HasNoDivergenceOfStandardNormalLatents) {
  const nn::ForwardContext step = nn::step_of(batch_of());
  const models::States end{at::zeros({2, 64, 3}, at::kDouble), at::zeros({2, 16, 8}, at::kDouble), at::Tensor()};
  EXPECT_EQ(number(objective_of({}).evaluate({}, end, step)[2]), 0);
}

TEST(Reconstruction, HasTheGradientsOfFiniteDifferences) {
  nn::Parameters parameters({}, {.dtype = at::kDouble});
  nn::SerialLayers layers(parameters);
  const models::Model model = make_model(shape_of(), layers);
  int64_t seed = 0;
  for (nn::Parameter& p : parameters)
    p.value.detach().copy_(waves(1.3, static_cast<double>(++seed), p.value.sizes().vec()) * .2 +
                           (p.name.find("norm") != std::string::npos ? .5 : 0));
  const ReconstructionObjective objective = objective_of({.l1 = 1, .kl = 0.3});
  const nn::ForwardContext step = nn::step_of(batch_of());
  const models::Stage all{0, static_cast<int64_t>(model.blocks.size())};
  const auto loss = [&] { return objective.loss(model, run_stage(model, all, {}, step), step); };
  loss().backward();
  int checked = 0;
  for (nn::Parameter& p : parameters) {
    if (++checked % 4 != 1) continue;  // one element of every fourth parameter
    const int64_t index = p.value.numel() / 2;
    const at::Tensor element = p.value.detach().view({-1})[index];
    const double gradient = number(p.value.grad().view({-1})[index]), old = number(element), h = 1e-6;
    const auto at_value = [&](double value) {
      element.fill_(value);
      const at::NoGradGuard no_grad;
      return number(loss());
    };
    const double slope = (at_value(old + h) - at_value(old - h)) / (2 * h);
    element.fill_(old);
    EXPECT_NEAR(gradient, slope, 1e-6 * std::max(1.0, std::abs(slope))) << p.name;
  }
  EXPECT_GT(checked, 40);
}

TEST(Reconstruction, AddsTheJudgementOfADiscriminator) {
  const ReconstructionObjective objective = objective_of({.l1 = 2, .kl = 0.5, .gan = 3});
  const tensor::Batch plain = batch_of().with(kCounts, {at::tensor({1.f, 0.f}), {tensor::Dim::Row}, /*ignored=*/0});
  const at::Tensor losses = at::tensor({.7, .4}, at::kDouble), gradient = waves(.9, .3, {2, 3, 8, 8});
  const nn::ForwardContext step = nn::step_of(judged(plain, losses, gradient));
  const auto gradient_of = [&](const nn::ForwardContext& step, double* value) {
    models::States end = ends();
    end[0].requires_grad_();
    const at::Tensor loss = objective.loss({}, end, step);
    loss.backward();
    *value = number(loss);
    return end[0].grad();
  };
  double with = 0, without = 0;
  const at::Tensor added = gradient_of(step, &with) - gradient_of(nn::step_of(not_judged(plain)), &without);
  EXPECT_EQ(number(objective_of({.l1 = 2, .kl = 0.5}).loss({}, ends(), nn::step_of(plain))), without);
  EXPECT_NEAR(with - without, 3 * .7, 1e-12) << "rows that do not count add nothing";
  const at::Tensor wanted = 3 * gradient.flatten(2).transpose(1, 2);
  EXPECT_TRUE(at::allclose(added[0], wanted[0], 0, 1e-14));
  EXPECT_EQ(number(added[1].abs().max()), 0);
  EXPECT_EQ(number(objective.evaluate({}, ends(), nn::step_of(plain))[0]), without);
  EXPECT_THAT(test::thrown_message([&] { objective.loss({}, ends(), nn::step_of(plain)); }),
              HasSubstr("batches that a discriminator judged"));
  EXPECT_EQ(objective.example(2).at(kAdversarialGradient).sizes(), at::IntArrayRef({2, 3, 8, 8}));
}

TEST(Reconstruction, HasTheHingeLossOfADiscriminator) {
  const models::States end{at::tensor({.5, -3., 2., -.25}, at::kDouble).view({2, 2, 1})};
  const nn::ForwardContext step = nn::step_of(batch_of());
  EXPECT_TRUE(at::allclose(generator_losses({}, end, step), at::tensor({1.25, -.875}, at::kDouble)));
  EXPECT_NEAR(number(discriminator_loss(true)({}, end, step)), (.5 + 4 + 0 + 1.25) / 4, 1e-14);
  EXPECT_NEAR(number(discriminator_loss(false)({}, end, step)), (1.5 + 0 + 3 + .75) / 4, 1e-14);
}

LatentNoiseSamples samples_of(bool is_held_out, bool mirror = false) {
  const data::ShapeOptions shapes{
      .count = 40, .width = 8, .mean = {0.5, 0.5, 0.5}, .deviation = {0.5, 0.5, 0.5}, .held_out = is_held_out};
  return {std::make_shared<data::ShapeSamples>(shapes),
          {.height = 8, .width = 8, .latent_channels = 4, .factor = 2, .mirror = mirror, .is_held_out = is_held_out}};
}

tensor::Batch filled(const LatentNoiseSamples& samples, int64_t index, uint64_t seed) {
  tensor::Batch batch = samples.make(1);
  samples.fill(index, seed, batch, 0);
  return batch;
}

TEST(LatentNoiseSamples, HaveTheNoiseOfTheirSeed) {
  const LatentNoiseSamples samples = samples_of(false), held_out = samples_of(true, true);
  const tensor::Batch one = filled(samples, 7, 5), other = filled(samples, 7, 6);
  EXPECT_EQ(one.at("noise").sizes(), at::IntArrayRef({1, 4, 4, 4}));
  EXPECT_TRUE(at::equal(one.at("noise"), filled(samples, 7, 5).at("noise")));
  EXPECT_FALSE(at::equal(one.at("noise"), other.at("noise")));
  EXPECT_NEAR(one.at("noise").std().item<double>(), 1, 0.3);
  for (const char* field : {"images", "noise"})
    EXPECT_TRUE(at::equal(filled(held_out, 7, 5).at(field), filled(held_out, 7, 6).at(field))) << field;
  EXPECT_FALSE(at::equal(filled(held_out, 7, 5).at("noise"), filled(held_out, 8, 5).at("noise")));
}

// 40 samples are two and a half batches of 16.
TEST(LatentNoiseSamples, CountOnceInAnEvaluation) {
  data::Batches batches(std::make_shared<LatentNoiseSamples>(samples_of(true)),
                        {.batch_size = 16, .shuffle = false, .counts_once = true});
  const ReconstructionObjective objective = objective_of({});
  for (const double count : {16, 16, 8}) EXPECT_EQ(objective.weight(batches.next()), count);
}

TEST(LatentNoiseSamples, MirrorEverySecondPicture) {
  const LatentNoiseSamples plain = samples_of(false), mirrored = samples_of(false, true);
  int count = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const at::Tensor one = filled(plain, 3, seed).at("images"), other = filled(mirrored, 3, seed).at("images");
    const bool is_same = at::equal(one, other);
    EXPECT_TRUE(is_same || at::equal(one.flip({3}), other));
    count += is_same ? 0 : 1;
  }
  EXPECT_NEAR(count, 30, 15);
}

TEST(Reconstruction, TakesPicturesOfOtherSizesThanThatOfTheModel) {
  const ReconstructionObjective objective = objective_of({}, {.size = {12, 6}});
  const tensor::Batch example = objective.example(3);
  EXPECT_EQ(example.at("images").sizes(), at::IntArrayRef({3, 3, 6, 12}));
  EXPECT_EQ(example.at("noise").sizes(), at::IntArrayRef({3, 4, 3, 6}));
  EXPECT_EQ(objective.tokens(example, shape_of()), 3 * 6 * 12);
  EXPECT_NO_THROW(objective.check(example));
}

TEST(Reconstruction, RefusesWhatDoesNotFit) {
  const auto refused = [](ReconstructionKeys keys, ReconstructionDataKeys data, const models::ModelShape& shape) {
    return test::thrown_message([&] { objective_of(keys, std::move(data), shape); });
  };
  EXPECT_THAT(refused({}, {.size = {9, 8}}, shape_of()), HasSubstr("nearest: [10, 8]"));
  EXPECT_THAT(refused({}, {.size = {8}}, shape_of()), HasSubstr("a width and a height"));
  EXPECT_THAT(refused({.l1 = 0, .kl = 0}, {}, shape_of()), HasSubstr("set l1 = 1"));
  EXPECT_THAT(refused({.lpips = 1}, {}, shape_of()), HasSubstr("lpips = 1 needs lpips_from"));
  EXPECT_THAT(refused({.lpips_from = "x"}, {}, shape_of()), HasSubstr("lpips_from needs reconstruction.lpips above 0"));
  EXPECT_THAT(refused({.lpips = 1, .lpips_from = "x"}, {.size = {16, 14}}, shape_of()),
              HasSubstr("lpips needs pictures of at least 16 x 16 pixels"));
  EXPECT_THAT(refused({.gan_start = 9}, {}, shape_of()), HasSubstr("gan_start needs reconstruction.gan above 0"));
  EXPECT_THAT(refused({}, {}, models::built_in().resolve({.name = "dit-tiny"})), HasSubstr("name an autoencoder"));
  const tensor::Batch batch = batch_of();
  const ReconstructionObjective objective = objective_of({});
  EXPECT_THAT(test::thrown_message([&] {
                objective.check(batch.with("noise", {waves(1, 0, {2, 4, 8, 8}), batch.field("noise").dims}));
              }),
              HasSubstr("noise must be [B, 4, H / 2, W / 2]"));
}

}  // namespace
}  // namespace colossal::run::reconstruction_test
