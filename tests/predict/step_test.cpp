// Predicted steps: roles of a layout, calls and memory by published formulas, limits of memory, times on clusters.
#include "colossal/predict/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/plan/cluster.h"
#include "colossal/predict/role_costs.h"
#include "colossal/run/data.h"
#include "colossal/run/objective.h"
#include "colossal/run/program.h"
#include "colossal/train/memory_needs.h"
#include "colossal/train/run_models.h"
#include "support/parity.h"
#include "support/paths.h"

namespace colossal::predict::step_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

/// Sizes that every layout below divides evenly.
models::ModelShape even_shape() {
  models::ModelShape shape = test::tiny_gpt2();
  shape.vocabulary = 48, shape.layers = 4, shape.hidden = 64, shape.heads = shape.kv_heads = 4, shape.head_dim = 16;
  shape.ffn = 256, shape.positions = 64, shape.dropout = 0;
  return shape;
}

run::Config config_of(int64_t data, int64_t tensor = 1, int64_t pipeline = 1) {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = data;
  config.parallel.tensor.size = tensor;
  config.parallel.pipeline.size = pipeline;
  config.training.batch_size = 8 * data;
  config.data.sequence = 32;
  return config;
}

/// A machine whose ranks share 1 GiB, of which nothing is reserved.
plan::Profile shared_machine() {
  plan::Profile profile;
  profile.name = "shared";
  profile.device.memory = int64_t{1} << 30;
  profile.device.bandwidth = 1e10;
  profile.device.fp32 = 1e11;
  profile.device.shared = true;
  profile.node = {8, 1e9, 1e-5};
  return profile;
}

std::vector<std::string> names_of(const RecordedRoles& roles) {
  std::vector<std::string> names;
  for (const RecordedRole& role : roles) names.push_back(role.name);
  return names;
}

TEST(Roles, JoinsRanksWithEqualWork) {
  const RecordedRoles data = record_roles({config_of(2), even_shape()});
  EXPECT_THAT(names_of(data), ElementsAre("all ranks"));
  EXPECT_THAT(data.at(0).ranks, ElementsAre(0, 1));
  const RecordedRoles stages = record_roles({config_of(2, 1, 2), even_shape()});
  EXPECT_THAT(names_of(stages), ElementsAre("stage 0", "stage 1"));
  EXPECT_THAT(stages.at(0).ranks, ElementsAre(0, 1));
  EXPECT_THAT(stages.at(1).ranks, ElementsAre(2, 3));
}

TEST(Roles, NamesRanksByTheirAxes) {
  // 1d tensor parallelism divides everything evenly here, so the ranks of a stage do the same.
  EXPECT_THAT(names_of(record_roles({config_of(1, 2, 2), even_shape()})), ElementsAre("stage 0", "stage 1"));
}

/// Under gpipe the middle stages do the same work, but one after another.
TEST(Roles, KeepsStagesApart) {
  run::Config config = config_of(1, 1, 4);
  config.parallel.pipeline.schedule = "gpipe";
  config.parallel.pipeline.layers_per_stage = {1, 1, 1, 1};
  EXPECT_THAT(names_of(record_roles({config, even_shape()})), ElementsAre("stage 0", "stage 1", "stage 2", "stage 3"));
}

TEST(Roles, RecordsOneRankOfEachStageOfManyRanks) {
  const run::Config config = config_of(64, 1, 2);
  const RecordedRoles roles = record_roles({config, even_shape()});
  EXPECT_THAT(names_of(roles), ElementsAre("stage 0", "stage 1"));
  EXPECT_EQ(roles.at(0).ranks.size(), 64u);
  EXPECT_EQ(roles.at(1).ranks.front(), 64);
  const plan::Prediction prediction =
      predict_step({config, even_shape()}, roles, cluster_of(config.parallel.ranks(), shared_machine()));
  EXPECT_EQ(prediction.ranks, 128);
  EXPECT_THAT(prediction.assumptions, Contains(HasSubstr("do the same work")));
}

TEST(Prediction, CountsCallsAndMemoryOfGpt2) {
  run::GivenConfig given = run::read_given_config(test::source_dir() + "/benchmarks/gpt2_124m.toml",
                                                  {"--parallel.data=2", "--run.device=cpu"});
  const models::ModelShape shape = run::resolve_model(given.config, run::built_in()).shape;
  const plan::Prediction prediction =
      predict_step({given.config, shape}, cluster_of(given.config.parallel.ranks(), shared_machine()));
  ASSERT_EQ(prediction.roles.size(), 1u);
  const plan::PredictedRole& role = prediction.roles[0];
  EXPECT_EQ(role.name, "all ranks");
  constexpr int64_t kParameters = 124'439'808;
  double sent = 0;
  for (const plan::PredictedCalls& row : role.calls)
    if (row.group == "data" && row.collective == "all_reduce" && row.phase == "backward") sent += row.bytes;
  EXPECT_EQ(sent, 4.0 * kParameters);
  EXPECT_EQ(role.kinds.parameters, 4 * kParameters);
  EXPECT_EQ(role.kinds.states, 8 * kParameters);
  EXPECT_EQ(prediction.flops_per_token, 748'325'376);
  EXPECT_FALSE(prediction.fits);  // two ranks with two gigabytes each on a machine of one
  EXPECT_THAT(prediction.limit, HasSubstr("the ranks of node 0 need"));
  EXPECT_THAT(prediction.assumptions, Contains("one document a row"));
}

/// Two blocks of LLaMA 8B, whose products take more time than the quantization of their operands. An A100 emulates fp8.
TEST(Prediction, MultipliesIn8BitsOnDevicesThatDo) {
  const auto seconds = [](const std::string& mode, const std::string& name, int64_t& products) {
    const run::Config config =
        run::read_given_config("", {"--model.name=llama3-8b", "--model.layers=2", "--precision.mode=" + mode,
                                    "--run.device=cuda", "--data.sequence=4096", "--training.batch_size=4"})
            .config;
    const train::NamedModel model{.shape = run::resolve_model(config, run::built_in()).shape};
    const plan::Cluster cluster = cluster_of(config.parallel.ranks(), plan::find_profile(name));
    const RecordedRoles roles = record_roles({config, model}, cluster);
    products = 0;
    for (const StepEvent& event : roles.at(0).step.list)
      products += event.kind == StepEvent::Kind::Product && plan::number_type_of(event.dtype) == plan::NumberType::Fp8;
    return predict_step({config, model}, roles, cluster).step_seconds;
  };
  int64_t in_bf16 = 0, in_fp8 = 0, emulated = 0;
  const double h100 = seconds("bf16", "h100-8x", in_bf16);
  EXPECT_LT(seconds("fp8", "h100-8x", in_fp8), h100);
  EXPECT_EQ(in_bf16, 0);
  // Forward, and two gradients, of q with k and v, the output of attention, gate with up, and down in each block.
  EXPECT_EQ(in_fp8, 2 * 4 * 3);
  const double a100 = seconds("bf16", "a100-8x", in_bf16);
  EXPECT_GT(seconds("fp8", "a100-8x", emulated), a100);
  EXPECT_EQ(emulated, 0);
}

TEST(Prediction, CountsTheParametersOfAPreset) {
  const run::Config config = run::read_given_config("", {"--model.name=llama3-8b", "--model.vocabulary=128256"}).config;
  const models::ModelShape shape = run::resolve_model(config, run::built_in()).shape;
  EXPECT_EQ(train::parameter_count({.shape = shape}), 8'030'261'248);  // published
}

TEST(Prediction, CountsOperationsOfLlama405b) {
  const run::GivenConfig given = run::read_given_config(test::source_dir() + "/benchmarks/llama_405b.toml", {});
  given.config.validate();
  EXPECT_EQ(given.config.parallel.ranks(), 16'384);
  const models::ModelShape shape = run::resolve_model(given.config, run::built_in()).shape;
  const auto objective = train::ConfiguredRun{given.config, shape}.objective();
  // All terms are multiples of large powers of two, so their sums are exact.
  const double causal = run::costs_of(shape, *objective).sum() / 8192;
  EXPECT_EQ(causal, 2'523'968'372'736.0);
  // The published number has five digits.
  EXPECT_NEAR(all_pairs_operations(shape, 8192, causal), 2.6254e12, 0.5e8);
}

TEST(Prediction, AddsUp) {
  const run::Config config = config_of(2, 1, 2);
  const RecordedRoles roles = record_roles({config, even_shape()});
  const plan::Prediction prediction =
      predict_step({config, even_shape()}, roles, cluster_of(config.parallel.ranks(), shared_machine()));
  EXPECT_GT(prediction.step_seconds, 0);
  for (size_t i = 0; i < roles.size(); ++i) {
    const double events = static_cast<double>(roles[i].step.list.size());
    EXPECT_NEAR(prediction.roles[i].seconds.sum(), prediction.step_seconds,
                4 * std::numeric_limits<double>::epsilon() * events * prediction.step_seconds)
        << roles[i].name;
  }
  EXPECT_GT(prediction.seconds.bubble, 0);
  EXPECT_EQ(prediction.peak_bytes, std::max(prediction.roles[0].peak_bytes, prediction.roles[1].peak_bytes));
  const double most = prediction.step_seconds * 4 * 1e11 / 4;  // ranks x the share of each in the machine's peak
  const double operations = prediction.flops_per_token * 16 * 32;
  EXPECT_NEAR(prediction.mfu, operations / most, 8 * std::numeric_limits<double>::epsilon() * prediction.mfu);
  EXPECT_THAT(prediction.mfu_formula, AllOf(HasSubstr("causal pairs, without recomputation"), HasSubstr("all pairs")));
}

TEST(Prediction, DoesNotSlowDownWithFasterLinks) {
  for (const run::Config& config : {config_of(4), config_of(1, 4), config_of(1, 1, 4), config_of(2, 2, 2)}) {
    const RecordedRoles roles = record_roles({config, even_shape()});
    plan::Profile profile = shared_machine();
    double before = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 4; ++i, profile.node.bandwidth *= 2) {
      const double now =
          predict_step({config, even_shape()}, roles, cluster_of(config.parallel.ranks(), profile)).step_seconds;
      EXPECT_LE(now, before);
      before = now;
    }
  }
}

TEST(Prediction, ComparesMemoryWithTheMachine) {
  const run::Config config = config_of(2);
  const RecordedRoles roles = record_roles({config, even_shape()});
  const StepMemory& memory = roles.at(0).step.memory;
  plan::Profile profile = shared_machine();
  profile.machine.resident = 1000;
  const int64_t both = 2 * (memory.peak_bytes + memory.kinds.host + 1000);
  for (const int64_t missing : {0, 1}) {
    profile.device.memory = both - missing;
    const plan::Prediction prediction =
        predict_step({config, even_shape()}, roles, cluster_of(config.parallel.ranks(), profile));
    EXPECT_EQ(prediction.fits, missing == 0);
    EXPECT_EQ(prediction.limit.find("node 0 need") != std::string::npos, missing == 1) << prediction.limit;
    EXPECT_EQ(2 * prediction.roles.at(0).resident_bytes, both);
  }
}

TEST(Prediction, ComparesMemoryWithTheDevice) {
  const run::Config config = config_of(2);
  const RecordedRoles roles = record_roles({config, even_shape()});
  plan::Profile profile = shared_machine();
  profile.device.shared = false;
  profile.device.reserve = 1000;
  for (const int64_t missing : {0, 1}) {
    profile.device.memory = roles.at(0).step.memory.peak_bytes + 1000 - missing;
    const plan::Prediction prediction =
        predict_step({config, even_shape()}, roles, cluster_of(config.parallel.ranks(), profile));
    EXPECT_EQ(prediction.fits, missing == 0);
    EXPECT_EQ(prediction.roles.at(0).resident_bytes, roles.at(0).step.memory.kinds.host);
  }
}

TEST(Prediction, ComparesMemoryWithItsBudget) {
  run::Config config = config_of(1);
  const RecordedRoles roles = record_roles({config, even_shape()});
  const int64_t peak = roles.at(0).step.memory.peak_bytes;
  config.memory.device = peak - 1;
  const plan::Prediction prediction =
      predict_step({config, even_shape()}, roles, cluster_of(config.parallel.ranks(), shared_machine()));
  EXPECT_FALSE(prediction.fits);
  EXPECT_EQ(prediction.limit,
            concat("all ranks: a rank needs ", peak, " bytes, and memory.device is ", peak - 1, " bytes"))
      << "rounded, both are the same";
  config.memory.device = peak / 2;
  EXPECT_THAT(predict_step({config, even_shape()}, roles, cluster_of(config.parallel.ranks(), shared_machine())).limit,
              HasSubstr("MiB, and memory.device is "));
}

TEST(Prediction, TellsLinksApart) {
  const run::Config config = config_of(4);
  const RecordedRoles roles = record_roles({config, even_shape()});
  plan::Profile profile = shared_machine();
  profile.device.shared = false;
  profile.node.devices = 2;
  profile.network = {1e8, 1e-4, 1};
  const plan::Prediction prediction = predict_step({config, even_shape()}, roles, plan::Cluster(profile));
  std::vector<std::string> links;
  for (const plan::PredictedLink& link : prediction.roles.at(0).links) links.push_back(link.link);
  EXPECT_THAT(links, ElementsAre("between nodes"));
  const auto prediction_inside =
      predict_step({config, even_shape()}, roles, cluster_of(config.parallel.ranks(), shared_machine()));
  EXPECT_EQ(prediction_inside.roles.at(0).links.at(0).link, "inside a node");
  EXPECT_EQ(prediction_inside.roles.at(0).links.at(0).bytes, prediction.roles[0].links[0].bytes);
}

/// The first two ranks of the ring are in one node, and the step waits for those that are not.
TEST(Prediction, PricesARingAtItsSlowestLink) {
  run::Config config = config_of(1);
  config.parallel.sequence = {.size = 4, .mode = "ring"};
  const RecordedRoles roles = record_roles({config, even_shape()});
  plan::Profile profile = shared_machine();
  profile.device.shared = false;
  profile.node.devices = 2;
  profile.network = {1e8, 1e-4, 1};
  const plan::Cluster cluster(profile);
  const RoleCosts costs(cluster, config.parallel, roles);
  for (const RecordedRole& role : roles) {
    if (role.ranks.size() < 4) continue;
    EXPECT_EQ(costs.place_of({0, 1}).nodes, 2) << "1 sends to 2, on the other node";
    EXPECT_EQ(costs.place_of({0, 1}).ranks, 2);
  }
  EXPECT_EQ(costs.place_of({0, 1, 2, 3}).nodes, 2);
}

/// Groups of three ranks on nodes of four: ranks 0, 1, 2 share a node, ranks 3, 4, 5 do not.
TEST(Prediction, PricesGroupsAtTheirSlowestPlace) {
  const run::Config config = config_of(4, 3);
  RecordedRoles roles(1);
  for (int rank = 0; rank < 12; ++rank) roles[0].ranks.push_back(rank);
  plan::Profile profile = shared_machine();
  profile.device.shared = false;
  profile.node.devices = 4;
  const plan::Cluster cluster(profile);
  EXPECT_EQ(RoleCosts(cluster, config.parallel, roles).place_of({0, 1, 2}).nodes, 2);
  RecordedRoles apart(2);
  for (int rank = 0; rank < 12; ++rank) apart[rank < 3 ? 0 : 1].ranks.push_back(rank);
  EXPECT_EQ(RoleCosts(cluster, config.parallel, apart).place_of({0, 1, 2}).nodes, 1) << "the others are another role";
}

TEST(Prediction, HasTheGoodputOfItsProfile) {
  const run::Config config = config_of(2);
  const RecordedRoles roles = record_roles({config, even_shape()});
  plan::Profile profile = shared_machine();
  const auto without = predict_step({config, even_shape()}, roles, cluster_of(config.parallel.ranks(), profile));
  EXPECT_EQ(without.checkpoint_interval, 0) << "the profile has no disk";
  profile.disk = {.read = 1e8, .write = 1e8, .latency = 0};
  const auto prediction = predict_step({config, even_shape()}, roles, cluster_of(config.parallel.ranks(), profile));
  const plan::PredictedRole& role = prediction.roles.at(0);
  EXPECT_DOUBLE_EQ(prediction.checkpoint_seconds, static_cast<double>(role.kinds.parameters + role.kinds.states) / 1e8);
  EXPECT_EQ(prediction.checkpoint_interval, profile.failures.best_interval(1, prediction.checkpoint_seconds));
  EXPECT_LT(prediction.goodput, without.goodput);
}

/// A copy that begins last adds its seconds to the step, if the profile has the speed of copies.
TEST(Prediction, PricesTransfersOfTiers) {
  const run::Config config = config_of(2);
  RecordedRoles roles = record_roles({config, even_shape()});
  plan::Profile profile = shared_machine();
  const plan::Prediction without =
      predict_step({config, even_shape()}, roles, cluster_of(config.parallel.ranks(), profile));
  roles.at(0).step.list.push_back({.kind = StepEvent::Kind::HostCopy, .bytes = 1e9, .read = 1e9});
  EXPECT_EQ(predict_step({config, even_shape()}, roles, cluster_of(config.parallel.ranks(), profile)).step_seconds,
            without.step_seconds)
      << "the profile has no speed of copies";
  profile.host = {1e9 / (4 * without.step_seconds), 0};
  const plan::Prediction copies =
      predict_step({config, even_shape()}, roles, cluster_of(config.parallel.ranks(), profile));
  const double rounding = 16 * std::numeric_limits<double>::epsilon();
  EXPECT_NEAR(copies.step_seconds, 5 * without.step_seconds, rounding * copies.step_seconds);
  EXPECT_EQ(copies.roles.at(0).links.back(), (plan::PredictedLink{"to the host", 1, 1e9}));
}

TEST(SetRanks, DividesByTheOtherAxes) {
  run::Config config = config_of(5, 2);
  set_ranks(config, 8);
  EXPECT_EQ(config.parallel.data, 4);
  EXPECT_THAT([&] { set_ranks(config, 7); },
              ThrowsMessage<Error>(AllOf(HasSubstr("parallel.tensor = 2"), HasSubstr("got 7; the nearest are 6 and 8"),
                                         Not(HasSubstr("pipeline")))));
  EXPECT_THAT([&] { set_ranks(config, 1); }, ThrowsMessage<Error>(HasSubstr("the smallest is 2")));
  EXPECT_EQ(config.parallel.data, 4);
  config.parallel.ranks_wanted = 8;
  set_ranks(config, 4);
  EXPECT_EQ(config.parallel.ranks_wanted, 4);
  EXPECT_NO_THROW(config.validate());
}

TEST(SetDevice, FollowsTheProfile) {
  run::Config config;
  config.run.device = "auto";
  set_device(config, plan::find_profile("h100-8x"));
  EXPECT_EQ(config.run.device, "cuda");
  set_device(config, shared_machine());
  EXPECT_EQ(config.run.device, "cuda");  // a device that is set stays
  config.run.device = "auto";
  set_device(config, shared_machine());
  EXPECT_EQ(config.run.device, "cpu");
}

}  // namespace
}  // namespace colossal::predict::step_test
