// Blocks that are recomputed together: gradients of every tree equal those without, each value is reported once, and
// the inputs that are stored are those of the segments.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "colossal/models/registry.h"
#include "colossal/models/task_batch.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/input_store.h"
#include "colossal/nn/serial_layers.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::models::segments_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Returns trees over six blocks: lists of blocks, runs of them, and segments within segments.
std::vector<Segments> trees() {
  return {
      {{.first = 0, .last = 1}, {.first = 3, .last = 4}},
      {{.first = 0, .last = 6}},
      {{.first = 1, .last = 5, .parts = {{.first = 1, .last = 3}}}},
      {{.first = 0, .last = 3, .parts = {{.first = 0, .last = 2, .parts = {{.first = 0, .last = 1}}}}},
       {.first = 3, .last = 6, .parts = {{.first = 3, .last = 4}, {.first = 4, .last = 5}}}},
      // Every block is reached from the first one: five segments within each other.
      {{.first = 0,
        .last = 5,
        .parts = {{.first = 0,
                   .last = 4,
                   .parts = {{.first = 0, .last = 3, .parts = {{.first = 0, .last = 2, .parts = {{0, 1}}}}}}}}}},
  };
}

/// A model in one process, with a batch.
class Pass {
 public:
  explicit Pass(const ModelShape& shape)
      : parameters_({}, {.dtype = at::kDouble, .seed = 5}),
        layers_(parameters_),
        model_(make_model(shape, layers_)),
        batch_(test::random_batch({.shape = shape}, 0)) {}

  Model& model() { return model_; }

  /// Returns the loss and the gradient of each parameter.
  std::map<std::string, at::Tensor> gradients(const Segments& segments, std::shared_ptr<nn::InputStore> inputs = {}) {
    nn::ForwardContext step = nn::step_of(batch_);
    step.training = true;
    step.dropout_seed = 7;
    step.segments = std::make_shared<const Segments>(segments);
    step.inputs = std::move(inputs);
    const States end = run_stage(model_, {.last = static_cast<int64_t>(model_.blocks.size())}, {}, step);
    const at::Tensor loss = loss_sum(model_, end[0], step);
    loss.backward();
    std::map<std::string, at::Tensor> all{{"loss", loss.detach()}};
    for (nn::Parameter& parameter : parameters_) {
      const at::Tensor& gradient = parameter.value.grad();  // none for an expert that no token chose
      all[parameter.name] = gradient.defined() ? gradient.clone() : at::zeros_like(parameter.value).detach();
      parameter.value.mutable_grad() = at::Tensor();
    }
    return all;
  }

 private:
  nn::Parameters parameters_;
  nn::SerialLayers layers_;
  Model model_;
  tensor::Batch batch_;
};

ModelShape with_dropout(ModelShape shape) {
  shape.layers = 6;
  shape.dropout = 0.2;
  return shape;
}

TEST(Segments, ChangeNoBitOfGradients) {
  for (const ModelShape& shape : {with_dropout(test::tiny_gpt2()), with_dropout(test::tiny_llama())}) {
    Pass pass(shape);
    const auto want = pass.gradients({});
    for (const Segments& tree : trees()) {
      const auto got = pass.gradients(tree);
      ASSERT_EQ(got.size(), want.size());
      for (const auto& [name, gradient] : want) EXPECT_TRUE(at::equal(got.at(name), gradient)) << name;
    }
  }
}

// The two states of an encoder and a decoder, and a relative bias that all blocks of each share. The parts of its
// gradient are added in another order, one part for each block.
TEST(Segments, PassSeveralStates) {
  ModelShape shape = test::tiny_t5();
  Pass pass(shape);
  const auto blocks = static_cast<int64_t>(pass.model().blocks.size());
  const auto want = pass.gradients({});
  for (const Segments& tree :
       {Segments{{.first = 0, .last = 1}, {.first = 1, .last = blocks}},
        Segments{{.first = 0, .last = blocks, .parts = {{.first = 0, .last = 3, .parts = {{0, 2}}}}}},
        Segments{{.first = 1, .last = 4, .parts = {{.first = 1, .last = 2}, {.first = 2, .last = 3}}}}}) {
    const auto got = pass.gradients(tree);
    for (const auto& [name, gradient] : want) test::expect_close(got.at(name), gradient, blocks, name);
  }
}

// The mixtures of a block choose once; later passes use the same experts.
TEST(Segments, KeepChoicesOfMixtures) {
  Pass pass(test::tiny_deepseek());
  const auto blocks = static_cast<int64_t>(pass.model().blocks.size());
  const auto want = pass.gradients({});
  const auto got = pass.gradients({{.first = 0, .last = blocks, .parts = {{.first = 0, .last = blocks - 1}}}});
  for (const auto& [name, gradient] : want) EXPECT_TRUE(at::equal(got.at(name), gradient)) << name;
}

/// Counts the tensors that each call stores.
struct CountingInputs final : nn::InputStore {
  struct Here final : nn::OffloadedInputs {
    explicit Here(std::vector<at::Tensor> inputs) : inputs(std::move(inputs)) {}
    std::vector<at::Tensor> take() override { return std::move(inputs); }
    std::vector<at::Tensor> inputs;
  };
  std::unique_ptr<nn::OffloadedInputs> offload(const std::vector<at::Tensor>& inputs) override {
    counts.push_back(inputs.size());
    return std::make_unique<Here>(inputs);
  }
  std::vector<size_t> counts;
};

TEST(Segments, StoreOnlyInputsOnHost) {
  Pass pass(with_dropout(test::tiny_gpt2()));
  const auto want = pass.gradients({});
  const auto store = std::make_shared<CountingInputs>();
  const auto got = pass.gradients({{.first = 0, .last = 2},
                                   {.first = 2, .last = 4, .is_on_host = true},
                                   {.first = 4, .last = 6, .is_on_host = true, .parts = {{4, 5}}}},
                                  store);
  EXPECT_THAT(store->counts, ElementsAre(1, 1));
  for (const auto& [name, gradient] : want) EXPECT_TRUE(at::equal(got.at(name), gradient)) << name;
}

/// Counts the calls of each block of a model whose blocks multiply by a weight.
TEST(Segments, RunBlocksAsOftenAsTheirTreeSays) {
  std::vector<int> calls(4), first_calls(4);
  const at::Tensor weight = at::ones({}, at::kDouble).requires_grad_();
  Model model;
  model.embed = [](const tensor::Batch& batch, const nn::ForwardContext&) { return batch.at("x"); };
  for (int i = 0; i < 4; ++i)
    model.blocks.push_back([&, i](const at::Tensor& x, const nn::ForwardContext& step) {
      ++calls[i];
      if (!step.is_recomputed) ++first_calls[i];
      return (x * weight).sin();
    });
  model.norm = [](const at::Tensor& x, const nn::ForwardContext&) { return x; };
  tensor::Batch batch;
  batch.add("x", {at::ones({2, 3}, at::kDouble).requires_grad_(), {tensor::Dim::Row, tensor::Dim::Other}});
  nn::ForwardContext step = nn::step_of(std::move(batch));
  step.training = true;
  step.segments =
      std::make_shared<const Segments>(Segments{{.first = 0, .last = 3, .parts = {{.first = 0, .last = 2}}}});
  const at::Tensor end = run_stage(model, {.last = 4}, {}, step)[0];
  EXPECT_THAT(calls, ElementsAre(1, 1, 1, 1));
  end.sum().backward();
  EXPECT_THAT(calls, ElementsAre(3, 3, 2, 1));
  EXPECT_THAT(first_calls, ElementsAre(1, 1, 1, 1)) << "only a first pass reports";
  step.training = false;
  run_stage(model, {.last = 4}, {}, step)[0].sum().backward();
  EXPECT_THAT(calls, ElementsAre(4, 4, 3, 2)) << "outside of training nothing is recomputed";
}

TEST(Segments, RefuseToCrossStages) {
  Pass pass(with_dropout(test::tiny_gpt2()));
  nn::ForwardContext step = nn::step_of(test::random_batch({.shape = test::tiny_gpt2()}, 0));
  step.training = true;
  step.segments = std::make_shared<const Segments>(Segments{{.first = 1, .last = 4}});
  EXPECT_THAT(test::thrown_message([&] { run_stage(pass.model(), {.last = 3, .ends = false}, {}, step); }),
              HasSubstr("must lie within one stage: got blocks [1, 4) and a stage of blocks [0, 3)"));
}

}  // namespace
}  // namespace colossal::models::segments_test
