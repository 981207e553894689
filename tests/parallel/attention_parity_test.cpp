// Attention in every tensor mode against one process, for all features that depend on a rank's heads: the slopes of
// ALiBi, norms of heads, and heads that are padded or share keys.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::attention_parity_test {
namespace {

using parallel::TensorConfig;

constexpr int64_t kHidden = 36, kSequence = 12;
// Rounding of products over the hidden features, of which four follow one another in each direction.
constexpr int64_t kTerms = 16 * kHidden;

at::Tensor values(std::vector<int64_t> sizes, const std::string& name) {
  auto generator = at::detail::createCPUGenerator(derive_seed(7, name));
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)) * 0.5;
}

struct Results {
  at::Tensor out, input_gradient;  // this rank's part
  std::map<std::string, at::Tensor> gradients;
};

template <class Part>
Results run_attention(nn::Layers& make, comm::Mesh& mesh, const nn::AttentionShape& shape,
                      const nn::AttentionOptions& options, int64_t batch, nn::ForwardContext step, const Part& part) {
  nn::Parameters& parameters = make.parameters();
  const auto qkv = make.heads("qkv", shape, {});
  const auto norm_q = make.head_norm("norm_q", shape.head_dim, {1e-6});
  const auto norm_k = make.head_norm("norm_k", shape.head_dim, {.epsilon = 1e-6, .unit_offset = true});
  const auto attention = make.attention("attention", shape, options);
  const auto out = make.from_heads("out", shape, {});
  {
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters)
      p.value.copy_(local_part(values(p.spec.shape, p.name), p.spec, mesh.coordinates()));
  }
  memory::ChunkStore store(parameters, mesh, {.capacity = 1 << 17});
  parallel::GradientReducer reducer(store, {.sums = at::kDouble});
  // Documents have other borders in each row, so a rank must use the documents of its own rows.
  const auto position = at::arange(kSequence, at::kLong), row = at::arange(batch, at::kLong).unsqueeze(1);
  step.documents = position.gt(row.remainder(kSequence - 2)).to(at::kLong);
  const at::Tensor x = part(values({batch, kSequence, kHidden}, "x")).requires_grad_();
  nn::Heads heads = qkv->forward(x, step);
  heads.q = norm_q->forward(heads.q), heads.k = norm_k->forward(heads.k);
  Results r;
  r.out = out->forward(attention->forward(heads, step), step);
  reducer.begin(true);
  r.out.backward(part(values({batch, kSequence, kHidden}, "gradient")));
  reducer.finish();
  r.input_gradient = x.grad();
  for (const nn::Parameter& p : parameters) r.gradients[p.name] = p.value.grad().clone();
  return r;
}

/// Checks attention under `config`; `cut` is parallel::Layout::cut.
void check(const TensorConfig& config, const nn::AttentionShape& shape, const nn::AttentionOptions& options,
           decltype(parallel::Layout::cut) cut = {}) {
  const int64_t batch = parallel::batch_parts(config) * 2;
  Results want;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
    nn::SerialLayers make(parameters);
    want = run_attention(make, mesh, shape, options, batch, {}, [](const at::Tensor& x) { return x; });
  });
  comm::run_ranks(static_cast<int>(config.size), [&](comm::World& world) {
    comm::Mesh mesh(world, parallel::tensor_axes(config));
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
    parallel::Layout layout = parallel::make_layout(config, mesh);
    layout.cut = cut;
    parallel::TensorLayers make(parameters, layout);
    const nn::ForwardContext step = layout.with_cut({}, kSequence);
    const auto part = [&](const at::Tensor& whole) {
      return parallel::part_of(layout, layout.outside, whole, step).contiguous();
    };
    const Results got = run_attention(make, mesh, shape, options, batch, step, part);
    expect_close(got.out, part(want.out), kTerms, "output");
    expect_close(got.input_gradient, part(want.input_gradient), kTerms, "input gradient");
    for (const nn::Parameter& p : parameters)
      expect_close(got.gradients.at(p.name), local_part(want.gradients.at(p.name), p.spec, mesh.coordinates()),
                   kTerms * batch * kSequence, "gradient of " + p.name);
  });
}

class AttentionParity : public testing::TestWithParam<TensorConfig> {
 protected:
  void check_options(const nn::AttentionShape& shape) const {
    for (const nn::AttentionOptions& options :
         std::vector<nn::AttentionOptions>{{.alibi = true, .alibi_scale = 0.5},
                                           {.causal = false, .window = 3, .alibi = true, .soft_cap = 2, .scale = 0.7}})
      EXPECT_NO_THROW(check(GetParam(), shape, options));
  }
};

// Includes heads that share keys and heads that are padded.
TEST_P(AttentionParity, GivesHeadsTheSlopesOfTheirLogicalIndex) {
  check_options({.hidden = kHidden, .heads = 6, .kv_heads = 6, .head_dim = 3});
  check_options({.hidden = kHidden, .heads = 6, .kv_heads = 1, .head_dim = 3});
  check_options({.hidden = kHidden, .heads = 6, .kv_heads = 2, .head_dim = 3});
  check_options({.hidden = kHidden, .heads = 5, .kv_heads = 5, .head_dim = 4});
}

/// Returns 12 tokens in 2 N runs; the runs at both ends of the sequence are on the same rank, and runs of the first
/// half are longer.
nn::SequenceCut zigzag(int64_t ranks) {
  nn::SequenceCut cut{.held = std::vector<std::vector<int64_t>>(ranks)};
  const int64_t of_two = kSequence / ranks, longer = of_two / 2 + 1;
  for (int64_t run = 0; run < 2 * ranks; ++run) {
    cut.lengths.push_back(run < ranks ? longer : of_two - longer);
    cut.held[std::min(run, 2 * ranks - 1 - run)].push_back(run);
  }
  return cut;
}

// Ranks hold runs of both ends outside, of unequal lengths, and the whole sequence inside. Causal attention in any
// other order than the order of the sequence gives another result.
TEST(SequenceCut, ComputesAttentionInTheOrderOfTheSequence) {
  const nn::AttentionShape shape{.hidden = kHidden, .heads = 6, .kv_heads = 6, .head_dim = 3};
  for (const int64_t ranks : {2, 4})
    EXPECT_NO_THROW(
        check({.size = ranks, .sequence = true}, shape, {.alibi = true}, [=](auto...) { return zigzag(ranks); }))
        << ranks << " ranks";
}

TEST(SequenceCut, RefusesUnequalSharesIfTokensAreGathered) {
  const nn::AttentionShape shape{.hidden = kHidden, .heads = 6, .kv_heads = 6, .head_dim = 3};
  const auto message = [&](const nn::SequenceCut& cut) {
    return thrown_message([&] { check({.size = 2, .sequence = true}, shape, {}, [=](auto...) { return cut; }); });
  };
  EXPECT_THAT(message({.lengths = {7, 5}, .held = {{0}, {1}}}),
              testing::HasSubstr("[parallel] ranks whose tokens are gathered must hold the same number of tokens: got "
                                 "7 and 5; split the sequence so that their runs have the same total"));
  EXPECT_THAT(
      message({.lengths = {6, 3, 3}, .held = {{0}, {1}, {2}}}),
      testing::HasSubstr("[parallel] the cut of a step must be for the 2 ranks that split the sequence: got one "
                         "for 3"));
}

// Two neighbours of four hold unequal shares of the gathered tokens, the other two do not. No rank continues alone.
TEST(SequenceCut, RefusesUnequalSharesOfSomeRanksOnAllRanks) {
  std::vector<std::string> said(4);
  comm::run_ranks(4, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::sequence("outer", 2), comm::Mesh::sequence("inner", 2)});
    parallel::Layout layout = parallel::make_layout({}, mesh);
    layout.outside.sequence = {"outer", "inner"};
    layout.inside.sequence = {"outer"};
    layout.cut = [](auto...) { return nn::SequenceCut{.lengths = {4, 2, 3, 3}, .held = {{0}, {1}, {2}, {3}}}; };
    said[world.rank()] = thrown_message([&] { layout.with_cut({}, kSequence); });
  });
  EXPECT_THAT(said, testing::Each(testing::HasSubstr("must hold the same number of tokens: got 4 and 2")));
}

// Layers that gather nothing accept unequal shares; logits gather all tokens.
TEST(SequenceCut, RefusesUnequalSharesOfLogitsBeforeSending) {
  comm::run_ranks(2, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::sequence("sequence", 2)});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
    parallel::Layout layout = parallel::make_layout({}, mesh);
    layout.outside.sequence = layout.inside.sequence = {"sequence"};
    layout.cut = [](auto...) { return nn::SequenceCut{.lengths = {7, 5}, .held = {{0}, {1}}}; };
    const auto head = parallel::TensorLayers(parameters, layout).lm_head("head", kHidden, 5, {});
    const nn::ForwardContext step = layout.with_cut({}, kSequence);
    const at::Tensor own = at::ones({2, world.rank() == 0 ? 7 : 5, kHidden}, at::kDouble);
    EXPECT_THAT(thrown_message([&] { head->logits(own, step); }),
                testing::HasSubstr("must hold the same number of tokens"));
    EXPECT_EQ(world.traffic().total().calls, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, AttentionParity, testing::ValuesIn(tensor_modes()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace colossal::test::attention_parity_test
