// CLIP's encoder of pictures on several ranks against one process in fp64: the embeddings, which every rank has at the
// end.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/config.h"
#include "colossal/models/image_encoder.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "support/thrown_message.h"

namespace colossal::test::clip_vision_parity_test {
namespace {

/// Returns the embeddings [B, 1, features] as rank 0 has them.
at::Tensor embeddings(const distributed::ParallelConfig& layout, int ranks) {
  using tensor::Dim;
  const models::ModelShape shape = models::built_in().resolve({.name = "clip-vision-tiny"});
  at::Tensor result;
  comm::run_ranks(ranks, [&](comm::World& world) {
    comm::Mesh mesh(world, layout.axes());
    distributed::DistributedModel model(mesh, layout, shape, {.dtype = at::kDouble, .seed = 5}, {});
    tensor::Batch batch;
    const at::Tensor pictures = at::arange(4 * 3 * 32 * 32).to(at::kDouble).mul(.37).sin().view({4, 3, 32, 32});
    batch.add(models::kPixelsToEncode, {pictures, {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
    const auto end = [](int, const models::States& states, const nn::ForwardContext&) { return states[0]; };
    const at::Tensor got =
        model.everywhere(nn::step_of(batch), end, at::empty({4, 1, 24}, at::TensorOptions(at::kDouble)));
    if (world.rank() == 0) result = got.clone();
  });
  return result;
}

TEST(ClipVisionParity, EqualsSingleProcess) {
  const at::Tensor want = embeddings({}, 1);
  EXPECT_GT(want.abs().max().item<double>(), 1e-3);
  distributed::ParallelConfig tensor, square;
  tensor.tensor.size = 2;
  square.tensor.size = 4, square.tensor.mode = "2d";
  for (const auto& [name, layout] : {std::pair{"tensor", tensor}, {"2d", square}}) {
    const at::Tensor got = embeddings(layout, static_cast<int>(layout.ranks()));
    EXPECT_LT((got - want).abs().max().item<double>(), 1e-13) << name;
  }
  distributed::ParallelConfig sequence;
  sequence.sequence.size = 2;
  EXPECT_THAT(thrown_message([&] { embeddings(sequence, 2); }), testing::HasSubstr("leave out parallel.sequence"));
}

}  // namespace
}  // namespace colossal::test::clip_vision_parity_test
