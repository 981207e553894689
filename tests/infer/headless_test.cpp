// A model without a head cannot generate text and has no perplexity. The error names it, and is raised before any
// communication.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/engine.h"
#include "colossal/infer/perplexity.h"
#include "colossal/models/registry.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::infer::headless_test {
namespace {

models::Model make_headless(const models::ModelShape& shape, nn::Layers& layers) {
  models::Model model = test::tiny_llama().architecture->make(shape, layers);
  model.head = nullptr;
  return model;
}

TEST(HeadlessModel, RefusesToComputeLogits) {
  comm::run_ranks(2, [](comm::World& world) {
    models::ModelShape shape = test::tiny_llama();
    shape.architecture =
        std::make_shared<models::Architecture>(models::Architecture{.name = "headless", .make = make_headless});
    distributed::ParallelConfig layout;
    layout.tensor.size = 2;
    comm::Mesh mesh(world, layout.axes());
    distributed::DistributedModel model(mesh, layout, shape, {}, {});
    const auto sent = [&] { return world.traffic().total().calls; };
    const int64_t before = sent();
    const auto refused = [](const auto& work) {
      EXPECT_THAT(test::thrown_message(work),
                  testing::HasSubstr("[model] headless has no head, which losses of labels"));
    };
    refused([&] { Engine(model, {}); });
    refused([&] { Engine(model, {.alone = true}); });
    refused([&] { likelihood(model, {{1, 2, 3}}, {}); });
    const std::unique_ptr<nn::AttentionCache> cache = model.make_cache(4);
    const nn::ForwardContext step =
        nn::step_of(nn::token_batch(at::ones({1, 2}, at::kLong), at::arange(2).unsqueeze(0)));
    nn::ForwardContext decoding = step;
    decoding.parts.set(nn::Decoding{cache.get()});
    refused([&] { model.next_logits(decoding); });
    EXPECT_EQ(sent(), before);
  });
}

}  // namespace
}  // namespace colossal::infer::headless_test
