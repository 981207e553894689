// The loss over a split vocabulary in narrow dtypes: gradients are sent to other ranks before backward has computed
// the factor that makes them small.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/nn/loss_head.h"
#include "colossal/ops/cross_entropy.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::narrow_head_test {
namespace {

using parallel::TensorConfig;

class NarrowHead : public testing::TestWithParam<TensorConfig> {};

TEST_P(NarrowHead, LosesNoTokenOfMany) {
  constexpr int64_t kBatch = 8, kSequence = 16384, kHidden = 8, kWords = 16, kTokens = kBatch * kSequence;
  auto generator = at::detail::createCPUGenerator(1);
  const auto draw = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, generator, at::kDouble).to(at::kBFloat16).to(at::kDouble);
  };
  const at::Tensor weight = (draw({kWords, kHidden}) * 0.125).requires_grad_(), token = draw({kHidden});
  const at::Tensor hidden = token.expand({kBatch, kSequence, kHidden}).clone().requires_grad_();
  const at::Tensor labels = at::full({kBatch, kSequence}, 3, at::kLong);
  const at::Tensor logits = at::matmul(hidden, weight.t());
  (ops::cross_entropy(logits.flatten(0, 1), labels.flatten()) / kTokens).backward();
  for (const auto& [type, roundoff] : {std::pair{at::kBFloat16, 0x1p-8}, std::pair{at::kHalf, 0x1p-11}})
    comm::run_ranks(static_cast<int>(GetParam().size), [&, type = type, roundoff = roundoff](comm::World& world) {
      comm::Mesh mesh(world, parallel::tensor_axes(GetParam()));
      nn::Parameters parameters(mesh.coordinates(), {.dtype = type});
      const parallel::Layout layout = parallel::make_layout(GetParam(), mesh);
      parallel::TensorLayers make(parameters, layout);
      const auto head = make.lm_head("head", kHidden, kWords, {.deviation = 1});
      nn::Parameter& own = *parameters.begin();
      {
        const at::NoGradGuard no_grad;
        own.value.copy_(local_part(weight.detach(), own.spec, mesh.coordinates()));
      }
      const auto part = [&](const at::Tensor& whole) { return parallel::part_of(layout, layout.outside, whole); };
      const at::Tensor x = part(hidden.detach()).to(type).contiguous().requires_grad_();
      (head->loss_sum(x, labels, {}) / kTokens).backward();
      // Rounded values: logits and their sum over ranks, which softmax amplifies by twice their size, d(logits), the
      // messages and their sum, and the result.
      const double roundings = 2 * 2 * logits.detach().abs().max().item<double>() + 4;
      const auto limit = [&](const at::Tensor& want) {
        return (roundings * roundoff + 4 * 0x1p-23 * 363) * want.abs().max().item<double>();  // 363^2 tokens
      };
      expect_within(own.value.grad(), local_part(weight.grad(), own.spec, mesh.coordinates()), limit(weight.grad()),
                    "weight gradient");
      // This is the smallest number of fp16, so it bounds the error of a token without a loss scale.
      const double smallest = type == at::kHalf ? 0x1p-25 : 0;
      expect_within(x.grad(), part(hidden.grad()), limit(hidden.grad()) + smallest, "hidden gradient");
    });
}

INSTANTIATE_TEST_SUITE_P(Modes, NarrowHead,
                         testing::Values(TensorConfig{.size = 2}, TensorConfig{.size = 4, .mode = "2d"},
                                         TensorConfig{.size = 8, .mode = "3d"}),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace colossal::test::narrow_head_test
