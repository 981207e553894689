// The disk of one rank fails at any point: all ranks end with that rank's error in the same step, and results of that
// step are never saved.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/train/optimization.h"
#include "support/course.h"
#include "support/thrown_message.h"

namespace colossal::train::rank_failures_test {
namespace {

/// An offload store that keeps copies. Among the calls that may fail, the one with number `fails` fails.
class FailingStore final : public memory::OffloadStore {
 public:
  static constexpr int64_t kNever = -1;
  int64_t calls = 0, fails = kNever;

  std::unique_ptr<memory::OffloadedTensor> offload(const at::Tensor& tensor) override {
    call();
    return std::make_unique<Copy>(*this, tensor.clone());
  }

 private:
  struct Copy final : memory::OffloadedTensor {
    Copy(FailingStore& store, at::Tensor value) : store(store), value(std::move(value)) {}
    int64_t bytes() const override { return static_cast<int64_t>(value.nbytes()); }
    at::Tensor borrow() override {
      store.call();
      EXPECT_FALSE(std::exchange(is_borrowed, true));
      return value;
    }
    void return_borrowed(const at::Tensor&, bool) override { EXPECT_TRUE(std::exchange(is_borrowed, false)); }
    void discard() override { is_borrowed = false; }
    void replace(const at::Tensor& tensor) override {
      store.call();
      value.copy_(tensor);
    }
    FailingStore& store;
    at::Tensor value;
    bool is_borrowed = false;
  };
  void call() { require(calls++ != fails, "disk", "request ", fails, " failed"); }
};

struct Case {
  std::string name, precision, optimizer;
  int64_t zero;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// A rank with a few parameters, one of which is cut into segments.
struct Rank {
  Rank(comm::World& world, const Case& c)
      : mesh(world, {comm::Mesh::batch("data", world.size())}),
        config(config_of(c, world.size())),
        parameters(mesh.coordinates(), {config.precision.dtype(), at::kCPU, 1}) {
    for (const int64_t rows : {4, 4, 16})
      parameters.add(concat("p", parameters.size()), tensor::ShardSpec::whole({rows, 8}), nn::Init::normal(1), true);
    optimization = std::make_unique<Optimization>(parameters, mesh, config, std::vector<OwnOptimizer>{}, store);
  }
  static run::Config config_of(const Case& c, int64_t ranks) {
    run::Config config = test::course_config();
    config.precision.mode = c.precision;
    config.optimizer.name = c.optimizer;
    config.parallel.data = ranks, config.parallel.zero = c.zero;
    config.parallel.chunk_mib = 32.0 * static_cast<double>(c10::elementSize(config.precision.dtype())) / (1 << 20);
    config.training.accumulate = 2;
    config.training.clip = 0.1, config.training.clip_by = "value";
    return config;
  }
  at::Tensor forward() {
    at::Tensor loss = at::zeros({});
    for (nn::Parameter& p : parameters) loss = loss + p.value.to(at::kFloat).square().sum();
    return loss;
  }
  /// Runs a step and an evaluation.
  void step() {
    optimization->zero_grad();
    std::vector<at::Tensor> losses;
    for (const bool last : {false, true}) {
      losses.push_back(forward());
      optimization->reducer().begin(last);
      losses.back().backward();
      if (last) optimization->reducer().finish();
      optimization->close_pass();
    }
    optimization->read_before_step(losses);
    optimization->step();
    const at::NoGradGuard no_grad;
    forward();
    optimization->end_pass();
  }
  std::vector<at::Tensor> weights() {
    std::vector<at::Tensor> all;
    for (const auto& t : optimization->state().tensors) all.push_back(t.value.clone());
    return all;
  }

  std::shared_ptr<FailingStore> store = std::make_shared<FailingStore>();
  comm::Mesh mesh;
  run::Config config;
  nn::Parameters parameters;
  std::unique_ptr<Optimization> optimization;
};

bool are_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

/// The result of the second step, in which call number `fails` of rank 1's offload store fails.
struct Outcome {
  int64_t calls = 0;                           // number of rank 1's calls without a failure
  std::array<std::string, 2> said{}, saved{};  // errors of each rank, from the step and from saving its state
  std::array<bool, 2> is_as_before{};
};

Outcome outcome_of(const Case& c, int64_t fails) {
  Outcome outcome;
  comm::run_ranks(2, [&](comm::World& world) {
    Rank rank(world, c);
    rank.step();
    const std::vector<at::Tensor> before = rank.weights();
    const auto me = static_cast<size_t>(world.rank());
    rank.store->calls = 0;
    if (me == 1) rank.store->fails = fails;
    outcome.said[me] = test::thrown_message([&] { rank.step(); });
    if (me == 1) outcome.calls = rank.store->calls;
    rank.store->fails = FailingStore::kNever;
    outcome.saved[me] = test::thrown_message([&] { outcome.is_as_before[me] = are_equal(rank.weights(), before); });
  });
  return outcome;
}

class RankFailures : public testing::TestWithParam<Case> {};

TEST_P(RankFailures, EndTheStepOnAllRanksWithOneError) {
  const Outcome whole = outcome_of(GetParam(), FailingStore::kNever);
  EXPECT_THAT(whole.said, testing::Each(""));
  EXPECT_THAT(whole.is_as_before, testing::Each(false)) << "it trained";
  int64_t before_update = 0;
  for (int64_t i = 0; i < whole.calls; ++i) {
    const Outcome got = outcome_of(GetParam(), i);
    EXPECT_THAT(got.said[0], testing::AllOf(testing::HasSubstr(concat("[disk] request ", i, " failed")),
                                            testing::HasSubstr("(rank 1 of 2)")));
    EXPECT_EQ(got.said[1], got.said[0]) << i;
    if (got.is_as_before[0] && got.is_as_before[1]) {
      ++before_update;
      EXPECT_THAT(got.saved, testing::Each(""));
      continue;
    }
    // Either an update failed, and saving must fail too, or the evaluation after a successful update failed.
    if (!got.saved[0].empty()) {
      EXPECT_THAT(got.saved, testing::Each(got.said[0])) << i;
    }
  }
  // Under ZeRO 1 parameters and gradients stay in memory.
  EXPECT_EQ(before_update > 0, GetParam().zero == 3);
  EXPECT_LT(before_update, whole.calls);
}

INSTANTIATE_TEST_SUITE_P(Cases, RankFailures,
                         testing::Values(Case{"Zero3Bf16", "bf16", "adamw", 3}, Case{"Zero3", "fp32", "sgd", 3},
                                         Case{"Zero1Bf16", "bf16", "adamw", 1}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace colossal::train::rank_failures_test
