// Decoding and encoding by bands of rows against whole pictures.
#include "colossal/models/autoencoder_kl_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

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

TEST(AutoencoderRows, ServeLargePictures) {
  const ModelShape shape = built_in().resolve({.name = "autoencoder-kl"});
  EXPECT_FALSE(prefers_rows(shape, 64 * 64));
  EXPECT_TRUE(prefers_rows(shape, 64 * 72));
}

}  // namespace
}  // namespace colossal::models::autoencoder_rows_test
