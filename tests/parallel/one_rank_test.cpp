// The layout of one rank: its layers equal the plain ones bit for bit, and send nothing.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::one_rank_test {
namespace {

constexpr int64_t kBatch = 2, kSequence = 6;

struct Inputs {
  explicit Inputs(const models::ModelShape& shape) {
    const auto longs = at::TensorOptions().dtype(at::kLong);
    auto generator = at::detail::createCPUGenerator(7);
    const models::Task task = shape.task();
    const bool has_images = task.reads == models::Reads::Images;
    const at::Tensor inputs = has_images
                                  ? at::randn({kBatch, task.channels, task.side, task.side}, generator, at::kFloat)
                                  : at::randint(0, shape.vocabulary, {kBatch, kSequence}, generator, longs);
    labels = task.classes > 0 ? at::randint(0, task.classes, {kBatch, 1}, generator, longs)
                              : at::randint(0, shape.vocabulary, {kBatch, kSequence}, generator, longs);
    step = nn::step_of(
        has_images ? data::image_batch(inputs, labels)
                   : data::text_batch(inputs, labels, at::arange(kSequence, longs).expand({kBatch, kSequence})));
    step.training = true;
    step.dropout_seed = 3;
  }
  at::Tensor labels;
  nn::ForwardContext step;
};

/// Returns loss, logits, correctly predicted labels, and the gradient of every parameter.
std::vector<at::Tensor> results(const models::ModelShape& shape, nn::Layers& make) {
  const models::Model model = models::make_model(shape, make);
  const Inputs in(shape);
  const models::Stage all{.last = static_cast<int64_t>(model.blocks.size())};
  const at::Tensor hidden = models::run_stage(model, all, {}, in.step)[0];
  const at::Tensor loss = model.head->loss_sum(hidden, in.labels, in.step);
  std::vector<at::Tensor> results{loss.detach(), model.head->logits(hidden, in.step).detach(),
                                  model.head->found(hidden, in.labels, in.step)};
  (loss / 7).backward();
  for (const nn::Parameter& p : make.parameters()) results.push_back(p.value.grad());
  return results;
}

TEST(OneRank, EqualsPlainLayersBitwise) {
  for (models::ModelShape shape : {tiny_gpt2(), tiny_llama(), tiny_vit(), tiny_bert(), tiny_bert("class")})
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(shape.architecture->name + " " + at::toString(type));
      shape.dropout = 0.2;
      comm::run_ranks(1, [&](comm::World& world) {
        comm::Mesh mesh(world, {{"data", 1}});
        nn::Parameters plain(mesh.coordinates(), {.dtype = type}), laid_out(mesh.coordinates(), {.dtype = type});
        nn::SerialLayers serial(plain);
        parallel::TensorLayers layers(laid_out, parallel::make_layout({}, mesh));
        const auto want = results(shape, serial), got = results(shape, layers);
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < want.size(); ++i) expect_equal(got[i], want[i], concat("result ", i));
        for (const nn::Parameter& p : plain) EXPECT_EQ(laid_out.at(p.name).spec.splits[0].axes, p.spec.splits[0].axes);
        EXPECT_EQ(world.traffic().total().calls, 0);
      });
    }
}

}  // namespace
}  // namespace colossal::test::one_rank_test
