// What of a batch goes to the device of a rank: its own tokens alone, where a sequence is dealt out.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "colossal/comm/run_ranks.h"
#include "colossal/parallel/sequence/runs.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"
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

/// A short document and a long one in each row.
data::Batch batch() {
  const auto ids = at::TensorOptions().dtype(at::kLong);
  const at::Tensor at = at::arange(kTokens, ids).expand({kRows, kTokens}).contiguous();
  return {at.remainder(43), (at + 1).remainder(43), at, at.gt(6).to(at::kLong)};
}

/// The numbers of tokens a row that the embedding was given in a step and an evaluation: of ids and of positions.
std::set<int64_t> tokens_seen(comm::World& world, const run::Config& config) {
  const auto engine = initialize(world, config, test::tiny_gpt2());
  std::set<int64_t> seen;
  models::Block& embed = engine->model().embed;
  embed = [inner = embed, &seen](const at::Tensor& ids, const nn::Step& step) {
    seen.insert({ids.size(1), step.positions.size(1)});
    return inner(ids, step);
  };
  engine->zero_grad();
  engine->train_step(batch());
  const Evaluation evaluation = engine->evaluate(batch());
  EXPECT_EQ(evaluation.labels, kRows * kTokens) << "those of whole rows";
  return seen;
}

TEST(SequenceTokens, OfOtherRanksDoNotGoToTheDevice) {
  struct Case {
    Parallel parallel;
    int64_t sharing;  ///< ranks of parallel.tensor, which have one another's tokens inside
  };
  const std::vector<Case> cases{{{.sequence = {4, "ring"}}, 1},
                                {{.sequence = {2, "gather"}, .tensor = {.size = 2}}, 1},
                                {{.sequence = {3, "gather"}}, 1}};
  for (const std::string documents : {"joined", "separate"})
    for (const Case& c : cases) {
      const int64_t ranks = c.parallel.sequence.size;
      const auto cut = parallel::zigzag(kTokens, ranks);  // whose numbers of tokens every cut has
      comm::run_ranks(static_cast<int>(c.parallel.ranks()), [&](comm::World& world) {
        const int64_t rank = world.rank() / c.parallel.tensor.size;
        EXPECT_THAT(tokens_seen(world, config_of(c.parallel, documents)),
                    testing::ElementsAre(parallel::size_of(parallel::runs_of(cut, rank, ranks))))
            << c.parallel.sequence.mode << ", documents " << documents;
      });
    }
}

// Ranks of tensor.sequence take their tokens of what their group was given.
TEST(SequenceTokens, OfAGroupThatSharesMatricesGoToAllOfIt) {
  run::Config config = config_of({.sequence = {2, "ring"}, .tensor = {.size = 2, .sequence = true}}, "joined");
  config.data.sequence = kDividing;
  const data::Batch b = batch();
  const auto narrow = [](const at::Tensor& t) { return t.narrow(1, 0, kDividing); };
  double want = 0;
  comm::run_ranks(1, [&](comm::World& world) {
    run::Config one = config;
    one.parallel = {};
    want = initialize(world, one, test::tiny_gpt2())
               ->evaluate({narrow(b.inputs), narrow(b.labels), narrow(b.positions), {}})
               .loss_sum;
  });
  comm::run_ranks(4, [&](comm::World& world) {
    const auto engine = initialize(world, config, test::tiny_gpt2());
    models::Block& embed = engine->model().embed;
    embed = [inner = embed](const at::Tensor& ids, const nn::Step& step) {
      EXPECT_EQ(ids.size(1), kDividing / 2);
      return inner(ids, step);
    };
    const double got = engine->evaluate({narrow(b.inputs), narrow(b.labels), narrow(b.positions), {}}).loss_sum;
    test::expect_close(at::scalar_tensor(got, at::kDouble), at::scalar_tensor(want, at::kDouble),
                       64 * kRows * kDividing, "loss");
  });
}

}  // namespace
}  // namespace colossal::train::sequence_tokens_test
