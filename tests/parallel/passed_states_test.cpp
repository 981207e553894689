// States that pass stages without being read there. Under every kind of schedule the gradients equal one process's,
// and the number of elements sent follows from the routes over the ranks.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "colossal/base/error.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/nn/linear.h"
#include "colossal/parallel/pipeline/executor.h"
#include "colossal/parallel/pipeline/transfers.h"
#include "colossal/schedule/make.h"
#include "support/decorated_world.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::parallel::passed_states_test {
namespace {

using comm::World;
using testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kRows = 3, kWidth = 5, kSkip = 7;
constexpr int kStages = 4;

at::Tensor random(int64_t seed, std::vector<int64_t> shape) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::randn(shape, generator, at::kDouble);
}

/// A chain with three states. State 0 passes through every stage. Stage 0 makes state 1; stage 3 reads it, and stage 2
/// as well if `is_read_twice`. State 2 is an index without gradient, made by stage 0 and read by stage 3.
struct Skips {
  explicit Skips(bool is_read_twice) : is_read_twice(is_read_twice) {
    for (int k = 0; k < kStages; ++k) weights.push_back(random(k, {kWidth, kWidth}).requires_grad_());
    weights.push_back(random(10, {kSkip, kWidth}).requires_grad_());
    for (int k = 2; k < kStages; ++k) weights.push_back(random(10 + k, {kWidth, kSkip}).requires_grad_());
  }
  Tensors operator()(int stage, int micro_batch, Tensors states) {
    const auto linear = [&](const at::Tensor& x, int weight) { return nn::linear(x, weights[weight], {}, &deferred); };
    at::Tensor &x = states[0], &skip = states[1], &index = states[2];
    if (stage == 0) {
      x = random(100 + micro_batch, {kRows, kWidth});
      skip = linear(x, kStages).tanh();
      index = (at::arange(kRows) + micro_batch).remainder(kRows);
    }
    if (stage == 2 && is_read_twice) x = x + linear(skip, kStages + 1);
    if (stage == 3) {
      x = x.index_select(0, index);
      if (micro_batch % 2 == 0) x = x + linear(skip, kStages + 2);  // otherwise the gradient is zeros
    }
    x = linear(x, stage).tanh();
    if (stage + 1 == kStages) return {x.square().sum()};
    return states;
  }
  std::vector<PassedState> passed() const {
    std::vector<PassedState> list;
    for (int k = 0; k + 1 < kStages; ++k)
      list.push_back({.state = 0, .from = k, .to = k + 1, .sizes = {kRows, kWidth}});
    const PassedState skip{.state = 1, .sizes = {kRows, kSkip}, .name = "skip"};
    for (const auto& [from, to] :
         is_read_twice ? std::vector<std::pair<int, int>>{{0, 2}, {2, 3}} : std::vector<std::pair<int, int>>{{0, 3}}) {
      list.push_back(skip);
      list.back().from = from, list.back().to = to;
    }
    list.push_back({.state = 2, .from = 0, .to = 3, .sizes = {kRows}, .dtype = at::kLong, .has_gradient = false});
    return list;
  }
  bool is_read_twice;
  nn::DeferredGradients deferred;
  Tensors weights;
};

Tensors serial_gradients(bool is_read_twice, int micro_batches) {
  Skips skips(is_read_twice);
  for (int i = 0; i < micro_batches; ++i) {
    Tensors states(3);
    for (int k = 0; k < kStages; ++k) states = skips(k, i, std::move(states));
    states[0].backward();
  }
  Tensors gradients;
  for (const at::Tensor& w : skips.weights) gradients.push_back(w.grad());
  return gradients;
}

struct Case {
  std::string schedule;
  int ranks;
  /// Number of route parts between ranks: for state 0; for state 1 to stage 2 and on to stage 3; for a state from
  /// stage 0 to 3
  int through, twice, once;
};

/// Looped stages are on ranks 0, 1, 0, 1: rank 0 keeps the state that stage 2 reads. A V is on 0, 1, 1, 0: rank 0
/// keeps the state that stage 3 reads.
std::vector<Case> cases() {
  return {{"gpipe", 4, 3, 3, 3},         {"1f1b", 4, 3, 3, 3},           {"chimera", 4, 3, 3, 3},
          {"interleaved", 2, 3, 1, 1},   {"zero-bubble-h1", 4, 3, 3, 3}, {"zero-bubble-h2", 4, 3, 3, 3},
          {"zero-bubble-v", 2, 2, 2, 0}, {"v-half", 2, 2, 2, 0},         {"v-min", 2, 2, 2, 0},
          {"hanayo", 2, 2, 2, 0}};
}

class PassedStates : public testing::TestWithParam<Case> {};

struct Sums {
  Tensors gradients;
  double elements = 0;
};

/// Runs one training step on all ranks; returns the number of elements sent and the sums of gradients.
Sums run(const schedule::Schedule& schedule, bool is_read_twice, int64_t lost_transfer = -1) {
  Sums sums;
  std::mutex mutex;
  comm::run_ranks(schedule.placement.ranks(), [&](World& plain) {
    auto losing =
        lost_transfer >= 0
            ? std::make_unique<test::DecoratedWorld>(test::losing_a_transfer(plain, static_cast<int>(lost_transfer)))
            : nullptr;
    World& world = losing ? static_cast<World&>(*losing) : plain;
    comm::Mesh mesh(world, {{"pipeline", world.size()}});
    Skips skips(is_read_twice);
    PipelineExecutor executor(schedule,
                              {&mesh, &mesh.group("tensor"), &skips.deferred, at::TensorOptions(at::kDouble)});
    const auto stage = [&](int k, int i, Tensors states) {
      if (k == 1) EXPECT_FALSE(states[1].defined() || states[2].defined()) << "what it does not read passes it";
      return skips(k, i, std::move(states));
    };
    executor.train(stage, skips.passed(), {});
    const std::lock_guard lock(mutex);
    sums.elements += plain.traffic().total("pipeline", "send").elements;
    sums.gradients.resize(skips.weights.size());
    for (size_t i = 0; i < skips.weights.size(); ++i) {
      const at::Tensor& grad = skips.weights[i].grad();
      at::Tensor& sum = sums.gradients[i];
      if (grad.defined()) sum = sum.defined() ? sum + grad : grad;
    }
  });
  return sums;
}

TEST_P(PassedStates, GivesTheGradientsOfOneProcessAndSendsTheRoutes) {
  const Case& c = GetParam();
  const auto schedule = schedule::make_schedule({.name = c.schedule, .stages = c.ranks, .micro_batches = 2 * kStages});
  ASSERT_EQ(schedule.placement.stages(), kStages);
  for (const bool is_read_twice : {true, false}) {
    const Tensors want = serial_gradients(is_read_twice, schedule.micro_batches);
    const Sums sums = run(schedule, is_read_twice);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(sums.gradients[i].defined(), want[i].defined()) << i;
      if (want[i].defined())
        test::expect_close(sums.gradients[i], want[i], kRows * kSkip * schedule.micro_batches, concat("weight ", i));
    }
    const int64_t there_and_back =
        2 * (c.through * kRows * kWidth + (is_read_twice ? c.twice : c.once) * kRows * kSkip);
    EXPECT_EQ(sums.elements, static_cast<double>(schedule.micro_batches * (there_and_back + c.once * kRows)));
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, PassedStates, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.schedule;
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
});

TEST(PassedStatesFault, ChangesTheGradientsIfATransferIsLost) {
  const auto schedule = schedule::make_schedule({.name = "1f1b", .stages = 4, .micro_batches = 4});
  const Tensors want = serial_gradients(false, 4), got = run(schedule, false, 1).gradients;
  bool differs = false;
  for (size_t i = 0; i < want.size(); ++i)
    if (want[i].defined()) differs = differs || (got[i] - want[i]).abs().max().item<double>() > 1e-6;
  EXPECT_TRUE(differs);
}

/// Returns a text like "2 local relay" for each arrival or departure of a stage.
std::string text_of(const std::vector<StateRoutes::Stop>& stops) {
  std::string text;
  for (const auto& stop : stops)
    text += concat(text.empty() ? "" : ", ", stop.passed, ":", stop.stage, stop.is_local ? " local" : "",
                   stop.is_relay ? " relay" : "");
  return text;
}

TEST(StateRoutes, PassesThroughNeighboursUnlessTheRankHasALaterStage) {
  const schedule::Placement vee = schedule::Placement::zigzag(3, 2);  // ranks 0, 1, 2, 2, 1, 0
  const StateRoutes routes(vee, {{.from = 1, .to = 4}, {.from = 1, .to = 5}, {.state = 3, .from = 0, .to = 2}});
  EXPECT_EQ(routes.states(), 4);
  EXPECT_EQ(text_of(routes.departures(1)), "0:4 local, 1:4 local, 2:2 relay");
  EXPECT_EQ(text_of(routes.arrivals(4)), "0:1 local, 1:1 local relay");
  EXPECT_EQ(text_of(routes.departures(4)), "1:5 relay");
  EXPECT_EQ(text_of(routes.arrivals(5)), "1:4");
  EXPECT_EQ(text_of(routes.arrivals(2)), "2:1");
  EXPECT_EQ(text_of(routes.arrivals(3)), "");
  for (const PassedState& wrong :
       {PassedState{.from = 2, .to = 2, .name = "skip"}, PassedState{.from = 0, .to = 6, .name = "skip"}})
    EXPECT_THAT(test::thrown_message([&] { StateRoutes(vee, {wrong}); }),
                HasSubstr("a state must pass forward between two of the 6 stages: got `skip` from stage "));
}

/// No tensor before the second border has a gradient, as with frozen parameters. No gradient is sent there, and stages
/// 0 and 1 run no backward pass.
TEST(StateRoutes, SendsOnlyExistingGradients) {
  const auto schedule = schedule::make_schedule({.name = "zero-bubble-h1", .stages = 3, .micro_batches = 3});
  std::atomic<int64_t> back = 0, passes = 0;
  comm::run_ranks(3, [&](World& world) {
    comm::Mesh mesh(world, {{"pipeline", 3}});
    nn::DeferredGradients deferred;
    at::Tensor weight = random(1, {kWidth, kWidth}).requires_grad_();
    PipelineExecutor executor(schedule, {&mesh, &mesh.group("tensor"), &deferred, at::TensorOptions(at::kDouble)});
    const auto stage = [&](int k, int i, Tensors states) -> Tensors {
      if (k == 0) return {random(i, {kRows, kWidth})};
      if (k == 1) return {states[0].tanh()};
      return {nn::linear(states[0], weight, {}, &deferred).square().sum()};
    };
    executor.train(stage,
                   {{.from = 0, .to = 1, .sizes = {kRows, kWidth}, .has_gradient = false},
                    {.from = 1, .to = 2, .sizes = {kRows, kWidth}, .has_gradient = false}},
                   {});
    back += static_cast<int64_t>(world.traffic().total("pipeline", "send", comm::Phase::Backward).elements);
    passes += weight.grad().defined();
  });
  EXPECT_EQ(back, 0);
  EXPECT_EQ(passes, 1);
}

}  // namespace
}  // namespace colossal::parallel::passed_states_test
