// The parts of a pipeline that draws, beside the model, on an accelerator: text encoder and autoencoder give the
// results of the CPU.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/text_encoder.h"
#include "support/accelerator.h"

namespace colossal::test::pipeline_parts_accelerator_test {
namespace {

using Run = std::function<at::Tensor(distributed::DistributedModel& model, const at::Tensor& input)>;

/// Runs a preset in fp64 on the CPU and on the accelerator.
void expect_equal(const std::string& preset, const at::Tensor& input, const Run& run) {
  const at::NoGradGuard no_grad;
  const auto on = [&](at::Device device) {
    at::Tensor result;
    comm::run_ranks(1, [&](comm::World& world) {
      const at::NoGradGuard no_grad_here;
      comm::Mesh mesh(world, {});
      distributed::DistributedModel model(mesh, {}, models::built_in().resolve({.name = preset}),
                                          {.dtype = at::kDouble, .device = device, .seed = 5}, {});
      result = run(model, input.to(device)).to(at::kCPU);
    });
    return result;
  };
  const at::Tensor want = on(at::kCPU);
  EXPECT_GT(want.abs().max().item<double>(), 1e-3);
  EXPECT_TRUE(at::allclose(on(accelerator()), want, 1e-12, 1e-12)) << preset;
}

using PipelinePartsOnAccelerator = AcceleratorTest;

TEST_F(PipelinePartsOnAccelerator, EncodeCaptions) {
  expect_equal("clip-text-tiny", at::arange(77, at::kLong).unsqueeze(0), [](auto& model, const at::Tensor& ids) {
    return models::text_states(model.decoding_model(), ids, /*clip_skip=*/0);
  });
}

TEST_F(PipelinePartsOnAccelerator, EncodeAndDecodePictures) {
  const at::Tensor pixels = at::linspace(-1, 1, 3 * 4 * 6, at::kDouble).view({1, 3, 4, 6});
  expect_equal("autoencoder-kl-tiny", pixels,
               [](auto& model, const at::Tensor& x) { return models::moments_of(model.decoding_model(), x); });
  const at::Tensor latent = at::linspace(-1, 1, 4 * 2 * 3, at::kDouble).view({1, 4, 2, 3});
  expect_equal("autoencoder-kl-tiny", latent,
               [](auto& model, const at::Tensor& x) { return models::decoded(model.decoding_model(), x); });
}

}  // namespace
}  // namespace colossal::test::pipeline_parts_accelerator_test
