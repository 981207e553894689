// Whole mixtures of experts under products of layouts against one process with the same micro-batches, in fp64:
// losses, all gradients, gradient norms, and weights after the steps. With collectives off each layout must fail.
#include <gtest/gtest.h>

#include <vector>

#include "colossal/models/families/gpt2.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/shape_parts.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::mixture_parity_test {
namespace {

/// A LLaMA with experts in all blocks but the first. Experts fill up, so tokens are dropped.
models::ModelShape tiny_mixture() {
  models::ModelShape shape = tiny_llama();
  models::LlamaSizes own;
  own.experts = {.count = 4, .used = 2, .ffn = 20, .shared = 1, .dense_first = 1};
  own.experts.capacity = 0.9;
  own.experts.balance_loss = 0.2;
  own.experts.z_loss = 0.1;
  shape.own = own;
  shape.set(models::MixtureSizes{own.experts.count});
  return shape;
}

/// A GPT-2 with experts that have biases, scored by sigmoids, in every second block.
models::ModelShape tiny_gpt2_mixture() {
  models::ModelShape shape = tiny_gpt2();
  models::Gpt2Sizes own;
  own.experts = {.count = 4, .used = 3, .every = 2, .score = "sigmoid"};
  shape.own = own;
  shape.set(models::MixtureSizes{own.experts.count});
  shape.dropout = 0.2;
  return shape;
}

struct Layout {
  const char* name;
  ParityCase c;
};

void PrintTo(const Layout& l, std::ostream* out) { *out << l.name; }

class MixtureParity : public testing::TestWithParam<Layout> {
 protected:
  static ParityCase with(ParityCase c, const models::ModelShape& shape) {
    c.shape = shape;
    c.batch = 8;
    c.clip = 0.5;
    c.accumulate = c.pipeline.size > 1 ? 1 : 2;
    return c;
  }
  static void both(ParityCase c) {
    EXPECT_NO_THROW(check_parity(c));
    c.collectives_off = true;
    c.steps = 1;
    EXPECT_THROW(check_parity(c), std::exception);
  }
};

TEST_P(MixtureParity, LlamaWithCapacityEqualsOneProcess) { both(with(GetParam().c, tiny_mixture())); }
TEST_P(MixtureParity, Gpt2WithBiasesEqualsOneProcess) {
  ParityCase c = with(GetParam().c, tiny_gpt2_mixture());
  c.steps = 4;
  EXPECT_NO_THROW(check_parity(c));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, MixtureParity,
    testing::Values(
        Layout{"data2", {.data = 2}}, Layout{"expert2", {.expert = 2}}, Layout{"expert4", {.expert = 4}},
        Layout{"expert4_node2", {.expert = 4, .expert_node = 2}},
        Layout{"expert2_tensor2_node2_block",
               {.expert = 2, .expert_node = 2, .tensor = {.size = 2}, .recompute = "block"}},
        Layout{"data2_expert2_zero3", {.data = 2, .expert = 2, .zero = 3}},
        Layout{"data2_expert2_zero2_block", {.data = 2, .expert = 2, .zero = 2, .recompute = "block"}},
        Layout{"expert2_zero1_selective", {.expert = 2, .zero = 1, .recompute = "selective"}},
        Layout{"expert2_tensor2", {.expert = 2, .tensor = {.size = 2}}}, Layout{"tensor3", {.tensor = {.size = 3}}},
        Layout{"expert2_tensor2_sequence_form", {.expert = 2, .tensor = {.size = 2, .sequence = true}}},
        Layout{"expert2_tensor2_split", {.expert = 2, .splits_experts = true, .tensor = {.size = 2}}},
        Layout{"tensor2_split_sequence_form_block",
               {.data = 2, .splits_experts = true, .tensor = {.size = 2, .sequence = true}, .recompute = "block"}},
        Layout{"tensor4_2d", {.expert = 2, .tensor = {.size = 4, .mode = "2d"}}},
        Layout{"tensor8_2_5d", {.tensor = {.size = 8, .mode = "2.5d", .depth = 2}}},
        Layout{"tensor8_3d", {.tensor = {.size = 8, .mode = "3d"}}},
        Layout{"ring2_expert2", {.expert = 2, .sequences = {.size = 2, .mode = "ring"}}},
        Layout{"ulysses2_zero3", {.expert = 2, .sequences = {.size = 2, .mode = "ulysses"}, .zero = 3}},
        Layout{"pipeline2_expert2", {.expert = 2, .pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 4}}},
        Layout{"pipeline2_zero_bubble",
               {.expert = 2, .pipeline = {.size = 2, .schedule = "zero-bubble-h1", .micro_batches = 4}, .zero = 1}},
        Layout{"pipeline2_chimera", {.expert = 2, .pipeline = {.size = 2, .schedule = "chimera", .micro_batches = 4}}}),
    testing::PrintToStringParamName());

// A row of three tokens on four ranks of a tensor group: some route no token.
TEST(MixtureWithFewTokens, EqualsOneProcess) {
  for (ParityCase c : {ParityCase{.tensor = {.size = 4}}, ParityCase{.expert = 2, .tensor = {.size = 4}},
                       ParityCase{.expert = 2, .tensor = {.size = 4}, .zero = 3, .recompute = "block"},
                       ParityCase{.expert = 2, .expert_node = 2, .tensor = {.size = 4}}}) {
    c.shape = tiny_mixture();
    c.batch = c.expert;
    c.sequence = 3;
    c.steps = 5;
    EXPECT_NO_THROW(check_parity(c)) << "expert " << c.expert << ", node " << c.expert_node << ", zero " << c.zero;
  }
}

}  // namespace
}  // namespace colossal::test::mixture_parity_test
