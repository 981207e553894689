// Generation with weights that are packed during loading: it equals generation with plain weights, over ranks too. With
// weights quantized to 8 and 4 bits, logits are as close as the rounding allows.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/batch_step.h"
#include "colossal/run/saved_model.h"
#include "support/generated_text.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::infer::packed_weights_test {
namespace {

using test::Asked;
using test::generated;

class PackedWeights : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { test::write_model(folder, GetParam()); }

  /// Returns the logits of the token after four tokens.
  at::Tensor logits(const run::Loading& loading, int64_t* packed_bytes = nullptr) {
    at::Tensor found;
    comm::run_ranks(1, [&](comm::World& world) {
      const distributed::ParallelConfig layout;
      comm::Mesh mesh(world, layout.axes());
      const run::SavedModel saved = run::load_model(folder / "hf", mesh, layout, at::kCPU, loading);
      const at::NoGradGuard no_grad;
      const auto cache = saved.model->make_cache(4);
      found = saved.model->next_logits(
          nn::step_of(nn::token_batch(at::tensor({84, 111, 32, 98}).unsqueeze(0), at::arange(4).unsqueeze(0)),
                      {.parts = {nn::Decoding{cache.get()}}}));
      if (packed_bytes) *packed_bytes = saved.packed->bytes();
      if (!saved.packed) return;
      for (const nn::Parameter& p : saved.model->parameters()) {
        const bool has_memory =
            p.value.numel() * p.value.element_size() <= static_cast<int64_t>(p.value.storage().nbytes());
        EXPECT_EQ(has_memory, p.value.dim() == 1 || !(p.hidden_matrix || p.name == "head.weight")) << p.name;
      }
    });
    return found;
  }

  test::TemporaryFolder folder;
};

TEST_P(PackedWeights, EqualPlainWeights) {
  std::vector<distributed::ParallelConfig> layouts(4);
  layouts[1].tensor.size = 2;
  layouts[2].pipeline.size = 2;
  layouts[3].tensor = {.size = 4, .mode = "2d"};
  for (const distributed::ParallelConfig& layout : layouts) {
    Asked asked{folder / "hf", {}, layout};
    const auto want = generated(asked).tokens;
    ASSERT_EQ(want.size(), static_cast<size_t>(test::kNew));
    asked.packing.emplace();
    asked.packs_later = &layout == &layouts[1];  // several ranks pack at once
    EXPECT_EQ(generated(asked).tokens, want) << layout.tensor.mode << layout.tensor.size << layout.pipeline.size;
  }
}

TEST_P(PackedWeights, PackAtTheirFirstUse) {
  run::Loading loading{.tokenizer = "none", .packing = nn::WeightPacking{}};
  int64_t bytes = 0, later_bytes = 0;
  const at::Tensor want = logits(loading, &bytes);
  loading.packs_later = true;
  EXPECT_TRUE(at::equal(logits(loading, &later_bytes), want));
  EXPECT_EQ(later_bytes, bytes);
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, distributed::ParallelConfig{}.axes());
    const run::SavedModel saved = run::load_model(folder / "hf", mesh, {}, at::kCPU, loading);
    EXPECT_LT(saved.packed->bytes(), bytes);
    while (saved.packed->load_next()) continue;
    EXPECT_EQ(saved.packed->bytes(), bytes);
  });
}

TEST_P(PackedWeights, ApproximateTheirWeights) {
  const run::Loading plain{.tokenizer = "none"};
  const at::Tensor want = logits(plain);
  const auto distance = [&](const run::Loading& loading, int64_t* bytes = nullptr) {
    return ((logits(loading, bytes) - want).norm() / want.norm()).item<double>();
  };
  const auto packed = [&](int64_t bits, at::ScalarType type = at::kFloat, bool floating = false) {
    const nn::WeightPacking packing{.bits = bits, .group = 32, .floating = floating};
    return run::Loading{.tokenizer = "none", .dtype = type, .packing = packing};
  };
  int64_t bytes32 = 0, bytes16 = 0, bytes8 = 0, bytes4 = 0;
  const double fp32 = distance(packed(0), &bytes32), bf16 = distance(packed(0, at::kBFloat16), &bytes16);
  const double eight = distance(packed(8), &bytes8), four = distance(packed(4), &bytes4);
  EXPECT_LT(fp32, 1e-4);
  // The step of 8 bits is 1/254 of the largest value of a group. The step of bf16 is 1/256 of the value itself. 4 bits
  // have a step 18 times as large as 8 bits.
  EXPECT_LT(bf16, 0.1);
  EXPECT_LT(eight, 0.1);
  EXPECT_LT(four, 1.0);
  EXPECT_LT(10 * fp32, eight);
  EXPECT_LT(2 * eight, four);
  EXPECT_EQ(bytes32, 2 * bytes16);
  EXPECT_GE(bytes8 * 64, bytes32 * 17);  // 32 values and a scale of 2 bytes replace 128 bytes,
  EXPECT_LE(bytes8 * 64, bytes32 * 18);  // and the last group has padding
  EXPECT_LT(bytes4, bytes8);
  // 8-bit floating point uses 4 bits for the exponent of each value. Its error is up to 1/16 of the value: like 4 bits
  // for values near the largest of their group, and less for small values.
  int64_t bytes_fp8 = 0;
  const double fp8 = distance(packed(8, at::kFloat, true), &bytes_fp8);
  EXPECT_LT(2 * eight, fp8);
  EXPECT_LT(fp8, four);
  EXPECT_LT(bytes_fp8, bytes8);  // one scale of 4 bytes per output, instead of 2 bytes per 32 inputs
}

// Dtypes without our own kernels use the same quantized values, and activations that are not rounded.
TEST_P(PackedWeights, SupportQuantizedValuesInEveryDtype) {
  const at::Tensor want = logits({.tokenizer = "none", .dtype = at::kDouble});
  double last = 0;
  for (const nn::WeightPacking& packing :
       {nn::WeightPacking{.bits = 8, .group = 32}, {.bits = 8, .floating = true}, {.bits = 4, .group = 32}}) {
    int64_t bytes = 0;
    const at::Tensor got = logits({.tokenizer = "none", .dtype = at::kDouble, .packing = packing}, &bytes);
    const double off = ((got - want).norm() / want.norm()).item<double>();
    EXPECT_GT(off, last);
    EXPECT_LT(off, 1);
    last = off;
    EXPECT_GT(bytes, 0);
    const at::Tensor half = logits({.tokenizer = "none", .dtype = at::kHalf, .packing = packing});
    EXPECT_LT(((half - got).norm() / want.norm()).item<double>(), 0.5);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PackedWeights, testing::Values("gpt2-tiny", "llama-tiny"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

TEST(PackedWeightsLayout, RefusesQuantizedValuesInGatheredLayers) {
  test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  Asked asked{folder / "hf"};
  asked.layout.tensor = {.size = 4, .mode = "2d"};
  asked.packing = nn::WeightPacking{.bits = 8};
  EXPECT_THAT(test::thrown_message([&] { generated(asked); }),
              testing::HasSubstr("cannot be multiplied in quantized form with this layout"));
  asked.layout = {};
  asked.packing->bits = 3;
  EXPECT_THAT(test::thrown_message([&] { generated(asked); }), testing::HasSubstr("8 or 4 bits: got 3"));
}

}  // namespace
}  // namespace colossal::infer::packed_weights_test
