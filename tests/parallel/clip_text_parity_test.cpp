// CLIP's text encoder on several ranks against one process in fp64: the projections of all tokens, which every rank has
// at the end.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <utility>

#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/families/clip_text.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"

namespace colossal::test::clip_text_parity_test {
namespace {

models::ModelShape tiny_clip() {
  models::ModelShape shape{.architecture = models::built_in().at("clip_text"),
                           .vocabulary = 41,
                           .hidden = 24,
                           .layers = 2,
                           .heads = 4,
                           .kv_heads = 4,
                           .head_dim = 6,
                           .ffn = 52,
                           .positions = 16,
                           .own = models::ClipTextSizes{.projection = 10, .end_id = 40}};
  shape.architecture->settle(shape);
  return shape;
}

/// Returns the projections [B, T, features] as rank 0 has them.
at::Tensor projections(const distributed::ParallelConfig& layout, int ranks) {
  at::Tensor result;
  comm::run_ranks(ranks, [&](comm::World& world) {
    comm::Mesh mesh(world, layout.axes());
    distributed::DistributedModel model(mesh, layout, tiny_clip(), {.dtype = at::kDouble, .seed = 5}, {});
    const at::Tensor ids = at::arange(32, at::kLong).view({4, 8});
    const at::Tensor positions = at::arange(8, at::kLong).expand({4, 8}).contiguous();
    const auto end = [](int, const models::States& states, const nn::ForwardContext&) { return states[1]; };
    const at::Tensor got = model.everywhere(nn::step_of(nn::token_batch(ids, positions)), end,
                                            at::empty({4, 8, 10}, at::TensorOptions(at::kDouble)));
    if (world.rank() == 0) result = got.clone();
  });
  return result;
}

TEST(ClipTextParity, EqualsSingleProcess) {
  const at::Tensor want = projections({}, 1);
  EXPECT_GT(want.abs().max().item<double>(), 1e-3);
  distributed::ParallelConfig tensor, pipeline;
  tensor.tensor.size = 2;
  pipeline.pipeline.size = 2;
  for (const auto& [name, layout] : {std::pair{"tensor", tensor}, {"pipeline", pipeline}}) {
    const at::Tensor got = projections(layout, 2);
    EXPECT_LT((got - want).abs().max().item<double>(), 1e-13) << name;
  }
}

}  // namespace
}  // namespace colossal::test::clip_text_parity_test
