// Vectors, sums over features and tokens, and halos equal those of one process in every mode, with their gradients.
// The traffic of each equals its formula.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/nn/embedding_noise.h"
#include "colossal/nn/features.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/neighbours.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/nn/token_runs.h"
#include "colossal/nn/vector.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::primitives_test {
namespace {

using comm::Phase;
using comm::PhaseScope;

constexpr int64_t kRows = 36, kTokens = 24, kHidden = 36, kInner = 20;

at::Tensor random(std::vector<int64_t> sizes, const std::string& name) {
  auto generator = at::detail::createCPUGenerator(derive_seed(3, name));
  return at::randn(sizes, generator, at::kDouble);
}

/// One layer for each primitive.
struct Parts {
  explicit Parts(nn::Layers& make)
      : features(make.features(kHidden, nn::Place::Outside)),
        inner(make.features(kInner, nn::Place::Inside)),
        runs(make.token_runs()),
        neighbours(make.neighbours({.before = 3, .after = 1})),
        taps(make.vector("taps", {kHidden, 5}, {.init = nn::Init::normal(1)})),
        scale(make.vector("scale", {kInner}, {.place = nn::Place::Inside, .init = nn::Init::normal(1)})),
        up(make.expand("up", kHidden, kInner, {.deviation = 0.3})),
        down(make.contract("down", kInner, kHidden, {.deviation = 0.3})),
        up_taps(make.expand("up_taps", kHidden, kInner, {.deviation = 0.3, .taps = {2, 2}})),
        down_taps(make.contract("down_taps", kInner, kHidden, {.bias = false, .deviation = 0.3, .taps = {2}})),
        up_plain(make.expand("up_plain", kHidden, kInner, {.bias = false})),
        up_plain_taps(make.expand("up_plain_taps", kHidden, kInner, {.bias = false, .taps = {3}})),
        noise(make, kHidden) {}
  std::shared_ptr<const nn::Features> features, inner;
  std::shared_ptr<const nn::TokenRuns> runs;
  std::shared_ptr<const nn::Neighbours> neighbours;
  std::unique_ptr<nn::Vector> taps, scale;
  std::unique_ptr<nn::Expand> up;
  std::unique_ptr<nn::Contract> down;
  std::unique_ptr<nn::Expand> up_taps;
  std::unique_ptr<nn::Contract> down_taps;
  std::unique_ptr<nn::Expand> up_plain, up_plain_taps;
  nn::EmbeddingNoise noise;
};

struct Primitive {
  const char* name;
  at::Tensor (*run)(const Parts&, const at::Tensor& x, const nn::ForwardContext& step);
};

const Primitive kPrimitives[] = {
    {"sum over features", [](const Parts& p, const at::Tensor& x,
                             const nn::ForwardContext&) { return x * p.features->sum(x.square().sum(-1, true)); }},
    {"sum over groups of whole features",
     [](const Parts& p, const at::Tensor& x, const nn::ForwardContext&) {
       return x * p.features->sum_of_groups(x.square(), 12);
     }},
    {"sum over groups that ranks cut",
     [](const Parts& p, const at::Tensor& x, const nn::ForwardContext&) {
       return x * p.features->sum_of_groups(x.square(), 1);
     }},
    {"sum over tokens", [](const Parts& p, const at::Tensor& x,
                           const nn::ForwardContext&) { return x * p.runs->sum(x.square().sum(1, true)); }},
    {"noise on embeddings",
     [](const Parts& p, const at::Tensor& x, const nn::ForwardContext& step) { return p.noise.forward(x, step) * x; }},
    {"halo",
     [](const Parts& p, const at::Tensor& x, const nn::ForwardContext& step) {
       const nn::Halo halo = p.neighbours->of(x, step);
       const at::Tensor taps = p.taps->value();
       at::Tensor y = x;
       for (int64_t k = 0; k < 5; ++k) y = y + halo.at(k - 3) * taps.select(1, k) * x;
       return y;
     }},
    {"vector and groups between expand and contract",
     [](const Parts& p, const at::Tensor& x, const nn::ForwardContext&) {
       const at::Tensor inside = p.up->forward(x).tensor * p.scale->value();
       return p.down->forward({inside * p.inner->sum_of_groups(at::sigmoid(inside), 2)});
     }},
    {"taps of an expand and a contract",
     [](const Parts& p, const at::Tensor& x, const nn::ForwardContext& step) {
       const nn::Inside inside = p.up_taps->forward_taps({x, x.sin(), x.cos(), x * 2});
       return p.down_taps->forward_taps({inside, inside.map(at::tanh, step)});
     }},
};

/// A layout of tensor and sequence parallelism.
struct Case {
  parallel::TensorConfig tensor;
  parallel::SequenceConfig sequence{};
  std::string name() const { return concat(name_of(tensor), " ", sequence.mode, " ", sequence.size); }
  int ranks() const { return static_cast<int>(tensor.size * sequence.size); }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const parallel::TensorConfig& tensor : tensor_modes())
    if (tensor.size <= 9) all.push_back({tensor});
  for (const parallel::SequenceConfig& sequence : sequence_modes()) all.push_back({{}, sequence});
  all.push_back({{.size = 2, .sequence = true}, {.size = 2, .mode = "ring"}});
  all.push_back({{.size = 4, .mode = "2d"}, {.size = 2, .mode = "ulysses"}});
  return all;
}

/// Two documents in each row, with other borders in each.
at::Tensor documents() {
  return (at::arange(kTokens) + at::arange(kRows).remainder(5).unsqueeze(1)).ge(7).to(at::kLong);
}

/// A step with documents, and with noise on the tokens of some.
nn::ForwardContext step_of_documents() {
  nn::ForwardContext step{.documents = documents(), .training = true, .dropout_seed = 7};
  tensor::Batch batch;
  batch.add(nn::kEmbeddingNoise, {documents().to(at::kDouble) * 0.5, {tensor::Dim::Row, tensor::Dim::Token}});
  step.batch = std::make_shared<const tensor::Batch>(std::move(batch));
  return step;
}

struct Rank {
  Rank(comm::World& world, const Case& c)
      : mesh(world, axes_of(c)),
        parameters(mesh.coordinates(), {.dtype = at::kDouble}),
        layout(parallel::with_sequence(parallel::make_layout(c.tensor, mesh), c.sequence)),
        make(parameters, layout),
        parts(make),
        step(layout.with_cut(step_of_documents(), kTokens)) {}
  static std::vector<comm::Mesh::Axis> axes_of(const Case& c) {
    std::vector<comm::Mesh::Axis> axes = parallel::sequence_axes(c.sequence);
    for (const comm::Mesh::Axis& axis : parallel::tensor_axes(c.tensor)) axes.push_back(axis);
    return axes;
  }
  at::Tensor own(const at::Tensor& whole) const { return parallel::part_of(layout, layout.outside, whole, step); }
  int64_t size(const std::vector<std::string>& axes) const { return mesh.coordinates().size(axes); }

  comm::Mesh mesh;
  nn::Parameters parameters;
  parallel::Layout layout;
  parallel::TensorLayers make;
  Parts parts;
  nn::ForwardContext step;
};

TEST(Primitives, EqualOneProcessInEveryMode) {
  const at::Tensor x = random({kRows, kTokens, kHidden}, "x"), dy = random({kRows, kTokens, kHidden}, "dy");
  nn::Parameters parameters({}, {.dtype = at::kDouble});
  nn::SerialLayers serial(parameters);
  const Parts whole(serial);
  std::vector<at::Tensor> want, want_dx;
  for (const Primitive& primitive : kPrimitives) {
    const at::Tensor leaf = x.clone().requires_grad_();
    want.push_back(primitive.run(whole, leaf, step_of_documents()));
    want.back().backward(dy);
    want_dx.push_back(leaf.grad());
  }
  for (const Case& c : cases())
    comm::run_ranks(c.ranks(), [&](comm::World& world) {
      Rank rank(world, c);
      for (size_t i = 0; i < std::size(kPrimitives); ++i) {
        const std::string what = concat(kPrimitives[i].name, ", ", c.name());
        const at::Tensor leaf = rank.own(x).clone().requires_grad_();
        const at::Tensor y = kPrimitives[i].run(rank.parts, leaf, rank.step);
        y.backward(rank.own(dy));
        expect_within(y, rank.own(want[i]), tolerance(want[i], kHidden * kTokens), what);
        expect_within(leaf.grad(), rank.own(want_dx[i]), tolerance(want_dx[i], kHidden * kTokens), what + ": dx");
      }
    });
}

/// Elements that a rank sends in a forward pass; backward sends as many.
double sent_by(const std::string& primitive, const Rank& rank) {
  const auto features = static_cast<double>(rank.size(rank.layout.outside.columns)),
             tokens = static_cast<double>(rank.size(rank.layout.outside.sequence)),
             rows = kRows / static_cast<double>(rank.size(rank.layout.outside.batch));
  const auto own_tokens = static_cast<double>(rank.own(at::zeros({kRows, kTokens, kHidden})).size(1));
  const double own_features = kHidden / features;
  const auto all_reduce = [](double ranks, double elements) { return 2 * (ranks - 1) / ranks * elements; };
  if (primitive == "sum over features" || primitive == "sum over groups that ranks cut")
    return all_reduce(features, rows * own_tokens);
  if (primitive == "sum over tokens") return all_reduce(tokens, rows * own_features);
  if (primitive != "halo" || tokens == 1) return 0;
  double edges = 0;  // largest number of edge tokens of a rank
  const nn::SequenceCut cut = rank.parts.runs->cut(rank.step, static_cast<int64_t>(own_tokens));
  for (const auto& held : cut.held) {
    double own = 0;
    for (const int64_t run : held)
      own += static_cast<double>(std::min<int64_t>(3, cut.lengths[run]) + std::min<int64_t>(1, cut.lengths[run]));
    edges = std::max(edges, own);
  }
  return (tokens - 1) * rows * edges * own_features;
}

/// Elements that a rank sends so that ranks which store shards of the taps have all of their features.
double gathered_taps(const Rank& rank) {
  const int64_t shards = rank.size(rank.layout.vector_shards), own = kHidden / rank.size(rank.layout.outside.columns);
  return static_cast<double>((shards - 1) * ((own + shards - 1) / shards) * 5);
}

TEST(Primitives, SendWhatTheirFormulasSay) {
  for (const Case& c : cases())
    comm::run_ranks(c.ranks(), [&](comm::World& world) {
      Rank rank(world, c);
      for (const Primitive& primitive : kPrimitives) {
        if (std::string(primitive.name).find("contract") != std::string::npos) continue;  // its products send too
        const at::Tensor leaf = rank.own(at::ones({kRows, kTokens, kHidden}, at::kDouble)).clone().requires_grad_();
        rank.parts.taps->parameter().value.requires_grad_(false);
        world.traffic().reset();
        at::Tensor y;
        {
          const PhaseScope phase(world.traffic(), Phase::Forward);
          y = primitive.run(rank.parts, leaf, rank.step);
        }
        const double vectors = std::string(primitive.name) == "halo" ? gathered_taps(rank) : 0;
        {
          const PhaseScope phase(world.traffic(), Phase::Backward);
          y.sum().backward();
        }
        const double want = sent_by(primitive.name, rank);
        EXPECT_DOUBLE_EQ(world.traffic().total("", "", Phase::Forward).elements, want + vectors)
            << primitive.name << ", " << c.name();
        EXPECT_DOUBLE_EQ(world.traffic().total("", "", Phase::Backward).elements, want)
            << primitive.name << ", " << c.name();
      }
    });
}

TEST(Primitives, SendAProductForEachTap) {
  for (const Case& c : cases())
    comm::run_ranks(c.ranks(), [&](comm::World& world) {
      Rank rank(world, c);
      const auto sent = [&](const auto& run) {
        const at::Tensor leaf = rank.own(at::ones({kRows, kTokens, kHidden}, at::kDouble)).clone().requires_grad_();
        world.traffic().reset();
        run(leaf).tensor.sum().backward();
        return world.traffic().total("", "").elements;
      };
      const double one = sent([&](const at::Tensor& x) { return rank.parts.up_plain->forward(x); }),
                   three = sent([&](const at::Tensor& x) { return rank.parts.up_plain_taps->forward_taps({x, x, x}); });
      EXPECT_DOUBLE_EQ(three, 3 * one) << c.name();
    });
}

TEST(EmbeddingNoise, HasNeftunesScaleInTrainingAlone) {
  nn::Parameters parameters({}, {});
  nn::SerialLayers serial(parameters);
  const nn::EmbeddingNoise noise(serial, kHidden);
  nn::ForwardContext step = step_of_documents();
  const at::Tensor zeros = at::zeros({kRows, kTokens, kHidden}), y = noise.forward(zeros, step);
  const at::Tensor scaled = y * std::sqrt(static_cast<double>(kHidden)) / 0.5, noisy = documents().eq(1);
  EXPECT_TRUE(at::equal(y.index({noisy.logical_not()}), zeros.index({noisy.logical_not()})));
  const at::Tensor drawn = scaled.index({noisy});
  const auto n = static_cast<double>(drawn.numel());
  EXPECT_LE(drawn.abs().max().item<double>(), 1 + 1e-6);
  EXPECT_NEAR(drawn.mean().item<double>(), 0, 5 / std::sqrt(3 * n)) << "five deviations of the mean";
  EXPECT_NEAR(drawn.square().mean().item<double>(), 1 / 3.0, 5 * std::sqrt(4 / 45.0 / n));
  step.first_row = 1;
  EXPECT_FALSE(at::equal(noise.forward(zeros, step), y));
  step.training = false;
  EXPECT_TRUE(at::equal(noise.forward(zeros, step), zeros));
}

TEST(Primitives, RefuseOtherNumbersOfTaps) {
  nn::Parameters parameters({}, {.dtype = at::kDouble});
  nn::SerialLayers serial(parameters);
  const Parts parts(serial);
  const at::Tensor x = at::ones({1, 2, kHidden}, at::kDouble);
  EXPECT_THAT(thrown_message([&] { parts.up_taps->forward_taps({x}); }),
              testing::HasSubstr("a layer of 4 taps must get a tensor for each: got 1"));
  EXPECT_THAT(thrown_message([&] { parts.up->forward_taps({x}); }),
              testing::HasSubstr("a layer must have LinearOptions::taps to sum over them"));
}

}  // namespace
}  // namespace colossal::test::primitives_test
