// Traffic of each rank in a linear layer, a norm, an embedding and a loss: in every mode it equals the published
// formula to the element, on every rank and in each phase. The positions of the blocks of a matrix are tested, too.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <array>

#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/modulation.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::tensor_traffic_test {
namespace {

using comm::Phase;
using comm::PhaseScope;
using parallel::Layout;
using parallel::TensorConfig;

constexpr double kIn = 36, kOut = 72, kSequence = 6, kVocabulary = 108;

struct Sent {
  double forward = 0, backward = 0;
  int64_t forward_calls = 0, backward_calls = 0;
};

/// One rank of a mode: its factory, and its traffic while a layer runs.
struct Rank {
  Rank(comm::World& world, const TensorConfig& config)
      : world(world),
        mesh(world, parallel::tensor_axes(config)),
        parameters(mesh.coordinates(), {.dtype = at::kDouble}),
        layout(parallel::make_layout(config, mesh)),
        make(parameters, layout),
        batch(parallel::batch_parts(config) * 2) {}

  at::Tensor hidden(double features) const {
    using tensor::Dim;
    const auto tokens = static_cast<int64_t>(kSequence);
    const auto sizes = parallel::local_sizes(layout, layout.outside, {batch, tokens, static_cast<int64_t>(features)},
                                             {Dim::Row, Dim::Token, Dim::Feature}, tokens);
    return at::ones(sizes, at::kDouble).requires_grad_();
  }
  template <class Layer>
  Sent run(const Layer& layer) {
    memory::ChunkStore store(parameters, mesh, {.capacity = 1 << 17});
    parallel::GradientReducer reducer(store, {.sums = at::kDouble});
    world.traffic().reset();
    at::Tensor y;
    {
      const PhaseScope phase(world.traffic(), Phase::Forward);
      y = layer();
    }
    {
      const PhaseScope phase(world.traffic(), Phase::Backward);
      reducer.begin(true);
      y.sum().backward();
      reducer.finish();
    }
    const auto f = world.traffic().total("", "", Phase::Forward), b = world.traffic().total("", "", Phase::Backward);
    return {f.elements, b.elements, f.calls, b.calls};
  }

  comm::World& world;
  comm::Mesh mesh;
  nn::Parameters parameters;
  Layout layout;
  parallel::TensorLayers make;
  int64_t batch;
};

/// q, depth, l of a config.
struct Grid {
  explicit Grid(const TensorConfig& c)
      : p(static_cast<double>(c.size)),
        d(c.mode == "2.5d" ? static_cast<double>(c.depth) : 1),
        q(std::round(std::sqrt(p / d))),
        l(std::round(std::cbrt(p))) {}
  double p, d, q, l;
};

class ModeTraffic : public testing::TestWithParam<TensorConfig> {
 protected:
  void on_ranks(const std::function<void(Rank&, const Grid&)>& body) const {
    comm::run_ranks(static_cast<int>(GetParam().size), [&](comm::World& world) {
      Rank rank(world, GetParam());
      body(rank, Grid(GetParam()));
    });
  }
};

// Elements of an expand and of the contract after it, forward and backward. The gradient of a replicated W (2.5D) is
// summed over depth in backward.
TEST_P(ModeTraffic, EqualsTheFormulaForLinearLayers) {
  on_ranks([&](Rank& rank, const Grid& g) {
    const auto up = rank.make.expand("up", kIn, kOut, {.bias = false});
    const auto down = rank.make.contract("down", kOut, kIn, {.bias = false});
    const Sent sent = rank.run([&] { return down->forward(up->forward(rank.hidden(kIn))); });
    const double tokens = static_cast<double>(rank.batch) * kSequence, wide = tokens * kOut, narrow = tokens * kIn,
                 weight = kIn * kOut;
    Sent want;
    if (GetParam().sequence) {
      // x and y, dx and dy, and x once more
      const double once = (g.p - 1) / g.p * narrow;
      const bool again = !GetParam().keep_gathered;
      want = {2 * once, (again ? 3 : 2) * once, 2, again ? 3 : 2};
    } else if (GetParam().mode == "1d") {
      want = {2 * (g.p - 1) / g.p * narrow, 2 * (g.p - 1) / g.p * narrow, 1, 1};
    } else if (GetParam().mode == "3d") {
      // x, W and y of each layer once
      const double unit = (g.l - 1) / (g.l * g.l * g.l), all = 2 * (narrow + weight + wide);
      want = {unit * all, unit * (all + (GetParam().keep_gathered ? 0 : narrow + wide + 2 * weight)), 6,
              GetParam().keep_gathered ? 6 : 10};
    } else {
      const double unit = (g.q - 1) / (g.q * g.q);
      const double each = narrow / g.d + weight + wide / g.d + weight;  // x and W of both
      const double over_depth = 2 * (g.d - 1) / g.d * 2 * weight / (g.q * g.q);
      const auto calls = static_cast<int64_t>(g.q > 1 ? g.q : 0);
      want = {unit * each, unit * 2 * each + over_depth, 4 * calls, 8 * calls + (g.d > 1 ? 1 : 0)};
    }
    EXPECT_DOUBLE_EQ(sent.forward, want.forward);
    EXPECT_DOUBLE_EQ(sent.backward, want.backward);
    EXPECT_EQ(sent.forward_calls, want.forward_calls);
    EXPECT_EQ(sent.backward_calls, want.backward_calls);
  });
}

// Statistics: 2 values per row in each direction over the ranks that split features. Weight and bias: kept in q shards
// (2D), summed over depth (2.5D), or copies whose gradients are summed over the l^2 ranks with other rows (3D).
TEST_P(ModeTraffic, EqualsTheFormulaForLayerNorm) {
  on_ranks([&](Rank& rank, const Grid& g) {
    const auto norm = rank.make.layer_norm("norm", kIn, {1e-5});
    const Sent sent = rank.run([&] { return norm->forward(rank.hidden(kIn)); });
    const double rows = static_cast<double>(rank.batch) * kSequence;
    Sent want;
    if (GetParam().sequence) {
      want.backward = 2 * (g.p - 1) / g.p * 2 * kIn;  // gradients of weight and bias, of which each rank has a part
      want.backward_calls = 1;
    } else if (GetParam().mode == "3d") {
      const double statistics = 2 * (g.l - 1) / g.l * 2 * rows / (g.l * g.l), n = g.l * g.l;
      want = {statistics, statistics + 2 * (n - 1) / n * 2 * kIn / g.l, 1, 2};
    } else if (GetParam().mode != "1d") {
      const double statistics = 2 * (g.q - 1) / g.q * 2 * rows / (g.d * g.q), vectors = (g.q - 1) / g.q * 2 * kIn / g.q;
      want = {statistics + vectors, statistics + vectors + 2 * (g.d - 1) / g.d * 2 * kIn / (g.q * g.q), 0, 0};
    }
    EXPECT_DOUBLE_EQ(sent.forward, want.forward);
    EXPECT_DOUBLE_EQ(sent.backward, want.backward);
  });
}

TEST_P(ModeTraffic, EqualsTheFormulaForTheEmbedding) {
  on_ranks([&](Rank& rank, const Grid& g) {
    const auto embedding = rank.make.embedding("embedding", kVocabulary, kIn, 1);
    const at::Tensor ids = at::zeros({rank.batch, static_cast<int64_t>(kSequence)}, at::kLong);
    const Sent sent = rank.run([&] { return embedding->forward(ids, {}); });
    const double hidden = static_cast<double>(rank.batch) * kSequence * kIn, table = kVocabulary * kIn;
    Sent want;
    if (GetParam().sequence) {
      want.forward = want.backward = (g.p - 1) / g.p * hidden;
    } else if (GetParam().mode == "1d") {
      want.forward = 2 * (g.p - 1) / g.p * hidden;
    } else if (GetParam().mode == "3d") {
      want.forward = want.backward = (g.l - 1) / (g.l * g.l * g.l) * (table + hidden);
    } else {
      want.forward = (g.q - 1) / g.q * hidden / (g.d * g.q);
      want.backward = want.forward + 2 * (g.d - 1) / g.d * table / (g.q * g.q);
    }
    EXPECT_DOUBLE_EQ(sent.forward, want.forward);
    EXPECT_DOUBLE_EQ(sent.backward, want.backward);
  });
}

// The head's products are those of a linear layer, all in forward. The loss adds 3 values per row and the sum of
// losses.
TEST_P(ModeTraffic, EqualsTheFormulaForTheLoss) {
  on_ranks([&](Rank& rank, const Grid& g) {
    const auto head = rank.make.lm_head("head", kIn, kVocabulary, {.deviation = 1});
    const at::Tensor labels = at::zeros({rank.batch, static_cast<int64_t>(kSequence)}, at::kLong);
    const Sent sent = rank.run([&] { return head->loss_sum(rank.hidden(kIn), labels, {}); });
    const double tokens = static_cast<double>(rank.batch) * kSequence, hidden = tokens * kIn,
                 weight = kVocabulary * kIn, logits = tokens * kVocabulary;
    const auto all_reduced = [](double n, double elements) { return 2 * (n - 1) / n * elements; };
    Sent want;
    if (GetParam().sequence) {
      want.forward = (g.p - 1) / g.p * hidden * (GetParam().keep_gathered ? 2 : 3) + all_reduced(g.p, 3 * tokens);
    } else if (GetParam().mode == "1d") {
      want.forward = all_reduced(g.p, hidden) + all_reduced(g.p, 3 * tokens);
    } else if (GetParam().mode == "3d") {
      const double again = GetParam().keep_gathered ? 0 : hidden + weight;
      want.forward = (g.l - 1) / (g.l * g.l * g.l) * (2 * (hidden + weight + logits) + again) +
                     all_reduced(g.l, 3 * tokens / (g.l * g.l)) + all_reduced(g.l * g.l, 1);
    } else {
      want.forward = 3 * (g.q - 1) / (g.q * g.q) * (hidden / g.d + weight) +
                     all_reduced(g.q, 3 * tokens / (g.d * g.q)) + all_reduced(g.q * g.d, 1);
      want.backward = all_reduced(g.d, weight / (g.q * g.q));
    }
    EXPECT_NEAR(sent.forward, want.forward, 1e-9 * want.forward);  // sums of thirds
    EXPECT_DOUBLE_EQ(sent.backward, want.backward);
  });
}

// Backward makes the products of a slice again and adds its backward products, as many as the loss sends in forward.
// Results of ranks that have other rows are gathered.
TEST_P(ModeTraffic, EqualsTheFormulaForScores) {
  for (const bool entropy : {false, true})
    on_ranks([&](Rank& rank, const Grid& g) {
      const auto head = rank.make.lm_head("head", kIn, kVocabulary, {.deviation = 1});
      const at::Tensor labels = at::zeros({rank.batch, static_cast<int64_t>(kSequence)}, at::kLong);
      const Sent sent = rank.run([&] {
        const ops::TokenScores scores = head->scores(rank.hidden(kIn), labels, {}, {.entropy = entropy});
        return entropy ? scores.log_probabilities + scores.entropies : scores.log_probabilities;
      });
      const double tokens = static_cast<double>(rank.batch) * kSequence, hidden = tokens * kIn,
                   weight = kVocabulary * kIn, logits = tokens * kVocabulary, results = entropy ? 2 : 1;
      const auto all_reduced = [](double n, double elements) { return 2 * (n - 1) / n * elements; };
      const auto sums = [&](double n, double rows) { return all_reduced(n, (2 + results) * rows); };
      Sent want;
      if (GetParam().sequence) {
        const double unit = (g.p - 1) / g.p;
        want = {unit * hidden + sums(g.p, tokens), unit * hidden * (GetParam().keep_gathered ? 2 : 3)};
      } else if (GetParam().mode == "1d") {
        want = {sums(g.p, tokens), all_reduced(g.p, hidden)};
      } else if (GetParam().mode == "3d") {
        const double n = g.l * g.l, unit = (g.l - 1) / (g.l * n),
                     again = GetParam().keep_gathered ? 0 : hidden + weight, once = hidden + weight + logits;
        want = {unit * once + sums(g.l, tokens / n) + (n - 1) / n * tokens * results, unit * (2 * once + again)};
      } else {
        const double n = g.q * g.d, once = (g.q - 1) / (g.q * g.q) * (hidden / g.d + weight);
        want = {once + sums(g.q, tokens / n) + (n - 1) / n * tokens * results,
                3 * once + all_reduced(g.d, weight / (g.q * g.q))};
      }
      EXPECT_NEAR(sent.forward, want.forward, 1e-9 * want.forward);  // sums of thirds
      EXPECT_NEAR(sent.backward, want.backward, 1e-9 * want.backward);
    });
}

// Sums over the ranks that split features, then the tokens of all ranks; weight and bias as in a norm.
TEST_P(ModeTraffic, EqualsTheFormulaForOutputs) {
  on_ranks([&](Rank& rank, const Grid& g) {
    constexpr int64_t kOutputs = 6;
    const auto outputs = rank.make.outputs("head.values", kIn, kOutputs, {});
    const Sent sent = rank.run([&] { return outputs->forward(rank.hidden(kIn), {}); });
    const double all = static_cast<double>(rank.batch) * kSequence * kOutputs;
    const auto all_reduced = [](double n, double elements) { return 2 * (n - 1) / n * elements; };
    Sent want;
    if (GetParam().sequence) {
      want = {all_reduced(g.p, all), all_reduced(g.p, kOutputs * (kIn + 1))};
    } else if (GetParam().mode == "3d") {
      const double n = g.l * g.l;
      want = {all_reduced(g.l, all / n) + (n - 1) / n * all, all_reduced(n, kOutputs * (kIn / g.l + 1))};
    } else if (GetParam().mode != "1d") {
      const double n = g.q * g.d, pieces = (g.q - 1) / g.q * kOutputs * (kIn / g.q + 1);
      want = {all_reduced(g.q, all / n) + (n - 1) / n * all + pieces,
              pieces + all_reduced(g.d, kOutputs / g.q * (kIn / g.q + 1))};
    }
    EXPECT_NEAR(sent.forward, want.forward, 1e-9 * want.forward);  // sums of thirds
    EXPECT_NEAR(sent.backward, want.backward, 1e-9 * want.backward);
  });
}

// A matrix that holds its own row-major indices, split as in the paper: in 3D rows i*l + j and columns k before an
// expand, rows i*l + k and columns j after it.
TEST_P(ModeTraffic, PutsBlocksWhereThePapersSay) {
  on_ranks([&](Rank& rank, const Grid& g) {
    const auto up = rank.make.expand("up", kIn, kIn, {.bias = false});
    nn::Parameter& w = *rank.parameters.begin();
    const at::NoGradGuard no_grad;
    w.value.copy_(local_part(at::eye(static_cast<int64_t>(kIn), at::kDouble), w.spec, rank.mesh.coordinates()));
    // Rows are tokens, concatenated rank by rank.
    const int64_t rows = rank.batch * rank.layout.mesh->coordinates().size(rank.layout.outside.sequence),
                  columns = static_cast<int64_t>(kIn);
    const at::Tensor whole = at::arange(rows * columns, at::kDouble).view({rows, columns});
    const auto block = [&](int64_t row, int64_t row_parts, int64_t column, int64_t column_parts) {
      return whole.narrow(0, row * (rows / row_parts), rows / row_parts)
          .narrow(1, column * (columns / column_parts), columns / column_parts);
    };
    const int64_t r = rank.world.rank(), q = static_cast<int64_t>(g.q), l = static_cast<int64_t>(g.l),
                  d = static_cast<int64_t>(g.d);
    at::Tensor x, want;
    if (GetParam().sequence) {
      x = block(r, GetParam().size, 0, 1);
      want = block(0, 1, r, GetParam().size);
    } else if (GetParam().mode == "1d") {
      x = whole;
      want = block(0, 1, r, GetParam().size);
    } else if (GetParam().mode == "3d") {
      const int64_t i = r % l, j = r / l % l, k = r / l / l;  // rank = i + l (j + l k)
      x = block(i * l + j, l * l, k, l);
      want = block(i * l + k, l * l, j, l);
    } else {
      const int64_t j = r % q, i = r / q % q, k = r / q / q;  // rank = j + q (i + q k)
      x = want = block(k * q + i, d * q, j, q);
    }
    expect_equal(up->forward(x.contiguous()).tensor, want.contiguous(), "block");
  });
}

// Each depth has its own part of the batch, so data that only depth 1 read must reach the weights of depth 0.
TEST(Depth, PassesGradientsToTheOtherDepths) {
  comm::run_ranks(8, [&](comm::World& world) {
    Rank rank(world, {.size = 8, .mode = "2.5d", .depth = 2});
    const auto up = rank.make.expand("up", kIn, kOut, {.bias = false});
    const at::Tensor x = rank.hidden(kIn).detach() * (rank.mesh.index("depth") == 1 ? 1 : 0);
    rank.run([&] { return up->forward(x).tensor; });
    EXPECT_GT((*rank.parameters.begin()).value.grad().abs().min().item<double>(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, ModeTraffic, testing::ValuesIn(tensor_modes()),
                         [](const auto& info) { return name_of(info.param); });

// Vectors of a condition of each row: 1D sends as many elements for any number of tokens.
TEST(ModulationTraffic, EqualsTheFormulaIn1d) {
  constexpr int64_t kVectors = 3;
  for (const bool splits_tokens : {false, true}) {
    const TensorConfig config{.size = 3, .mode = "1d", .sequence = splits_tokens};
    comm::run_ranks(3, [&](comm::World& world) {
      Rank rank(world, config);
      const auto modulation = rank.make.modulation("modulation", static_cast<int64_t>(kIn), kVectors);
      const at::Tensor condition = rank.hidden(kIn).select(1, 0);
      const Sent sent = rank.run([&] { return at::cat(modulation->forward(condition), 1); });
      const double narrow = static_cast<double>(rank.batch) * kIn, wide = narrow * kVectors;
      EXPECT_EQ(sent.forward, wide * 2 / 3);                                        // all_gather
      EXPECT_EQ(sent.backward, splits_tokens ? wide * 2 / 3 : 2 * narrow * 2 / 3);  // reduce_scatter or all_reduce
    });
  }
}

}  // namespace
}  // namespace colossal::test::tensor_traffic_test
