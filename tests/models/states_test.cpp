// Models with several hidden states: what their stages pass on, the lifetime of each state, and refusals.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/models/registry.h"
#include "colossal/models/task_batch.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/input_store.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/serial_layers.h"
#include "support/thrown_message.h"

namespace colossal::models::states_test {
namespace {

using tensor::Dim;
using testing::ElementsAre;
using testing::HasSubstr;

State state(const std::string& name, std::vector<int64_t> sizes_of_a_row) {
  std::vector<Dim> dims(sizes_of_a_row.size() + 1, Dim::Other);
  dims[0] = Dim::Row;
  return {.name = name, .dims = dims, .sizes = [=](const nn::ForwardContext& step, int64_t) {
            std::vector<int64_t> sizes = sizes_of_a_row;
            sizes.insert(sizes.begin(), step.batch->rows());
            return sizes;
          }};
}

/// Returns a block that adds up the states that it reads, and writes the sum times `factor` to all states that it
/// writes.
Block sum(std::vector<int> reads, std::vector<int> writes, at::Tensor factor = at::ones({}, at::kDouble)) {
  return {reads, writes, [=](States& states, const nn::ForwardContext&) {
            at::Tensor all = at::zeros({2, 3}, at::kDouble);
            for (const int read : reads) all = all + states[read];
            for (const int write : writes) states[write] = (all * factor).sin() + write;
          }};
}

/// Returns a model with states a and b: a passes through all blocks, b is written by block 1 and read by block 4.
Model with_skip(const std::vector<at::Tensor>& factors = std::vector<at::Tensor>(5, at::ones({}, at::kDouble))) {
  Model model;
  model.states = {state("a", {3}), state("b", {3})};
  model.embed = {
      {0}, [](States& states, const tensor::Batch& batch, const nn::ForwardContext&) { states[0] = batch.at("x"); }};
  model.blocks = {sum({0}, {0}, factors[0]), sum({0}, {0, 1}, factors[1]), sum({0}, {0}, factors[2]),
                  sum({0}, {0}, factors[3]), sum({0, 1}, {0}, factors[4])};
  model.norm = [](const at::Tensor& x, const nn::ForwardContext&) { return x; };
  return model;
}

nn::ForwardContext step_of_x() {
  tensor::Batch batch;
  batch.add("x", {at::arange(6, at::kDouble).view({2, 3}), {Dim::Row, Dim::Other}});
  return nn::step_of(std::move(batch));
}

TEST(States, PassesStatesThatLaterStagesRead) {
  Model model = with_skip();
  EXPECT_THAT(state_transfers(model, {0, 1, 2, 3, 5}), ElementsAre(StateTransfer{0, 0, 1}, StateTransfer{0, 1, 2},
                                                                   StateTransfer{0, 2, 3}, StateTransfer{1, 1, 3}));
  EXPECT_THAT(state_transfers(model, {0, 5}), ElementsAre());
  // A state that is read on the way travels from reader to reader. A state that is overwritten without being read
  // starts there.
  model.blocks[2] = sum({0, 1}, {0});
  EXPECT_THAT(state_transfers(model, {0, 1, 2, 3, 5}),
              ElementsAre(StateTransfer{0, 0, 1}, StateTransfer{0, 1, 2}, StateTransfer{0, 2, 3},
                          StateTransfer{1, 1, 2}, StateTransfer{1, 2, 3}));
  model.blocks[2] = sum({0}, {0, 1});
  EXPECT_THAT(state_transfers(model, {0, 2, 3, 5}),
              ElementsAre(StateTransfer{0, 0, 1}, StateTransfer{0, 1, 2}, StateTransfer{1, 1, 2}));
  // A stage without blocks reads no state. A state that a loss reads is listed in the reads of the norm.
  model = with_skip();
  EXPECT_THAT(state_transfers(model, {0, 2, 2, 5}), ElementsAre(StateTransfer{0, 0, 2}, StateTransfer{1, 0, 2}));
  model.norm = sum({0, 1}, {0});
  EXPECT_THAT(state_transfers(model, {0, 2, 5, 5}), ElementsAre(StateTransfer{0, 0, 1}, StateTransfer{0, 1, 2},
                                                                StateTransfer{1, 0, 1}, StateTransfer{1, 1, 2}));
}

TEST(States, LivesFromFirstWriteToLastRead) {
  const Model model = with_skip();
  const nn::ForwardContext step = step_of_x();
  const auto first = [&](int64_t last) { return run_stage(model, {.last = last, .ends = false}, {}, step); };
  for (int64_t blocks = 0; blocks <= 5; ++blocks) {
    const States states = first(blocks);
    EXPECT_TRUE(states[0].defined()) << blocks;
    EXPECT_EQ(states[1].defined(), blocks >= 2 && blocks < 5) << blocks;
  }
  const at::Tensor whole = run_stage(model, {.last = 5}, {}, step)[0];
  EXPECT_TRUE(at::equal(run_stage(model, {.first = 3, .last = 5, .embeds = false}, first(3), step)[0], whole));
}

/// Counts the tensors that each call stores.
struct Counting final : nn::InputStore {
  struct Here final : nn::OffloadedInputs {
    explicit Here(std::vector<at::Tensor> inputs) : inputs(std::move(inputs)) {}
    std::vector<at::Tensor> take() override { return inputs; }
    std::vector<at::Tensor> inputs;
  };
  std::unique_ptr<nn::OffloadedInputs> offload(const std::vector<at::Tensor>& inputs) override {
    counts.push_back(inputs.size());
    return std::make_unique<Here>(inputs);
  }
  std::vector<size_t> counts;
};

TEST(States, KeepsOnlyReadStatesOfRecomputedBlocks) {
  std::vector<at::Tensor> want;
  for (const bool is_recomputed : {false, true}) {
    std::vector<at::Tensor> factors;
    for (int i = 0; i < 5; ++i) factors.push_back(at::full({}, 0.5 + 0.1 * i, at::kDouble).requires_grad_());
    const Model model = with_skip(factors);
    nn::ForwardContext step = step_of_x();
    step.training = true;
    const auto store = std::make_shared<Counting>();
    if (is_recomputed) step.recompute = nn::Recompute::Block, step.inputs = store;
    // the batch, and so the first input, has no gradient
    run_stage(model, {.last = 5}, {}, step)[0].sum().backward();
    for (size_t i = 0; i < factors.size(); ++i) {
      ASSERT_TRUE(factors[i].grad().defined()) << i;
      if (is_recomputed)
        EXPECT_TRUE(at::equal(factors[i].grad(), want[i])) << i;
      else
        want.push_back(factors[i].grad());
    }
    if (is_recomputed) EXPECT_THAT(store->counts, ElementsAre(1, 1, 1, 1, 2));
  }
}

std::string refusal_of(const Model& model) {
  return test::thrown_message([&] { check_states(model); });
}

// A pipeline sends no gradient of such a state, so one stage must not compute one either.
TEST(States, PassesNoGradientThroughStatesWithoutOne) {
  const std::vector<at::Tensor> factors = [] {
    std::vector<at::Tensor> list;
    for (int i = 0; i < 5; ++i) list.push_back(at::full({}, 0.5, at::kDouble).requires_grad_());
    return list;
  }();
  Model model = with_skip(factors);
  model.blocks[2] = sum({1}, {0}, factors[2]);  // from this block on, every value follows from b
  for (const bool has_gradient : {true, false}) {
    model.states[1].has_gradient = has_gradient;
    for (const at::Tensor& factor : factors) factor.mutable_grad() = at::Tensor();
    run_stage(model, {0, 5}, {}, step_of_x())[0].sum().backward();
    EXPECT_EQ(factors[1].grad().defined(), has_gradient);
    EXPECT_TRUE(factors[2].grad().defined());
  }
}

TEST(States, RefusesInvalidStatesByName) {
  EXPECT_EQ(refusal_of(with_skip()), "");
  Model model = with_skip();
  model.blocks[3] = sum({0, 2}, {0});
  EXPECT_THAT(refusal_of(model),
              HasSubstr("block 3 must read and write states of the model: got state 2, but there are `a`, `b`"));
  model = with_skip();
  model.blocks[0] = sum({0, 1}, {0});
  EXPECT_THAT(refusal_of(model), HasSubstr("block 0 must read states that something before it writes: got `b`, which "
                                           "neither the embedding nor a block before it writes"));
  model = with_skip();
  model.states[1].name = "a";
  EXPECT_THAT(refusal_of(model), HasSubstr("the names of a model's states must differ: got `a` twice"));
  model = with_skip();
  model.states[1].sizes = nullptr;
  EXPECT_THAT(refusal_of(model), HasSubstr("must have a name and a function of its sizes: got state 1 `b`"));
  model = with_skip();
  model.states[1].dims = {Dim::Token, Dim::Row};
  EXPECT_THAT(refusal_of(model), HasSubstr("state `b` must have rows in its first dimension"));
  model = with_skip();
  model.states[1].dtype = at::kLong;
  EXPECT_THAT(refusal_of(model), HasSubstr("state `b` must be of a floating type to have a gradient: got Long"));
  model.states[1].has_gradient = false;
  EXPECT_EQ(refusal_of(model), "");
}

TEST(States, NamesBlockThatLeavesStateUndefined) {
  Model model = with_skip();
  model.blocks[1] = {{0}, {0, 1}, [](States&, const nn::ForwardContext&) {}};
  EXPECT_THAT(test::thrown_message([&] { run_stage(model, {.last = 5}, {}, step_of_x()); }),
              HasSubstr("block 1 must write state `b`: got an undefined tensor"));
  // A block gets only the states that it declares as read.
  model.blocks[1] = sum({0}, {0, 1});
  model.blocks[2] = {{0}, {0}, [](States& states, const nn::ForwardContext&) { states[0] = states[1]; }};
  EXPECT_THAT(test::thrown_message([&] { run_stage(model, {.last = 5}, {}, step_of_x()); }),
              HasSubstr("block 2 must write state `a`: got an undefined tensor"));
}

TEST(States, RefusesTensorCallOfMultiStateBlock) {
  const Model model = with_skip();
  EXPECT_TRUE(at::equal(model.blocks[0](at::zeros({2, 3}, at::kDouble), {}), at::zeros({2, 3}, at::kDouble)));
  EXPECT_THAT(test::thrown_message([&] { model.blocks[4](at::zeros({2, 3}, at::kDouble), {}); }),
              HasSubstr("must read and write state 0 alone: got one of 2 and 1 states; call run_stage()"));
  EXPECT_THAT(test::thrown_message([&] { Embed({0, 1}, {})({}, {}); }), HasSubstr("got one of 2 states"));
}

/// A model that declares its state `pair` as [B, 4, 4] and makes it [B, 4, width].
template <int64_t width, bool in_double>
Model make_paired(const ModelShape& s, nn::Layers& layers) {
  Model model;
  model.states = {hidden_state(s.hidden, s.positions), state("pair", {4, 4})};
  if (in_double) model.states[1].dtype = at::kDouble;
  std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, 0.02);
  model.embed = [=](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return tokens->forward(batch.at("ids"), step);
  };
  model.blocks.push_back({{0}, {1}, [](States& states, const nn::ForwardContext&) {
                            states[1] = at::ones({states[0].size(0), 4, width}, states[0].options());
                          }});
  model.blocks.push_back({{0, 1}, {0}, [](States& states, const nn::ForwardContext&) { states[0] = states[0] * 2; }});
  model.norm = [](const at::Tensor& x, const nn::ForwardContext&) { return x; };
  model.head = layers.lm_head("head", s.hidden, s.vocabulary, {});
  return model;
}

/// Returns the error message of costs_of(), which every rank of a pipeline calls before anything is sent.
std::string refusal_of(Model (*make)(const ModelShape&, nn::Layers&)) {
  const ModelShape shape{
      .architecture = std::make_shared<const Architecture>(Architecture{.name = "paired", .make = make}),
      .vocabulary = 20,
      .hidden = 8,
      .layers = 2,
      .heads = 2,
      .kv_heads = 2,
      .head_dim = 4,
      .ffn = 16,
      .positions = 32};
  return test::thrown_message([&] { costs_of(shape, example_batch(shape, 1, 5)); });
}

TEST(States, NamesStatesOfWrongSize) {
  EXPECT_EQ(refusal_of(make_paired<4, false>), "");
  EXPECT_THAT(refusal_of(make_paired<3, false>),
              HasSubstr("after block 0 state `pair` must have the sizes that the model says, [1, 4, 4]: got [1, 4, 3]; "
                        "correct State::sizes or the block"));
  EXPECT_THAT(refusal_of(make_paired<4, true>),
              HasSubstr("after block 0 state `pair` must have the dtype that the model says, Double: got Float"));
}

}  // namespace
}  // namespace colossal::models::states_test
