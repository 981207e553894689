// A mixture whose experts are loaded as unevenly as its config permits: memory, what fits, and what would help.
#include "colossal/predict/rank_load.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "colossal/comm/run_ranks.h"
#include "colossal/memory/account.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/expert_hops.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/predict/search.h"
#include "colossal/predict/step.h"
#include "colossal/run/objective.h"
#include "colossal/train/engine.h"
#include "colossal/train/step_result.h"
#include "support/parity.h"

namespace colossal::predict::rank_load_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kExperts = 4;

/// Sizes whose activations inside experts are megabytes.
models::ModelShape mixture(int64_t used = 1, double capacity = 0) {
  models::ModelShape shape = test::tiny_llama();
  shape.layers = 2, shape.hidden = 32, shape.ffn = 128, shape.positions = 64;
  shape.heads = shape.kv_heads = 2, shape.head_dim = 16;
  models::LlamaSizes own;
  own.experts = {.count = kExperts, .used = used, .ffn = 128, .capacity = capacity, .balance_loss = 0};
  shape.own = own;
  shape.set(models::MixtureSizes{kExperts});
  return shape;
}

run::Config config_of(int64_t expert, int64_t tensor = 1, int64_t data = 1) {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = data;
  config.parallel.expert.size = expert;
  config.parallel.tensor.size = tensor;
  config.training.batch_size = 16;
  config.data.sequence = 64;
  return config;
}

TEST(RankLoad, FollowsExpertsOfATokenAndCapacity) {
  EXPECT_EQ(worst_rank_load({config_of(4), mixture(1)}), 4) << "all tokens choose one expert";
  EXPECT_EQ(worst_rank_load({config_of(2), mixture(1)}), 2);
  EXPECT_EQ(worst_rank_load({config_of(4), mixture(2)}), 2) << "half of the assignments go to other ranks";
  EXPECT_EQ(worst_rank_load({config_of(2), mixture(2)}), 2) << "both experts of one rank";
  EXPECT_EQ(worst_rank_load({config_of(2, 2), mixture(1)}), 4) << "a tensor group deals out experts, too";
  EXPECT_EQ(worst_rank_load({config_of(1), mixture(1)}), 1);
  EXPECT_EQ(worst_rank_load({config_of(4), mixture(1, 1.5)}), 1.5);
  EXPECT_EQ(worst_rank_load({config_of(2, 1, 2), mixture(1, 1.25)}), 2)
      << "the limit counts the tokens of both replicas";
  run::Config split = config_of(1, 2);
  split.parallel.expert.tensor = "split";
  EXPECT_EQ(worst_rank_load({split, mixture(1)}), 1);
  EXPECT_EQ(worst_rank_load({config_of(2), test::tiny_llama()}), 1);
}

TEST(MeantLoad, ConcentratesAssignments) {
  class ThirdOfFour : public nn::ExpertRanks {
   public:
    int64_t ranks() const override { return 4; }
    int64_t rank() const override { return 2; }
  } ranks;
  EXPECT_EQ(nn::meant_counts(16, 8, 8, ranks), std::vector<int64_t>(8, 2));
  const nn::MeantLoad load(2.5);  // 10 of 16 assignments
  EXPECT_EQ(nn::meant_counts(16, 8, 8, ranks), (std::vector<int64_t>{1, 1, 1, 1, 8, 2, 1, 1}));
  const nn::MeantLoad more(100);
  EXPECT_EQ(nn::meant_counts(24, 8, 8, ranks), (std::vector<int64_t>{1, 1, 2, 1, 8, 8, 1, 2}));
}

/// Returns the peak of each rank in a second step whose routers give equal scores: the first expert wins all tokens.
std::vector<int64_t> peaks_with_one_expert(const run::Config& config, const models::ModelShape& shape) {
  std::vector<int64_t> peaks(static_cast<size_t>(config.parallel.ranks()));
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(peaks.size()), [&](comm::World& world) {
    memory::Account account;
    const auto engine = train::initialize(world, config, shape);
    const tensor::Batch batch = run::batch_of_ones(engine->objective(), config);
    for (int step = 0; step < 2; ++step) {
      for (const checkpoint::NamedTensor& weight : engine->weights())
        if (weight.name.ends_with("router.weight")) weight.value.write().value.zero_();
      engine->weights_loaded();
      if (step == 1) account.reset_peaks();
      engine->zero_grad();
      engine->train_step(batch);
      engine->step();
    }
    const std::lock_guard lock(mutex);
    peaks[static_cast<size_t>(world.rank())] = account.usage().peak_device;
  });
  return peaks;
}

/// Computes products with MKL. oneDNN needs other buffers, and which of them a process measures to be faster varies.
class MklProducts {
 public:
  MklProducts() { ops::set_matmul({}); }
  ~MklProducts() { ops::set_matmul(before_); }

 private:
  ops::MatmulChoice before_ = ops::matmul_choice();
};

/// Operators of LibTorch's CPU make tensors for themselves, which those of meta do not: 2 % or 64 KiB, as in
/// RecordedMemory.
TEST(RankLoad, HasTheMemoryOfARunWhoseTokensChooseOneExpert) {
  const MklProducts products;
  const run::Config config = config_of(4);
  const std::vector<int64_t> measured = peaks_with_one_expert(config, mixture());
  const RecordedRoles roles = record_roles({config, mixture()});
  ASSERT_TRUE(roles.at(0).at_worst);
  const auto even = static_cast<double>(roles[0].step.memory.peak_bytes),
             worst = static_cast<double>(roles[0].at_worst->peak_bytes),
             real = static_cast<double>(*std::max_element(measured.begin(), measured.end()));
  EXPECT_GT(real, 1.2 * even) << "or nothing is tested";
  EXPECT_NEAR(worst, real, std::max(0.02 * real, 65536.0));
}

plan::Profile device_of(int64_t memory) {
  plan::Profile profile;
  profile.name = "device";
  profile.device.memory = memory;
  profile.device.bandwidth = 1e9;
  profile.device.fp32 = 1e10;
  profile.device.start = 1e-6;
  profile.node = {4, 1e9, 1e-5};
  return profile;
}

/// Returns the peaks of the fullest role at even loads and at the worst.
std::pair<int64_t, int64_t> peaks_of(const RecordedRoles& roles) {
  std::pair<int64_t, int64_t> peaks{0, 0};
  for (const RecordedRole& role : roles) {
    peaks.first = std::max(peaks.first, role.step.memory.peak_bytes);
    peaks.second = std::max(peaks.second, role.at_worst->peak_bytes);
  }
  return peaks;
}

TEST(RankLoad, FitsOnlyIfTheWorstFits) {
  const MklProducts products;
  const run::Config config = config_of(4);
  const models::ModelShape shape = mixture();
  const RecordedRoles roles = record_roles({config, shape});
  const auto [even, worst] = peaks_of(roles);
  const auto on = [&](int64_t memory) {
    return predict_step({config, shape}, roles, plan::Cluster(device_of(memory)));
  };
  const plan::Prediction enough = on(worst);
  EXPECT_TRUE(enough.fits);
  EXPECT_EQ(enough.rank_load, (plan::RankLoads{.worst = 4, .fitting = 4, .peak_bytes = worst}));
  EXPECT_THAT(plan::to_text(enough), HasSubstr("At the largest rank load that the config permits, 4, a rank needs "));
  const plan::Prediction some = on((even + worst) / 2);
  EXPECT_FALSE(some.fits);
  EXPECT_EQ(some.peak_bytes, even);
  EXPECT_GE(some.rank_load.fitting, 2.4);  // halfway, on the straight line
  EXPECT_LE(some.rank_load.fitting, 2.5);
  EXPECT_THAT(some.limit, AllOf(HasSubstr("it fits up to a rank load of 2."), HasSubstr("the config permits 4"),
                                HasSubstr("model.experts.capacity")));
  const nn::MeantLoad load(some.rank_load.fitting);
  EXPECT_LE(train::record_step({config, shape}, 0).memory.peak_bytes, (even + worst) / 2);
  const plan::Prediction none = on(even - 1);
  EXPECT_FALSE(none.fits);
  EXPECT_EQ(none.rank_load.fitting, 0);
  EXPECT_THAT(none.limit, Not(HasSubstr("rank load")));
}

TEST(Remedies, NameTheCapacityAndMarkWhatIsLearned) {
  const run::Config config = config_of(4);
  models::ModelShape shape = mixture();
  auto own = shape.own.as<models::LlamaSizes>();
  own.experts.balance_loss = 0.01;
  shape.own = own;
  const auto [even, worst] = peaks_of(record_roles({config, shape}));
  const plan::Cluster cluster(device_of((even + worst) / 2));
  const auto found = remedies({config, {.shape = shape}}, cluster);
  const auto with = [&](const char* key) {
    return std::find_if(found.begin(), found.end(),
                        [&](const plan::Remedy& remedy) { return remedy.table.find(key) != std::string::npos; });
  };
  const auto capacity = with("[model.experts]\ncapacity = ");
  ASSERT_NE(capacity, found.end());
  EXPECT_THAT(capacity->training, HasSubstr("an expert drops tokens above"));
  const auto micro_batches = with("accumulate = ");
  ASSERT_NE(micro_batches, found.end());
  EXPECT_THAT(micro_batches->training, HasSubstr("micro-batches must stay 1, because model.experts.balance_loss"));
  for (const plan::Remedy& remedy : found) {
    if (remedy.table.find("accumulate") == std::string::npos && remedy.table.find("capacity") == std::string::npos) {
      EXPECT_EQ(remedy.training, "") << remedy.table;
    }
  }
}

TEST(WorstMemory, HasTheMasksOfSeveralDocuments) {
  run::Config config = config_of(1);
  config.data.sequence = 16;
  const models::ModelShape shape = test::tiny_gpt2();
  EXPECT_FALSE(worst_memory({config, {.shape = shape}}, 0)) << "kernels of the CPU read documents without masks";
  config.run.device = "cuda";
  const RecordedRoles roles = record_roles({config, shape});
  ASSERT_TRUE(roles[0].at_worst);
  const int64_t one = roles[0].step.memory.peak_bytes, several = roles[0].at_worst->peak_bytes;
  // A mask for the pairs of each row: a byte each, in every layer.
  EXPECT_GE(several - one, shape.layers * config.training.batch_size * config.data.sequence * config.data.sequence);
  const plan::Cluster cluster(device_of(several - 1));
  const plan::Prediction prediction = predict_step({config, shape}, roles, cluster);
  EXPECT_FALSE(prediction.fits);
  EXPECT_THAT(prediction.limit, HasSubstr("rows of one document fit, and rows of several do not: "));
  config.data.documents = "joined";
  EXPECT_FALSE(worst_memory({config, {.shape = shape}}, 0));
  config.data.documents = "separate";
  config.precision.mode = "bf16";
  EXPECT_FALSE(worst_memory({config, {.shape = shape}}, 0)) << "packed attention";
}

/// Returns the smallest memory.device with which a run makes its steps, from the refusal of a smaller one.
int64_t least_of_training(run::Config config, const models::ModelShape& shape) {
  int64_t least = 0;
  config.memory.device = int64_t{1} << 19;
  for (int attempt = 0; attempt < 3; ++attempt) {
    try {
      train::record_step({config, shape}, 0);
      return config.memory.device;
    } catch (const train::RefusedStep& error) {
      least = error.needed_bytes();
    }
    config.memory.device = least;
  }
  return least;
}

TEST(RankLoad, ComparesWithTheDeviceBudget) {
  run::Config config = config_of(4);
  config.parallel.chunk_mib = 0.05;
  const models::ModelShape shape = mixture();
  config.memory.device = least_of_training(config, shape);
  const plan::Cluster cluster(device_of(int64_t{1} << 40));
  const plan::Prediction small = predict_step({config, shape}, cluster);
  EXPECT_FALSE(small.fits) << "an even load is the least";
  EXPECT_GE(small.rank_load.fitting, 1);
  config.memory.device = small.rank_load.peak_bytes;
  EXPECT_TRUE(predict_step({config, shape}, cluster).fits);
}

}  // namespace
}  // namespace colossal::predict::rank_load_test
