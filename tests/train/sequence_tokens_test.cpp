// With sequence parallelism, a rank copies only its own tokens of a batch to its device.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/models/families/llama.h"
#include "colossal/nn/forward_context.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/runs.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::train::sequence_tokens_test {
namespace {

using Parallel = distributed::ParallelConfig;

constexpr int64_t kTokens = 14, kDividing = 8, kRows = 4;

run::Config config_of(const Parallel& parallel, const std::string& documents) {
  run::Config config = test::course_config();
  config.parallel = parallel;
  config.data.sequence = kTokens;
  config.data.documents = documents;
  config.training.batch_size = kRows;
  config.training.accumulate = 2;
  return config;
}

/// A short document and a long one in each row; joined documents hide the borders.
tensor::Batch batch(const std::string& documents) {
  const auto ids = at::TensorOptions().dtype(at::kLong);
  const at::Tensor at = at::arange(kTokens, ids).expand({kRows, kTokens}).contiguous();
  return data::text_batch(at.remainder(43), (at + 1).remainder(43), at,
                          documents == "separate" ? at.gt(6).to(at::kLong) : at::Tensor());
}

/// Returns the numbers of tokens per row that the embedding got in a step and an evaluation, for all fields that are
/// cut.
std::set<int64_t> tokens_seen(comm::World& world, const run::Config& config) {
  const auto engine = initialize(world, config, test::tiny_gpt2());
  std::set<int64_t> seen;
  models::Embed& embed = engine->model().embed;
  embed = [inner = embed, &seen](const tensor::Batch& given, const nn::ForwardContext& step) {
    for (const char* name : {"ids", "labels", "positions"}) seen.insert(given.at(name).size(1));
    seen.insert(step.positions.size(1));
    return inner(given, step);
  };
  const tensor::Batch whole = batch(config.data.documents);
  engine->zero_grad();
  engine->train_step(whole);
  const Evaluation evaluation = engine->evaluate(whole);
  EXPECT_EQ(evaluation.weight, kRows * kTokens) << "those of whole rows";
  return seen;
}

TEST(SequenceTokens, SkipTheDeviceIfOfOtherRanks) {
  struct Case {
    Parallel parallel;
    int64_t sharing;  ///< ranks of parallel.tensor, which share their tokens inside a layer
  };
  const std::vector<Case> cases{{{.sequence = {4, "ring"}}, 1},
                                {{.sequence = {2, "gather"}, .tensor = {.size = 2}}, 1},
                                {{.sequence = {3, "gather"}}, 1}};
  for (const std::string documents : {"joined", "separate"})
    for (const Case& c : cases) {
      const int64_t ranks = c.parallel.sequence.size;
      const auto cut = parallel::zigzag(kTokens, ranks);  // every cut gives these numbers of tokens
      comm::run_ranks(static_cast<int>(c.parallel.ranks()), [&](comm::World& world) {
        const int64_t rank = world.rank() / c.parallel.tensor.size;
        EXPECT_THAT(tokens_seen(world, config_of(c.parallel, documents)),
                    testing::ElementsAre(parallel::size_of(parallel::runs_of(cut, rank, ranks))))
            << c.parallel.sequence.mode << ", documents " << documents;
      });
    }
}

using Runs = std::vector<tensor::TokenRun>;

Runs as_runs(const std::vector<ops::PositionRun>& runs) {
  Runs all;
  for (const ops::PositionRun& run : runs) all.push_back({run.first, run.size});
  return all;
}

// The tokens that a rank reads of joined documents are those that the cut of the batch assigns to it.
TEST(SequenceTokens, FollowTheCutOfTheBatch) {
  struct Case {
    Parallel parallel;
    int64_t tokens, window;
  };
  const parallel::SequenceConfig ring{4, "ring"}, usp{.size = 4, .mode = "usp", .ulysses = 2}, pair{2, "ring"};
  for (const Case& c : std::vector<Case>{{{.sequence = ring}, kTokens, 0},
                                         {{.sequence = usp}, kTokens, 0},
                                         {{.sequence = pair, .tensor = {.size = 2, .sequence = true}}, kDividing, 0},
                                         {{.sequence = pair}, 128, 64}}) {
    SCOPED_TRACE(concat(c.parallel.sequence.mode, ", ", c.tokens, " tokens, window ", c.window));
    run::Config config = config_of(c.parallel, "joined");
    config.data.sequence = c.tokens;
    models::ModelShape shape = test::tiny_llama();
    shape.positions = 128;
    if (c.window > 0) shape.own = models::LlamaSizes{.window = c.window};
    const int64_t size = c.parallel.sequence.size, sharing = c.parallel.tensor.size;
    const auto cut = parallel::sequence_cut(c.parallel.sequence, c.tokens, {}, {{.window = c.window}}, sharing);
    if (c.window > 0) EXPECT_NE(cut.held, parallel::zigzag(c.tokens, size).held) << "a dealt cut";
    comm::run_ranks(static_cast<int>(c.parallel.ranks()), [&](comm::World& world) {
      const auto own = as_runs(parallel::runs_of(cut, world.rank() / sharing, size));
      EXPECT_EQ(initialize(world, config, shape)->tokens_read(), own) << world.rank();
    });
  }
}

TEST(SequenceTokens, LoadWhollyForSeparateDocuments) {
  comm::run_ranks(2, [](comm::World& world) {
    const auto engine = initialize(world, config_of({.sequence = {2, "ring"}}, "separate"), test::tiny_gpt2());
    EXPECT_EQ(engine->tokens_read(), Runs{});
  });
}

TEST(SequenceTokens, RefuseBatchesWithoutNeededTokens) {
  comm::run_ranks(2, [](comm::World& world) {
    const auto engine = initialize(world, config_of({.sequence = {2, "ring"}}, "joined"), test::tiny_gpt2());
    tensor::Batch b = batch("joined");
    b.wanted = {{1, 3}, {12, 2}};
    for (const auto& call :
         std::vector<std::function<void()>>{[&] { engine->train_step(b); }, [&] { engine->evaluate(b); }})
      EXPECT_THAT(test::thrown_message(call),
                  testing::StartsWith("[data] a partial batch must hold the tokens that this "
                                      "rank reads: got tokens 1-3, 12-13, needed tokens "));
    b.wanted = engine->tokens_read();
    EXPECT_EQ(test::thrown_message([&] { engine->evaluate(b); }), "");
  });
}

// Ranks of tensor.sequence get their tokens from the tokens of their group.
TEST(SequenceTokens, ReachAllRanksOfATensorGroup) {
  run::Config config = config_of({.sequence = {2, "ring"}, .tensor = {.size = 2, .sequence = true}}, "joined");
  config.data.sequence = kDividing;
  const tensor::Batch b =
      batch("joined").map([](const tensor::Field& field) { return field.tensor.narrow(1, 0, kDividing); });
  double want = 0;
  comm::run_ranks(1, [&](comm::World& world) {
    run::Config one = config;
    one.parallel = {};
    want = initialize(world, one, test::tiny_gpt2())->evaluate(b).sums.at(0);
  });
  comm::run_ranks(4, [&](comm::World& world) {
    const auto engine = initialize(world, config, test::tiny_gpt2());
    models::Embed& embed = engine->model().embed;
    embed = [inner = embed](const tensor::Batch& given, const nn::ForwardContext& step) {
      EXPECT_EQ(given.at("ids").size(1), kDividing / 2);
      return inner(given, step);
    };
    const double got = engine->evaluate(b).sums.at(0);
    test::expect_close(at::scalar_tensor(got, at::kDouble), at::scalar_tensor(want, at::kDouble),
                       64 * kRows * kDividing, "loss");
  });
}

}  // namespace
}  // namespace colossal::train::sequence_tokens_test
