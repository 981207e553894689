// `colossal plan` of runs that learn from their own answers: the models that they need, and the memory that draws.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "cli/outcome.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/cli/plan.h"
#include "colossal/cli/plan_run.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/predict/check.h"
#include "colossal/predict/step.h"
#include "colossal/train/engine.h"
#include "colossal/train/record_step.h"
#include "support/temporary_folder.h"

namespace colossal::cli::plan_models_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kDrawing[] = "drawing answers and scoring them have no predicted time";

/// A tiny run of grpo, and a machine whose ranks share 8 GiB.
class PlanModels : public ::testing::Test {
 protected:
  void SetUp() override {
    write_file(config_,
               "[model]\nname = 'gpt2-tiny'\n[data]\npath = 'missing.jsonl'\ntokenizer = 'bytes'\nsequence = 32\n"
               "[alignment]\nmethod = 'grpo'\n[reward]\nverifiers = ['exact']\n"
               "[rollout]\nprompts = 4\nanswers = 2\nmax_tokens = 8\ncache = '256MiB'\n"
               "[training]\nsteps = 20\n[optimizer]\nwarmup_steps = 0\n");
    write_file(profile_,
               "device = { memory = \"8GiB\", bandwidth = 1e10, fp32 = 1e11, shared = true }\n"
               "node = { devices = 8, bandwidth = 1e9, latency = 1e-5 }\n");
  }

  nlohmann::json planned(std::vector<std::string> flags = {}) const {
    flags.insert(flags.begin(), {config_, "--cluster", profile_, "--json"});
    const Outcome outcome = run_command("plan", std::move(flags));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
  PlannedRun resolved(std::vector<std::string> flags) const {
    return resolve_plan({.config = config_, .flags = std::move(flags), .cluster = profile_}, nullptr);
  }

  test::TemporaryFolder folder_;
  std::string config_ = folder_ / "run.toml", profile_ = folder_ / "profile.toml";
};

/// Every matrix of gpt2-tiny has a multiple of 32 rows, to which panels are padded, but the table of 257 ids.
constexpr int64_t kPanels = 4 * (4 * 12 * 128 * 128 + 288 * 128);
constexpr int64_t kCache = int64_t{256} << 20;

TEST_F(PlanModels, ListThePanelsAndTheCache) {
  const auto json = planned();
  std::vector<std::string> names, held;
  for (const nlohmann::json& row : json.at("models")) {
    names.push_back(row.at("name"));
    held.push_back(row.at("held"));
  }
  EXPECT_THAT(names, ElementsAre("", "panels", "cache"));
  EXPECT_THAT(held, ElementsAre("", "always", "drawing"));
  EXPECT_EQ(json["models"][1]["bytes"], kPanels);
  EXPECT_EQ(json["models"][2]["bytes"], kCache);
  const nlohmann::json& role = json.at("roles").at(0);
  EXPECT_EQ(role.at("panels"), kPanels);
  EXPECT_EQ(role.at("cache"), kCache);
  EXPECT_THAT(json.at("assumptions").dump(), HasSubstr(kDrawing));
  EXPECT_EQ(planned({"--rollout.canonical=false"})["models"][1]["held"], "drawing");
  const auto without = planned({"--rollout.panels=false"});
  EXPECT_EQ(without.at("models").at(1).at("name"), "cache");
}

TEST_F(PlanModels, CountWhatIsHeldAtTheSameTime) {
  const auto full = planned().at("roles").at(0);
  EXPECT_EQ(full.at("fullest"), "drawing of answers");
  const int64_t at_rest = full.at("kinds").at("parameters").get<int64_t>() + full["kinds"]["states"].get<int64_t>();
  EXPECT_GE(full.at("peak_bytes"), at_rest + kPanels + kCache);
  EXPECT_LE(full["peak_bytes"], at_rest + full["kinds"]["gradients"].get<int64_t>() + kPanels + kCache + (1 << 20));
  const auto small = planned({"--rollout.cache=256KiB", "--rollout.prompts=64"}).at("roles").at(0);
  EXPECT_THAT(small.at("fullest").get<std::string>(), HasSubstr("of micro-batch 0"));
}

/// Only canonical passes multiply with panels, so only they keep them in updates.
TEST_F(PlanModels, KeepPanelsInCanonicalUpdatesOnly) {
  const auto kept = [&](const char* canonical) {
    const StepMemory memory = train::record_step(resolved({canonical}), 0).memory;
    EXPECT_GE(memory.kinds.buffers, kPanels + kCache) << canonical;
    EXPECT_LT(memory.curve.back().kinds.buffers, kCache) << canonical;
    return memory.curve.back().kinds.buffers >= kPanels;
  };
  EXPECT_TRUE(kept("--rollout.canonical=auto"));
  EXPECT_FALSE(kept("--rollout.canonical=false"));
}

TEST_F(PlanModels, SayNothingOfDrawingWhereNothingIsDrawn) {
  write_file(config_, "[model]\nname = 'gpt2-tiny'\n[data]\npath = 'missing.txt'\nsequence = 32\n");
  const auto text = planned({"--optimizer.warmup_steps=0"});
  EXPECT_EQ(text.at("models").size(), 1u);
  EXPECT_THAT(text.at("assumptions").dump(), Not(HasSubstr(kDrawing)));
}

/// Two ranks that make two steps, and what they have in them.
TEST_F(PlanModels, AgreeWithRanksThatPackWeights) {
  for (const char* layout : {"--parallel.zero=3", "--rollout.canonical=false"}) {
    const PlannedRun run = resolved({"--parallel.data=2", "--parallel.zero=3", layout});
    const predict::RecordedRoles roles = predict::record_roles(run);
    const plan::Cluster cluster = predict::cluster_of(2, run.profile);
    const plan::Prediction prediction = predict::predict_step(run, roles, cluster);
    std::vector<predict::CountedStep> counted(2);
    std::vector<int64_t> panels(2);
    std::mutex mutex;
    comm::run_ranks(2, [&](comm::World& world) {
      const tensor::Batch unused = run::batch_of_ones(*run.objective(), run.config);  // answers are imitated
      predict::CountedStep own = predict::count_step(world, run, [&] { return unused; });
      const auto engine = train::initialize(world, run.config, run.models, at::kCPU);
      engine->pack();
      const std::lock_guard lock(mutex);
      counted[static_cast<size_t>(world.rank())] = std::move(own);
      panels[static_cast<size_t>(world.rank())] = engine->panel_bytes();
    });
    const predict::Check check = predict::compare(predict::steps_of(roles, prediction), counted, false);
    EXPECT_FALSE(check.differs()) << layout << "\n" << predict::to_text(check);
    EXPECT_THAT(panels, ElementsAre(kPanels, kPanels));
    for (const predict::CheckRow& row : check.rows)
      if (row.name == "peak_bytes") EXPECT_NEAR(row.predicted, row.counted, 0.02 * row.counted) << layout;
  }
}

/// InstructGPT's PPO (G68): 175 and 6.7 billion parameters, in bf16 with gradients in fp32.
TEST_F(PlanModels, NeedEighteenBytesForEachTrainedParameterAndTwoForEachFrozenOne) {
  write_file(config_,
             "[model]\nname = 'gpt3-175b'\n[data]\npath = 'missing.jsonl'\nsequence = 2048\n"
             "[precision]\nmode = 'bf16'\n[alignment]\nmethod = 'ppo'\n[reference]\nname = 'gpt3-175b'\n"
             "[value]\nname = 'gpt3-6.7b'\n[reward]\nname = 'gpt3-6.7b'\n[rollout]\nmax_tokens = 1024\n"
             "[parallel]\ntensor = 8\n[parallel.pipeline]\nsize = 8\nmicro_batches = 8\n"
             "[training]\nsteps = 4\n[optimizer]\nwarmup_steps = 0\n");
  const auto planned_models = [&](std::vector<std::string> flags) {
    plan::Prediction prediction;
    predict::add_models(prediction, resolve_plan({.config = config_, .flags = flags, .cluster = "h100-8x"}, nullptr));
    return prediction.models;
  };
  // On one rank nothing is padded or held twice. Micro-batches are summed in fp32.
  const auto whole = planned_models({"--parallel.tensor=1", "--parallel.pipeline=1", "--training.accumulate=8"});
  const std::vector<std::string> names{"", "reference", "value", "reward"};
  ASSERT_EQ(whole.size(), names.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    const bool trains = i == 0 || i == 2;
    EXPECT_EQ(whole[i].name, names[i]);
    EXPECT_EQ(whole[i].parameters, i < 2 ? 174'604'259'328 : 6'658'408'448) << whole[i].name;
    EXPECT_EQ(whole[i].trained, trains ? whole[i].parameters : 0) << whole[i].name;
    EXPECT_EQ(whole[i].bytes, (trains ? 18 : 2) * whole[i].parameters) << whole[i].name;
  }
  // The first and the last stage both have the table of a language model.
  const auto models = planned_models({});
  ASSERT_EQ(models.size(), names.size());
  EXPECT_EQ(models[0].bytes, 9 * models[1].bytes);
  EXPECT_EQ(models[2].bytes, 9 * models[3].bytes);
  int64_t bytes = 0;
  for (const plan::PredictedModel& model : models) bytes += model.bytes;
  EXPECT_NEAR(static_cast<double>(bytes), 3.62e12, 0.01 * 3.62e12);
}

}  // namespace
}  // namespace colossal::cli::plan_models_test
