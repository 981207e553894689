// The model and the objective of examples/own_objective, which read numbers instead of text, give the results of one
// process under every layout. Step rules, which a run may have by the name of its objective.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/base/run_folder.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/report/metrics.h"
#include "colossal/run/program.h"
#include "colossal/schedule/make.h"
#include "colossal/train/trainer.h"
#include "network.h"
#include "regression.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::train::own_objective_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kSteps = 6;

run::Program own_program() {
  run::Program program;
  program.models.add(network());
  program.objectives.add(regression());
  return program;
}

run::Config config_of() {
  run::Config c;
  c.run.device = "cpu";
  c.run.matmul = "mkl";
  c.model.name = "network-tiny";
  c.model.layers = 8;
  c.data.path = test::source_dir() + "/examples/own_objective/throws.csv";
  c.data.held_out = 0.1;
  c.precision.mode = "fp64";
  c.training = {.steps = kSteps, .batch_size = 16, .evaluate_batches = 2};
  c.optimizer.learning_rate = 3e-3;
  c.optimizer.warmup_steps = 2;
  return c;
}

/// Returns the losses of all steps, then loss and weight of an evaluation.
std::vector<double> course(const run::Config& config) {
  std::vector<double> all;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    run::RunData data =
        run::open_data(config, own_program(), "", static_cast<int>(config.parallel.replica_of(world.rank())), at::kCPU);
    const auto engine = initialize(world, config, models_of(config, data), at::kCPU);
    std::vector<double> mine;
    for (int64_t step = 0; step < kSteps; ++step) mine.push_back(update(*engine, data.training->next()).loss);
    const Evaluation evaluation = engine->evaluate(data.held_out->next());
    mine.insert(mine.end(), {evaluation.loss(), evaluation.weight});
    if (world.rank() == 0) all = std::move(mine);
  });
  return all;
}

struct Layout {
  std::string name;
  std::function<void(run::Config&)> change;
};

std::vector<Layout> layouts() {
  std::vector<Layout> all{
      {"data2", [](run::Config& c) { c.parallel.data = 2; }},
      {"zero2", [](run::Config& c) { c.parallel.data = 2, c.parallel.zero = 2; }},
      {"zero3", [](run::Config& c) { c.parallel.data = 2, c.parallel.zero = 3; }},
      {"host", [](run::Config& c) { c.memory.host = int64_t{64} << 20; }},
      {"recompute", [](run::Config& c) { c.memory.recompute = "block"; }},
      {"accumulate", [](run::Config& c) { c.training.accumulate = 4; }},
      {"tensor2", [](run::Config& c) { c.parallel.tensor.size = 2; }},
      {"mode2d", [](run::Config& c) { c.parallel.tensor = {.size = 4, .mode = "2d"}; }},
      {"eight",
       [](run::Config& c) {
         c.parallel.data = c.parallel.tensor.size = c.parallel.pipeline.size = 2;
         c.parallel.zero = 1;
       }},
  };
  for (const schedule::Family& family : schedule::families())
    all.push_back({concat("pipeline of ", family.name), [name = std::string(family.name)](run::Config& c) {
                     c.parallel.pipeline = {.size = 2, .schedule = name, .micro_batches = 4};
                   }});
  return all;
}

TEST(OwnObjective, EqualsOneProcessUnderEveryLayout) {
  const std::vector<double> want = course(config_of());
  ASSERT_EQ(want.size(), kSteps + 2u);
  EXPECT_LT(want[kSteps - 1], 0.9 * want[0]) << "it learns";
  EXPECT_EQ(want.back(), 16) << "rows of a held-out batch";
  for (const Layout& layout : layouts()) {
    run::Config config = config_of();
    layout.change(config);
    const std::vector<double> got = course(config);
    ASSERT_EQ(got.size(), want.size()) << layout.name;
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10 * want[i]) << layout.name << " " << i;
  }
}

// The last held-out batch may have rows beyond the end of the epoch, which must not count.
TEST(OwnObjective, CountsEachHeldOutRowOnce) {
  run::Config config = config_of();
  config.data.held_out = 1.0 / 60;  // 10 of 600 rows
  EXPECT_EQ(course(config).back(), 10);
}

TEST(OwnObjective, RefusesMismatchedBatchesAndModels) {
  const run::Config config = config_of();
  comm::run_ranks(1, [&](comm::World& world) {
    run::RunData data = run::open_data(config, own_program(), "", 0, at::kCPU);
    const auto engine = initialize(world, config, models_of(config, data), at::kCPU);
    const tensor::Batch batch = data.training->next();
    tensor::Batch other;
    other.add("inputs", {at::zeros({16, 1, 3}, at::kDouble), batch.field("inputs").dims});
    for (const char* name : {"targets", "counts"}) other.add(name, batch.field(name));
    EXPECT_EQ(test::thrown_message([&] { engine->train_step(other); }),
              "[data] inputs must be [B, 1, 4]: got [16, 1, 3]");
    EXPECT_EQ(test::thrown_message([&] { engine->evaluate(other); }),
              "[data] inputs must be [B, 1, 4]: got [16, 1, 3]");
  });
  run::Config narrow = config;
  narrow.model.own = models::own_keys({"inputs=3"});
  EXPECT_THAT(test::thrown_message([&] { run::open_data(narrow, own_program(), "", 0, at::kCPU); }),
              HasSubstr("got 3 inputs, 1 outputs, 4 columns; set model.inputs = 4"));
}

class OwnObjectiveRun : public testing::Test {
 protected:
  run::Config make(const std::string& folder) const {
    run::Config c = config_of();
    c.run.folder = this->folder / folder;
    c.training.steps = 12;
    c.training.save_every = 4;
    c.training.evaluate_every = 5;
    return c;
  }
  /// Trains until `stop_after` steps (0 = to the end) on one rank.
  static std::vector<at::Tensor> train(const run::Config& c, TrainerOptions options, int64_t stop_after = 0) {
    std::vector<at::Tensor> parameters;
    comm::run_ranks(1, [&](comm::World& world) {
      int64_t steps = 0;
      const auto& rows = options.program.objectives.rows();
      if (std::none_of(rows.begin(), rows.end(), [](const auto& row) { return row.name == "regression"; }))
        options.program = own_program();
      options.stop_requested = [&] { return stop_after > 0 && ++steps >= stop_after; };
      Trainer trainer(world, c, options);
      EXPECT_EQ(trainer.run(), stop_after == 0);
      for (const nn::Parameter& p : trainer.engine().parameters()) parameters.push_back(p.value.detach().clone());
    });
    return parameters;
  }
  test::TemporaryFolder folder;
};

TEST_F(OwnObjectiveRun, WritesItsMetricWithUnitAndPlotAndItsTable) {
  const run::Config c = make("run");
  train(c, {});
  const auto steps = report::read_metrics(c.run.folder + "/metrics.jsonl");
  const std::vector<double> errors = steps.values("rmse", 0);
  EXPECT_GT(errors.at(4), 0);
  const std::string described = read_file(c.run.folder + "/metrics.json", 1 << 20);
  EXPECT_THAT(described, testing::AllOf(HasSubstr("rmse"), HasSubstr("Error on held-out rows"), HasSubstr("\"m\"")));
  EXPECT_THAT(read_file(c.run.folder + "/config.toml", 1 << 20),
              HasSubstr("[regression]\ntarget = \"distance\"\nunit = \"m\"\n"));
  EXPECT_FALSE(std::filesystem::exists(RunFolder(c.run.folder).builtin_text()));
}

/// Uses each batch twice, and remembers how many batches there were.
class TwoUpdates : public StepRule {
 public:
  StepOutcome step(Engine& engine, const NextBatch& next) override {
    const tensor::Batch batch = next();
    ++batches_;
    update(engine, batch);
    StepOutcome outcome = update(engine, batch);
    outcome.rows.push_back({.name = "batches", .value = batches_});
    return outcome;
  }
  nlohmann::json state() const override { return {{"batches", batches_}}; }
  void restore(const nlohmann::json& state) override { batches_ = state.at("batches").get<int64_t>(); }

 private:
  int64_t batches_ = 0;
};

TrainerOptions with_two_updates(Start start) {
  TrainerOptions options{.start = start, .program = own_program()};
  options.program.objectives.at("regression").step_rule = [](Engine&, const auto&, const auto&) {
    return std::make_unique<TwoUpdates>();
  };
  return options;
}

TEST_F(OwnObjectiveRun, ResumesAStepRuleWithTwoUpdatesBitwise) {
  const run::Config whole = make("whole"), parts = make("parts");
  const std::vector<at::Tensor> want = train(whole, with_two_updates(Start::New));
  train(parts, with_two_updates(Start::New), 3);  // six updates
  const std::vector<at::Tensor> got = train(parts, with_two_updates(Start::Resume));
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  const auto steps = report::read_metrics(parts.run.folder + "/metrics.jsonl");
  EXPECT_THAT(steps.values("batches", 0), testing::ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(steps.values("loss", 0), report::read_metrics(whole.run.folder + "/metrics.jsonl").values("loss", 0));
  const std::vector<at::Tensor> once = train(make("once"), {});
  EXPECT_FALSE(at::equal(once[0], want[0])) << "the rule has no effect";
}

TEST_F(OwnObjectiveRun, RefusesRulesWithoutAnUpdateAndForUnknownObjectives) {
  class NoUpdate : public StepRule {
    StepOutcome step(Engine&, const NextBatch&) override { return {}; }
  };
  TrainerOptions idle{.program = own_program()};
  idle.program.objectives.at("regression").step_rule = [](Engine&, const auto&, const auto&) {
    return std::make_unique<NoUpdate>();
  };
  EXPECT_THAT(test::thrown_message([&] { train(make("idle"), idle); }),
              HasSubstr("the step rule of regression must make an update"));
  EXPECT_THAT(test::thrown_message([&] { idle.program.objectives.at("regresion"); }),
              HasSubstr("unknown objective regresion, did you mean `regression`?"));
}

// Data may be made by the ranks of the run before they are opened.
TEST_F(OwnObjectiveRun, PreparesItsDataBeforeItOpensThem) {
  run::Config c = make("prepared");
  const std::string given = c.data.path;
  c.data.path = folder / "copy.csv";
  EXPECT_THAT(test::thrown_message([&] { train(c, {.program = own_program()}); }), HasSubstr("cannot be read"));
  TrainerOptions options{.start = Start::Overwrite, .program = own_program()};
  options.program.objectives.at("regression").prepare =
      [&](comm::World& world, const run::Config& config, const run::OwnTables& tables, const run::Preparation& start) {
        EXPECT_TRUE(tables.has("regression"));
        EXPECT_FALSE(start.resumes);
        if (world.rank() == 0) write_file(config.data.path, test::read_all(given));
      };
  EXPECT_FALSE(train(c, options).empty());
}

TEST_F(OwnObjectiveRun, CallsEvaluatedWithTheRowsOfEachEvaluation) {
  std::vector<int64_t> steps;
  TrainerOptions options{.program = own_program()};
  options.program.objectives.at("regression").evaluated = [&](Engine& engine, std::vector<Metric>& rows) {
    steps.push_back(engine.steps_done());
    EXPECT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows.back().name, "rmse");
    rows.push_back({.name = "task_score", .value = 0.5});
  };
  const run::Config c = make("run");
  train(c, options);
  EXPECT_THAT(steps, testing::ElementsAre(5, 10, 12));
  EXPECT_EQ(report::read_metrics(c.run.folder + "/metrics.jsonl").values("task_score", 0).at(4), 0.5);
}

}  // namespace
}  // namespace colossal::train::own_objective_test
