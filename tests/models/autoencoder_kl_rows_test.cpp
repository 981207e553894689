// Decoding and encoding by bands of rows, on one rank and on several, against whole pictures.
#include "colossal/models/autoencoder_kl_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/distributed/row_group.h"
#include "colossal/memory/account.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/config.h"
#include "colossal/models/families/autoencoder_kl.h"
#include "colossal/models/registry.h"
#include "colossal/nn/serial_layers.h"

namespace colossal::models::autoencoder_rows_test {
namespace {

struct Made {
  explicit Made(at::ScalarType dtype, const std::string& name = "autoencoder-kl-tiny", at::Device device = at::kCPU)
      : parameters({}, {.dtype = dtype, .device = device}) {
    nn::SerialLayers layers(parameters);
    model = make_model(built_in().resolve({.name = name}), layers);
    if (device.is_meta()) return;
    double next = 0;  // norms that are no identity
    for (nn::Parameter& p : parameters)
      if (p.value.dim() == 1)
        p.value.detach().add_(at::arange(p.value.numel(), p.value.options()).add(next++).sin(), .3);
  }
  nn::Parameters parameters;
  Model model;
};

at::Tensor waves(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::arange(count, at::TensorOptions(at::kDouble)) * .37 + .1).sin().view(sizes).to(dtype);
}

/// Bands of two rows with nothing stored between convolutions, larger bands, and all stored.
const RowOptions kOptions[] = {{0, 1}, {1 << 16, 3000}, {int64_t{1} << 30, int64_t{1} << 30}};

double most_apart(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(AutoencoderRows, DecodesAsWholePictures) {
  const Made exact(at::kDouble), single(at::kFloat);
  for (const RowOptions& options : kOptions) {
    const at::Tensor latents = waves({2, 4, 3, 2}, at::kDouble);
    const at::Tensor whole = decoded(exact.model, latents);
    EXPECT_LT(most_apart(decoded_by_rows(exact.model, exact.parameters, latents, options), whole), 1e-12);
    const at::Tensor rough = latents.to(at::kFloat);
    EXPECT_LT(
        most_apart(decoded_by_rows(single.model, single.parameters, rough, options), decoded(single.model, rough)),
        1e-5);
  }
}

TEST(AutoencoderRows, EncodesPicturesOfOddSidesAsWholeOnes) {
  const Made exact(at::kDouble), single(at::kFloat);
  for (const RowOptions& options : kOptions)
    for (const int64_t height : {16, 27}) {
      const at::Tensor pixels = waves({1, 3, height, 13}, at::kDouble);
      const at::Tensor whole = moments_of(exact.model, pixels);
      EXPECT_LT(most_apart(moments_by_rows(exact.model, exact.parameters, pixels, options), whole), 1e-12) << height;
      const at::Tensor rough = pixels.to(at::kFloat);
      EXPECT_LT(
          most_apart(moments_by_rows(single.model, single.parameters, rough, options), moments_of(single.model, rough)),
          1e-5);
    }
}

/// The tensors of a picture of 1024 pixels, from sizes alone: 335 MB of weights are not counted.
TEST(AutoencoderRows, StaysWithinItsMemory) {
  const Made large(at::kFloat, "autoencoder-kl", at::kMeta);
  const auto peak = [&](const auto& work) {
    const memory::Account account(memory::Counted::Shapes);
    work();
    return account.usage().peak_total;
  };
  const at::Tensor latents = at::empty({1, 4, 128, 128}, at::TensorOptions(at::kFloat).device(at::kMeta)),
                   pixels = at::empty({1, 3, 1024, 1024}, latents.options());
  constexpr int64_t kMiB = int64_t{1} << 20;
  const int64_t decoding = peak([&] { decoded_by_rows(large.model, large.parameters, latents); }),
                encoding = peak([&] { moments_by_rows(large.model, large.parameters, pixels); }),
                whole = peak([&] { decoded(large.model, latents); });
  EXPECT_LT(decoding, 1000 * kMiB);
  EXPECT_LT(encoding, 1000 * kMiB);
  EXPECT_GT(whole, 2000 * kMiB);
}

TEST(AutoencoderRows, ServeLargePicturesAndSeveralRanks) {
  const ModelShape shape = built_in().resolve({.name = "autoencoder-kl"});
  EXPECT_FALSE(prefers_rows(shape, 64 * 64));
  EXPECT_TRUE(prefers_rows(shape, 64 * 72));
  EXPECT_TRUE(prefers_rows(shape, 8, 2));
}

/// Runs `work` on that many ranks, and returns the elements that all of them sent.
int64_t sent_by_ranks(int ranks, const std::function<void(RowRanks& ranks)>& work) {
  std::vector<double> sent(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"rows", ranks}});
    distributed::RowGroup group(mesh.all());
    work(group);
    sent[static_cast<size_t>(world.rank())] = world.traffic().total().elements;
  });
  return std::llround(std::accumulate(sent.begin(), sent.end(), 0.0));
}

TEST(AutoencoderRows, DecodeOnSeveralRanksAndSendWhatTheFormulaSays) {
  const Made made(at::kDouble);
  const auto sizes = made.model.shape.own.as<AutoencoderKlSizes>();
  const at::Tensor latents = waves({2, 4, 5, 3}, at::kDouble), whole = decoded(made.model, latents);
  for (int ranks = 1; ranks <= 4; ++ranks) {
    const int64_t sent = sent_by_ranks(ranks, [&](RowRanks& group) {
      RowOptions own = kOptions[ranks % 3];
      own.ranks = &group;
      EXPECT_LT(most_apart(decoded_by_rows(made.model, made.parameters, latents, own), whole), 1e-12) << ranks;
    });
    EXPECT_EQ(sent, 2 * decoding_traffic(sizes, {5, 3}, ranks).total()) << ranks;
  }
}

TEST(AutoencoderRows, EncodeOddHeightsOnSeveralRanksAndSendWhatTheFormulaSays) {
  const Made made(at::kDouble);
  const auto sizes = made.model.shape.own.as<AutoencoderKlSizes>();
  for (const int64_t height : {16, 23, 29}) {
    const at::Tensor pixels = waves({1, 3, height, 13}, at::kDouble), whole = moments_of(made.model, pixels);
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const int64_t sent = sent_by_ranks(ranks, [&](RowRanks& group) {
        const RowOptions own{.stored_bytes = 1 << 16, .band_elements = 3000, .ranks = &group};
        EXPECT_LT(most_apart(moments_by_rows(made.model, made.parameters, pixels, own), whole), 1e-12)
            << height << " on " << ranks;
      });
      EXPECT_EQ(sent, encoding_traffic(sizes, {height, 13}, ranks).total()) << height << " on " << ranks;
    }
  }
}

TEST(AutoencoderRows, ComputeAllOnEachOfMoreRanksThanRows) {
  const Made made(at::kDouble);
  const at::Tensor latents = waves({1, 4, 2, 3}, at::kDouble), whole = decoded(made.model, latents);
  const int64_t sent = sent_by_ranks(3, [&](RowRanks& group) {
    EXPECT_LT(most_apart(decoded_by_rows(made.model, made.parameters, latents, {.ranks = &group}), whole), 1e-12);
  });
  EXPECT_EQ(sent, 0);
}

/// The decoder of Stable Diffusion at 1024 pixels, whose 33 convolutions and 30 norms are counted on sizes alone.
TEST(AutoencoderRows, SendTheHalosOfALargePicture) {
  const Made large(at::kFloat, "autoencoder-kl", at::kMeta);
  const at::Tensor latents = at::empty({1, 4, 128, 128}, at::TensorOptions(at::kFloat).device(at::kMeta));
  const auto sizes = large.model.shape.own.as<AutoencoderKlSizes>();
  const RowTraffic formula = decoding_traffic(sizes, {128, 128}, 2);
  EXPECT_EQ(formula.halos, 8'127'488);
  EXPECT_EQ(formula.norms, 30 * 2 * 2 * 32);
  EXPECT_EQ(formula.attention, 2 * 128 * 128 * 512);
  EXPECT_EQ(formula.result, 3 * 1024 * 1024);
  double sent = 0;
  for (const int rank : {0, 1}) {
    const auto world = comm::make_simulated_world(rank, 2);
    comm::Mesh mesh(*world, {{"rows", 2}});
    distributed::RowGroup group(mesh.all());
    decoded_by_rows(large.model, large.parameters, latents, {.ranks = &group});
    sent += world->traffic().total().elements;
  }
  EXPECT_EQ(std::llround(sent), formula.total());
}

}  // namespace
}  // namespace colossal::models::autoencoder_rows_test
