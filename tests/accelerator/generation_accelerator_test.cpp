// Text generation on accelerators, which must give the same tokens as the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/engine.h"
#include "colossal/infer/generate.h"
#include "colossal/models/registry.h"
#include "support/accelerator.h"
#include "support/called_operators.h"
#include "support/parity.h"

namespace colossal::infer::generation_accelerator_test {
namespace {

class GenerationOnAccelerator : public test::AcceleratorTest {};

std::vector<int64_t> tokens(bool there, const models::ModelShape& shape, const distributed::ParallelConfig& layout,
                            const SamplingOptions& sampling) {
  std::vector<int64_t> result;
  comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, layout.axes());
    const at::Device device = there ? test::accelerator(world.local_rank()) : at::Device(at::kCPU);
    distributed::DistributedModel model(mesh, layout, shape, {at::kDouble, device, 5}, {});
    const auto found = generate(model, {.prompt = {3, 1, 4}, .options = {.max_tokens = 8, .sampling = sampling}});
    if (world.rank() == 0) result = found;
  });
  return result;
}

TEST_F(GenerationOnAccelerator, GivesTheTokensOfTheCpu) {
  distributed::ParallelConfig split;
  split.tensor.size = 2;
  for (const auto& shape : {test::tiny_gpt2(), test::tiny_llama()})
    for (const SamplingOptions& sampling : {SamplingOptions{}, SamplingOptions{.temperature = 1, .top_p = 0.9}}) {
      const auto want = tokens(false, shape, {}, sampling);
      EXPECT_EQ(want.size(), 8u);
      EXPECT_EQ(tokens(true, shape, {}, sampling), want) << shape.architecture->name;
      if (test::has_accelerators_for(2))
        EXPECT_EQ(tokens(true, shape, split, sampling), want) << shape.architecture->name << ", tensor 2";
    }
}

/// Returns the completions of an engine for prompts of several lengths, with a draft model of the same weights and a KV
/// cache of `cache_dtype`.
std::vector<std::vector<int64_t>> answers(bool there, const models::ModelShape& shape, int64_t draft_tokens,
                                          std::optional<at::ScalarType> cache_dtype) {
  std::vector<std::vector<int64_t>> all(4);
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, distributed::ParallelConfig{}.axes());
    const at::Device device = there ? test::accelerator(world.local_rank()) : at::Device(at::kCPU);
    distributed::DistributedModel model(mesh, {}, shape, {at::kDouble, device, 5}, {});
    Engine engine(model, {.cache_bytes = 1 << 20,
                          .cache_dtype = cache_dtype,
                          .block_tokens = 16,
                          .step_tokens = 6,
                          .draft_tokens = draft_tokens,
                          .draft = draft_tokens > 0 ? &model : nullptr});
    for (int64_t i = 0; i < 4; ++i) {
      Request request{.prompt = {3, 1, 4}, .options = {.max_tokens = 8}};
      request.prompt.resize(static_cast<size_t>(1 + 2 * i), 5);
      request.options.sampling = {.temperature = i % 2 ? 1.0 : 0.0, .seed = i};
      engine.add(request, [&own = all[i]](const Event& event) {
        if (event.is_answer()) own.push_back(event.token);
      });
    }
    while (engine.has_work()) engine.step();
  });
  return all;
}

TEST_F(GenerationOnAccelerator, GivesTheCompletionsOfTheCpuInAnEngine) {
  for (const auto& shape : {test::tiny_gpt2(), test::tiny_llama()})
    for (const int64_t draft_tokens : {0, 3})
      for (const std::optional<at::ScalarType> cache :
           {std::optional<at::ScalarType>(), std::optional(at::kChar), std::optional(at::kFloat8_e4m3fn)}) {
        const auto want = answers(false, shape, draft_tokens, cache);
        EXPECT_EQ(want[3].size(), 8U);
        EXPECT_EQ(answers(true, shape, draft_tokens, cache), want) << shape.architecture->name << " " << draft_tokens;
      }
}

TEST_F(GenerationOnAccelerator, CallsFlashAttentionByName) {
  models::ModelShape shape = test::tiny_llama();
  shape.head_dim = 8;  // a size that flash attention supports
  shape.layers = 2;
  const test::CalledOperators called;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, distributed::ParallelConfig{}.axes());
    distributed::DistributedModel model(mesh, {}, shape, {at::kBFloat16, test::accelerator(), 5}, {});
    EXPECT_EQ(generate(model, {.prompt = {3, 1, 4}, .options = {.max_tokens = 5}}).size(), 5u);
  });
  EXPECT_EQ(called("_flash_attention_forward"), 2 * 5) << "layers times tokens";
  EXPECT_EQ(called("scaled_dot_product_attention"), 0) << "which may choose what plans for every size";
}

}  // namespace
}  // namespace colossal::infer::generation_accelerator_test
