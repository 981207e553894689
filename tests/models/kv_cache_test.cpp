// Decoding with a cache equals recomputing the whole sequence, and sequences packed into one row equal each sequence
// alone. Checked on one rank and in every tensor mode.
#include "colossal/nn/kv_cache.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::models::kv_cache_test {
namespace {

using Lengths = std::vector<int64_t>;

/// A model with random weights over the ranks of a mesh, and the rows of tokens that it reads.
struct Asked {
  Asked(comm::World& world, const ModelShape& shape, const parallel::TensorConfig& tensor, int64_t rows_a_part,
        int64_t tokens)
      : shape(shape),
        config{.tensor = tensor},
        mesh(world, config.axes()),
        model(mesh, config, shape, {at::kDouble, at::kCPU, 5}, {}),
        rows(rows_a_part * model.model().batch_parts),
        ids((at::arange(rows * tokens, at::kLong) * 7).remainder(shape.vocabulary).view({rows, tokens})) {
    std::vector<at::Tensor> weights;
    for (nn::Parameter& p : model.parameters()) weights.push_back(p.value);
    const int64_t length = shape.positions > 0 ? std::min(tokens, shape.positions) : tokens;
    const int64_t longest_sum =
        std::max({shape.hidden, shape.ffn, shape.heads * shape.head_dim, shape.head_dim, length});
    limit = 4 * std::numeric_limits<double>::epsilon() * std::sqrt(static_cast<double>(longest_sum)) *
            test::sensitivity([&] { return alone(0, length); }, weights);
  }

  /// Returns the whole logits [rows, S, V].
  at::Tensor logits(const at::Tensor& inputs, const nn::ForwardContext& step) {
    const auto head = [&](int, const States& end, const nn::ForwardContext& s) {
      return model.model().head->logits(end[0], s);
    };
    return model.forward({nn::step_of(nn::token_batch(inputs, step.positions), step)}, head).front();
  }
  /// Returns the logits of tokens [from, to) of the rows, without a cache.
  at::Tensor alone(int64_t from, int64_t to) {
    return logits(ids.slice(1, from, to), {.positions = at::arange(to - from, at::kLong).expand({rows, -1})});
  }
  void expect_close(const at::Tensor& got, const at::Tensor& want, const std::string& what) const {
    test::expect_within(got, want, limit, what);
  }

  ModelShape shape;
  distributed::ParallelConfig config;
  comm::Mesh mesh;
  distributed::DistributedModel model;
  int64_t rows;
  at::Tensor ids;
  double limit = 0;  // of differences by another order of the sums: in products, and over the keys of attention
};

class KvCache : public testing::TestWithParam<parallel::TensorConfig> {
 protected:
  void on_ranks(int64_t rows_a_part, int64_t tokens, const std::function<void(Asked&)>& work) const {
    for (const ModelShape& shape : {test::tiny_gpt2(), test::tiny_llama(), test::tiny_deepseek()})
      comm::run_ranks(static_cast<int>(GetParam().size), [&](comm::World& world) {
        const at::NoGradGuard no_grad;
        Asked asked(world, shape, GetParam(), rows_a_part, tokens);
        work(asked);
      });
  }
};

TEST_P(KvCache, EqualsFullRecomputation) {
  on_ranks(2, 12, [](Asked& a) {
    const at::Tensor positions = at::arange(12, at::kLong).expand({a.rows, 12});
    nn::KvCache cache(12);
    // The first step has 5 tokens, each later step one.
    for (int64_t from = 0, to = 5; from < 12; from = to, ++to) {
      const nn::ForwardContext step{.positions = positions.slice(1, from, to), .parts = {nn::Decoding{&cache}}};
      a.expect_close(a.logits(a.ids.slice(1, from, to), step).select(1, -1), a.alone(0, to).select(1, -1),
                     concat("logits at ", to));
      EXPECT_EQ(cache.lengths(), Lengths{to});
    }
  });
}

at::Tensor positions_of(const Lengths& starts, const Lengths& lengths) {
  std::vector<at::Tensor> runs;
  for (size_t i = 0; i < lengths.size(); ++i) runs.push_back(at::arange(starts[i], starts[i] + lengths[i], at::kLong));
  return at::cat(runs);
}

TEST_P(KvCache, MatchesSequencesComputedAlone) {
  on_ranks(1, 24, [](Asked& a) {
    for (const Lengths& lengths : {Lengths{3, 9, 12}, Lengths{12, 12}, Lengths{1, 14, 0, 9}}) {
      const at::Tensor positions = positions_of(Lengths(lengths.size()), lengths).expand({a.rows, -1});
      const at::Tensor packed = a.logits(a.ids, {.positions = positions, .parts = {nn::Sequences{lengths}}});
      int64_t start = 0;
      for (const int64_t length : lengths) {
        if (length > 0)
          a.expect_close(packed.narrow(1, start, length), a.alone(start, start + length),
                         concat("sequence of ", length));
        start += length;
      }
    }
  });
}

TEST_P(KvCache, DecodesUnequalSequencesTogether) {
  on_ranks(1, 36, [](Asked& a) {
    // Three sequences of up to 12 tokens: first the prompts, then one token of each, then tokens of some of them only.
    const Lengths first{0, 12, 24};
    Lengths held{0, 0, 0};
    nn::KvCache cache(12);
    for (const Lengths& added :
         {Lengths{5, 9, 2}, Lengths{1, 1, 1}, Lengths{1, 0, 3}, Lengths{2, 1, 0}, Lengths{0, 0, 1}, Lengths{1, 1, 1}}) {
      std::vector<at::Tensor> inputs;
      for (int i = 0; i < 3; ++i) inputs.push_back(a.ids.narrow(1, first[i] + held[i], added[i]));
      const nn::ForwardContext step{.positions = positions_of(held, added).expand({a.rows, -1}),
                                    .parts = {nn::Sequences{added}, nn::Decoding{&cache}}};
      const at::Tensor got = a.logits(at::cat(inputs, 1), step);
      int64_t start = 0;
      for (int i = 0; i < 3; ++i) {
        held[i] += added[i];
        if (added[i] > 0)
          a.expect_close(got.narrow(1, start, added[i]),
                         a.alone(first[i], first[i] + held[i]).slice(1, held[i] - added[i]),
                         concat("sequence ", i, " at ", held[i]));
        start += added[i];
      }
      EXPECT_EQ(cache.lengths(), held);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Serial, KvCache, testing::Values(parallel::TensorConfig{}));
/// Returns the modes in which a model can decode: all without tensor.sequence (DistributedModel::decoding_model).
std::vector<parallel::TensorConfig> decoding_modes() {
  std::vector<parallel::TensorConfig> modes = test::tensor_modes();
  std::erase_if(modes, [](const parallel::TensorConfig& c) { return c.sequence; });
  return modes;
}
INSTANTIATE_TEST_SUITE_P(Modes, KvCache, testing::ValuesIn(decoding_modes()),
                         [](const auto& info) { return test::name_of(info.param); });

TEST(KvCacheLimit, RefusesTokensBeyondCapacity) {
  const auto tokens = [](int64_t rows, int64_t count) { return at::zeros({rows, count, 2, 8}); };
  nn::KvCache cache(4);
  const auto refused = [&](int64_t rows, int64_t count, const nn::Sequences& sequences) {
    return test::thrown_message(
        [&] { cache.append(0, tokens(rows, count), tokens(rows, count), {.parts = {sequences}}); });
  };
  EXPECT_THAT(refused(1, 5, {}), testing::HasSubstr("the sequence must fit the cache: got 5 tokens, capacity 4"));
  EXPECT_THAT(refused(1, 5, {{2, 2}}), testing::HasSubstr("add up to its 5 tokens: got 4"));
  EXPECT_THAT(refused(1, 5, {{6, -1}}), testing::HasSubstr("must be 0 or more"));
  EXPECT_EQ(refused(1, 5, {{2, 3}}), "");
  cache.advance({.parts = {nn::Sequences{{2, 3}}}}, 5);
  EXPECT_THAT(refused(1, 2, {}), testing::HasSubstr("the cache's 2 sequences, some with 0 tokens: got 1"));
  EXPECT_THAT(refused(1, 2, {{0, 2}}), testing::HasSubstr("got 5 tokens, capacity 4"));
  EXPECT_THAT(refused(3, 2, {{1, 1}}), testing::HasSubstr("as many rows as the first, 1: got 3"));
}

}  // namespace
}  // namespace colossal::models::kv_cache_test
