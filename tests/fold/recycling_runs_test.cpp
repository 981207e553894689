// Steps of runs that fold, in fp64: in every layout that they have, and against plain loops.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "colossal/data/folding/drawn_fold_samples.h"
#include "colossal/fold/recycling_rule.h"
#include "colossal/run/objectives/folding/folding_objective.h"
#include "fold/folding_runs.h"
#include "support/thrown_message.h"

namespace colossal::fold::recycling_runs_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kRows = 4, kResidues = 7;

void expect_near(const std::vector<double>& have, const std::vector<double>& want) {
  ASSERT_EQ(have.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(have[i], want[i], 1e-10 * (1 + std::abs(want[i]))) << i;
}

/// Adds waves to all parameters of this rank, because final layers begin at 0.
void move_weights(train::Engine& engine, double by = .2, double step = .7) {
  const at::NoGradGuard no_grad;
  int64_t count = 0;
  for (const nn::Parameter& p : engine.parameters())
    p.value.add_(at::arange(p.value.numel(), at::kDouble).mul(step).add(++count).sin().view(p.value.sizes()), by);
}

tensor::Batch drawn_rows(int64_t first = 0, int64_t rows = kRows) {
  const data::DrawnFoldSamples samples({.sizes = {.residues = kResidues, .has_alignments = false}});
  tensor::Batch batch = samples.make(rows);
  for (int64_t i = 0; i < rows; ++i) samples.fill(i, static_cast<uint64_t>(first + i), batch, i);
  return batch;
}

/// A pass without gradients may overwrite fields.
tensor::Batch copy_of(const tensor::Batch& batch) {
  return batch.map([](const tensor::Field& field) { return field.tensor.clone(); });
}

/// Runs `work` with an engine on one process, after its weights were moved.
void with_engine(const std::vector<std::string>& flags, const std::function<void(train::Engine&)>& work) {
  test::run_course(folding_run(flags), folding_program(), 0, [&](train::Engine& engine) {
    move_weights(engine);
    work(engine);
  });
}

std::vector<at::Tensor> gradients_of(train::Engine& engine) {
  std::vector<at::Tensor> gradients;
  for (const nn::Parameter& p : engine.parameters()) gradients.push_back(p.value.grad().clone());
  return gradients;
}

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& one : tensors) all.push_back(one.flatten());
  return at::cat(all);
}

TEST(RecyclingRuns, GiveTheSameInEveryLayout) {
  const run::Program program = folding_program();
  for (const char* limit : {"0", "0.5"}) {
    const std::string clip = concat("--folding.clip_sample=", limit);
    const std::vector<double> want = test::run_course(folding_run({clip}), program);
    ASSERT_EQ(want.size(), 3 * 4 + 3u);
    EXPECT_GT(want[1], 0);
    std::vector<std::vector<std::string>> layouts{{"--parallel.data=2"},
                                                  {"--parallel.data=2", "--parallel.zero=3"},
                                                  {"--training.accumulate=2", "--memory.recompute=block"}};
    if (limit == std::string("0"))
      layouts.push_back({"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"});
    for (const std::vector<std::string>& layout : layouts) {
      SCOPED_TRACE(layout.back() + " " + clip);
      expect_near(test::run_course(folding_run(test::joined(layout, {clip})), program), want);
    }
  }
}

TEST(RecyclingRuns, DrawPassesBySeedAndStep) {
  std::set<int64_t> seen;
  int64_t changes = 0;
  for (int64_t step = 0; step < 40; ++step) {
    seen.insert(passes_of_step(1, step, 4));
    changes += passes_of_step(1, step, 4) != passes_of_step(2, step, 4);
    EXPECT_EQ(passes_of_step(7, step, 1), 1);
  }
  EXPECT_EQ(seen, (std::set<int64_t>{1, 2, 3, 4}));
  EXPECT_GT(changes, 10);
}

TEST(RecyclingRuns, TakeNoGradientThroughEarlierPasses) {
  // Of pairs alone: the structure module stops gradients between its layers, which differences do not.
  std::vector<std::string> flags{"--folding.weights.distogram=1"};
  for (const char* other : {"fape", "side_chains", "chi", "plddt", "pae", "violation"})
    flags.push_back(concat("--folding.weights.", other, "=0"));
  with_engine(flags, [](train::Engine& engine) {
    const tensor::Batch given = drawn_rows(), second = after_passes(engine, given, 2);
    EXPECT_FALSE(second.at("recycled_pair").requires_grad());
    EXPECT_GT(second.at("recycled_pair").abs().max().item<double>(), .1);
    engine.zero_grad();
    engine.train_step(second);
    const at::Tensor gradient = flat(gradients_of(engine));
    const double step = 1e-5;
    std::vector<at::Tensor> direction;
    int64_t count = 0;
    for (const nn::Parameter& p : engine.parameters())
      direction.push_back(at::arange(p.value.numel(), at::kDouble).mul(1.3).add(++count).sin());
    const auto slope = [&](const std::function<tensor::Batch()>& batch) {
      std::vector<double> losses;
      for (const double by : {step, -2 * step, step}) {  // the last one restores the weights
        move_weights(engine, by, 1.3);
        losses.push_back(engine.evaluate(batch()).loss());
      }
      return (losses[0] - losses[1]) / (2 * step);
    };
    const double want = gradient.dot(flat(direction)).item<double>();
    EXPECT_NEAR(slope([&] { return copy_of(second); }), want, 1e-5 * std::abs(want));
    EXPECT_GT(std::abs(slope([&] { return after_passes(engine, given, 2); }) - want), 1e-3 * std::abs(want));
  });
}

TEST(RecyclingRuns, LeaveOutPaddedResidues) {
  with_engine({}, [](train::Engine& engine) {
    const tensor::Batch rows = drawn_rows();
    tensor::Batch padded = data::make_folding_rows(kRows, {.residues = kResidues + 3, .has_alignments = false});
    for (int64_t i = 0; i < kRows; ++i) data::fill_folding_row(rows.part(i, 1), padded, i);
    for (const char* name : {"aatype", "residue_index", "all_atom_positions", "all_atom_mask"})
      padded.at(name).narrow(1, kResidues, 3).fill_(1);  // seq_mask alone says that they are no residues
    std::vector<at::Tensor> gradients;
    std::vector<double> losses;
    for (const tensor::Batch& batch : {rows, padded}) {
      engine.zero_grad();
      losses.push_back(engine.train_step(after_passes(engine, batch, 3)));
      gradients.push_back(flat(gradients_of(engine)));
    }
    EXPECT_NEAR(losses[0], losses[1], 1e-11 * losses[0]);
    EXPECT_LT((gradients[0] - gradients[1]).abs().max().item<double>(), 1e-10);
  });
}

TEST(RecyclingRuns, ClipTheGradientOfEachChain) {
  with_engine({"--folding.clip_sample=1"}, [](train::Engine& engine) {
    const tensor::Batch batch = after_passes(engine, drawn_rows(), 1);
    std::vector<at::Tensor> single;
    std::vector<double> norms;
    double loss = 0;
    for (int64_t i = 0; i < kRows; ++i) {
      engine.zero_grad();
      loss += engine.train_step(batch.part(i, 1)) / kRows;
      single.push_back(flat(gradients_of(engine)));
      norms.push_back(single.back().norm().item<double>());
    }
    const double limit =
        (*std::min_element(norms.begin(), norms.end()) + *std::max_element(norms.begin(), norms.end())) / 2;
    at::Tensor want = at::zeros_like(single.front());
    for (int64_t i = 0; i < kRows; ++i)
      want += single[static_cast<size_t>(i)] * std::min(1., limit / norms[static_cast<size_t>(i)]) / kRows;
    engine.zero_grad();
    const auto loss_of = [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
      return engine.objective().loss(model, end, step);
    };
    EXPECT_NEAR(engine.train_rows(batch, kRows, loss_of, limit), loss, 1e-11 * loss);
    EXPECT_LT((flat(gradients_of(engine)) - want).abs().max().item<double>(), 1e-11);
  });
}

TEST(RecyclingRuns, RefuseRowsThatCannotBeClipped) {
  const auto message = [](const std::vector<std::string>& flags, double limit) {
    return test::thrown_message([&] {
      test::run_course(folding_run(flags), folding_program(), 0,
                       [&](train::Engine& engine) { engine.train_rows(drawn_rows(), kRows, {}, limit); });
    });
  };
  EXPECT_THAT(message({}, 0), HasSubstr("[training] the limit of the gradient of a row must be above 0: got 0"));
  EXPECT_THAT(message({"--parallel.pipeline.size=2"}, 1),
              HasSubstr("[training] the gradient of a row must be whole on each rank: got 2 ranks along \"pipeline\"; "
                        "use data parallelism, ZeRO and tiers, or training.clip"));
}

TEST(RecyclingRuns, NameTheFirstOperatorThatIsNotFinite) {
  const run::Config config = folding_run({"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"});
  const auto fail = [&] {
    test::run_course(config, folding_program(), 1, [&](train::Engine& engine) {
      const at::NoGradGuard no_grad;
      for (const nn::Parameter& p : engine.parameters())
        if (p.name.starts_with("blocks.1.to_single")) p.value.fill_(std::nan(""));
      make_recycling_rule(engine, config, {})->step(engine, [] { return drawn_rows(); });
    });
  };
  const std::string message = test::thrown_message(fail);
  EXPECT_THAT(message, HasSubstr("the numbers of a step must be finite: got others from aten::"));
  EXPECT_THAT(message, HasSubstr(" in blocks.1, in pass 1 of "));
  EXPECT_THAT(message, HasSubstr(" of step 2; lower optimizer.learning_rate"));
}

TEST(RecyclingRuns, RefuseToClipChainsWithPipelines) {
  const auto start = [] {
    test::run_course(folding_run({"--folding.clip_sample=0.1", "--parallel.pipeline.size=2"}), folding_program());
  };
  EXPECT_THAT(test::thrown_message(start),
              HasSubstr("[folding] clip_sample needs parallel.pipeline.size = 1, because each rank must have the whole "
                        "gradient of a chain: got 2; set training.clip in place of folding.clip_sample"));
}

}  // namespace
}  // namespace colossal::fold::recycling_runs_test
