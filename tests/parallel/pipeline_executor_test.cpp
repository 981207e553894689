// The executor on a chain of small stages. Every schedule gives the gradients of one process, holds as many
// activations as simulated, and sends the elements of the formula; a lost transfer is noticed.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/parameter.h"
#include "colossal/parallel/pipeline/executor.h"
#include "colossal/schedule/make.h"
#include "support/decorated_world.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::parallel::pipeline_executor_test {
namespace {

using comm::World;

constexpr int64_t kRows = 3, kWidth = 5;

schedule::Schedule schedule_of(const std::string& name, int ranks, int micro_batches) {
  return schedule::make_schedule({.name = name, .stages = ranks, .micro_batches = micro_batches});
}

at::Tensor random(int64_t seed, std::vector<int64_t> shape) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::randn(shape, generator, at::kDouble);
}

/// Stage k computes x -> tanh(x Wt), the last one its sum. Stage 0 reads data.
struct Chain {
  explicit Chain(int stages) : stages(stages) {
    for (int k = 0; k < stages; ++k) weights.push_back(random(k, {kWidth, kWidth}).requires_grad_());
  }
  at::Tensor operator()(int stage, int micro_batch, const at::Tensor& input) {
    const at::Tensor x = stage == 0 ? random(100 + micro_batch, {kRows, kWidth}) : input;
    const at::Tensor y = nn::linear(x, weights[stage], {}, &deferred).tanh();
    return stage + 1 == stages ? y.square().sum() : y;
  }
  int stages;
  nn::DeferredGradients deferred;
  std::vector<at::Tensor> weights;
};

/// Returns the list of one state, which every stage reads and writes.
std::vector<PassedState> one_state(const schedule::Schedule& schedule, std::vector<int64_t> sizes = {kRows, kWidth}) {
  std::vector<PassedState> passed;
  for (int k = 0; k + 1 < schedule.placement.stages(); ++k) passed.push_back({.from = k, .to = k + 1, .sizes = sizes});
  return passed;
}

/// Returns a stage function that computes stage(k, micro_batch, x) on that state.
template <class Stage>
StageFunction of_one(Stage stage) {
  return [stage](int k, int micro_batch, std::vector<at::Tensor> states) mutable {
    return std::vector<at::Tensor>{stage(k, micro_batch, states[0])};
  };
}

std::vector<at::Tensor> serial_gradients(int stages, int micro_batches) {
  Chain chain(stages);
  for (int i = 0; i < micro_batches; ++i) {
    at::Tensor x;
    for (int k = 0; k < stages; ++k) x = chain(k, i, x);
    x.backward();
  }
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& w : chain.weights) gradients.push_back(w.grad());
  return gradients;
}

constexpr int kRepeats = 2;

/// Runs `schedule` repeatedly, each rank in the world that decorate(world) makes, and calls see(world, executor,
/// chain) on each rank.
template <class Decorate, class See>
void run_decorated(const schedule::Schedule& schedule, const Decorate& decorate, const See& see,
                   std::chrono::milliseconds work = {}) {
  comm::run_ranks(schedule.placement.ranks(), [&](World& world) {
    decltype(auto) decorated = decorate(world);
    comm::Mesh mesh(decorated, {{"pipeline", world.size()}});
    Chain chain(schedule.placement.stages());
    PipelineExecutor executor(schedule,
                              {&mesh, &mesh.group("tensor"), &chain.deferred, at::TensorOptions(at::kDouble)});
    const auto stage = of_one([&](int k, int micro_batch, const at::Tensor& input) {
      std::this_thread::sleep_for(work);
      return chain(k, micro_batch, input);
    });
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      for (at::Tensor& w : chain.weights) w.mutable_grad() = at::Tensor();
      executor.train(stage, one_state(schedule), {});
    }
    see(world, executor, chain);
  });
}

template <class See>
void run(const schedule::Schedule& schedule, const See& see, std::chrono::milliseconds work = {}) {
  run_decorated(schedule, [](World& world) -> World& { return world; }, see, work);
}

std::vector<std::tuple<std::string, int>> all() {
  std::vector<std::tuple<std::string, int>> list;
  for (const schedule::Family& family : schedule::families())
    for (const int ranks : {1, 2, 4}) {
      if (std::string(family.name) == "chimera" && ranks == 1) continue;
      list.emplace_back(family.name, ranks);
    }
  return list;
}

class Executor : public testing::TestWithParam<std::tuple<std::string, int>> {};

/// A hidden state in each direction per boundary and micro-batch, and nothing else, even at the start.
TEST_P(Executor, GivesTheGradientsOfOneProcessWithinTheSchedule) {
  const auto& [name, ranks] = GetParam();
  const auto schedule = schedule_of(name, ranks, 3 * ranks);
  const auto want = serial_gradients(schedule.placement.stages(), schedule.micro_batches);
  const schedule::Timeline simulated = schedule::simulate(schedule, schedule::Costs{});
  std::mutex mutex;
  int64_t sent = 0;
  std::vector<at::Tensor> sums(want.size());  // Chimera's copies are not reduced here
  run(schedule, [&](World& world, const PipelineExecutor& executor, const Chain& chain) {
    const std::lock_guard lock(mutex);
    EXPECT_DOUBLE_EQ(executor.peak_live(), simulated.peak_live[world.rank()]) << "rank " << world.rank();
    const auto& list = schedule.ranks[world.rank()];
    const auto transfers = std::count_if(list.begin(), list.end(), [](const schedule::PipelineOp& step) {
      return step.action >= schedule::Action::SendForward && step.action <= schedule::Action::ReceiveBackward;
    });
    EXPECT_EQ(world.traffic().total().calls, kRepeats * transfers) << "rank " << world.rank();
    sent += static_cast<int64_t>(world.traffic().total("pipeline", "send").elements);
    for (size_t k = 0; k < sums.size(); ++k) {
      const at::Tensor& grad = chain.weights[k].grad();
      if (grad.defined()) sums[k] = sums[k].defined() ? sums[k] + grad : grad;
    }
  });
  for (size_t k = 0; k < want.size(); ++k)
    test::expect_close(sums[k], want[k], kRows * schedule.micro_batches, concat("stage ", k));
  const schedule::Placement& place = schedule.placement;
  int64_t boundaries = 0;  // boundaries between ranks in the pipe of a micro-batch
  for (int k = 0; k + 1 < place.stages(); ++k) boundaries += place.rank_of(0, k) != place.rank_of(0, k + 1);
  EXPECT_EQ(sent, kRepeats * 2 * schedule.micro_batches * boundaries * kRows * kWidth);
}

/// A transport whose sends return only after the message was received. NCCL may do this for a pair's first message,
/// and for later messages of a busy group.
class Blocks final : public comm::GroupDecorator {
 public:
  using GroupDecorator::GroupDecorator;
  comm::Work issue(const comm::Call& call) override {
    inner_->issue(call).wait();
    at::Tensor answer = at::zeros({1});
    if (call.collective == comm::Collective::Send) inner_->recv(answer, call.peer).wait();
    if (call.collective == comm::Collective::Recv) inner_->send(answer, call.peer).wait();
    return {};
  }
};

TEST_P(Executor, AvoidsDeadlocksWithBlockingTransfers) {
  const auto& [name, ranks] = GetParam();
  const auto schedule = schedule_of(name, ranks, 2 * ranks);
  const auto blocking = [](World& world) {
    return test::DecoratedWorld(
        world, [](std::shared_ptr<comm::Group> group) { return std::make_shared<Blocks>(std::move(group)); });
  };
  run_decorated(schedule, blocking, [&](World& world, const PipelineExecutor& executor, const Chain&) {
    const auto& list = schedule.ranks[world.rank()];
    // all steps except each chunk's Reduce and the Update
    EXPECT_EQ(executor.events().size() + schedule.placement.chunks() + 1, list.size());
  });
}

INSTANTIATE_TEST_SUITE_P(Families, Executor, testing::ValuesIn(all()), [](const auto& info) {
  std::string name = concat(std::get<0>(info.param), "_", std::get<1>(info.param));
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
});

TEST(ExecutorMutation, ChangesTheGradientsIfATransferIsLost) {
  const auto schedule = schedule_of("1f1b", 2, 4);
  const auto want = serial_gradients(2, 4);
  std::atomic<int> wrong = 0;
  const auto loses = [](World& world) { return test::losing_a_transfer(world, 5); };  // the second of the second run
  run_decorated(schedule, loses, [&](World& world, const PipelineExecutor&, const Chain& chain) {
    const at::Tensor& grad = chain.weights[world.rank()].grad();
    wrong += (grad - want[world.rank()]).abs().max().item<double>() > 1e-6;
  });
  EXPECT_GE(wrong, 1);
}

// Sleeps simulate work. Bounds are generous here; benchmarks/pipeline measures precisely.
TEST(ExecutorTimes, TakesAboutAsLongAsSimulated) {
  using namespace std::chrono_literals;
  const auto schedule = schedule_of("gpipe", 4, 8);
  // Only forward passes sleep: 8 of them on each rank, and 3 more before the last rank starts.
  run(
      schedule,
      [&](World&, const PipelineExecutor& executor, const Chain&) {
        double first = 1e300, last = 0;
        for (const schedule::Event& event : executor.events())
          if (event.step.action == schedule::Action::Forward) {
            first = std::min(first, event.begin);
            last = std::max(last, event.end);
          }
        EXPECT_GE(last - first, 8 * 0.01);
        EXPECT_LE(last - first, 8 * 0.05);
      },
      10ms);
}

TEST(ExecutorForward, PassesOnceThroughEveryStage) {
  const auto schedule = schedule_of("zero-bubble-v", 2, 4);
  Chain reference(4);
  comm::run_ranks(2, [&](World& world) {
    comm::Mesh mesh(world, {{"pipeline", 2}});
    Chain chain(4);
    PipelineExecutor executor(schedule,
                              {&mesh, &mesh.group("tensor"), &chain.deferred, at::TensorOptions(at::kDouble)});
    const auto stage = of_one([&](int k, int i, const at::Tensor& x) { return chain(k, i, x); });
    const auto results = executor.forward(stage, 3, one_state(schedule));
    EXPECT_EQ(results.size(), world.rank() == 0 ? 3u : 0u);  // the last stage of a V is where the first is
    for (size_t i = 0; i < results.size(); ++i) {
      at::Tensor x;
      for (int k = 0; k < 4; ++k) x = reference(k, static_cast<int>(i), x);
      EXPECT_TRUE(at::equal(results[i], x.detach())) << i;
    }
  });
}

TEST(ExecutorErrors, ReportsAFailedStageAndKeepsNothing) {
  const std::string message = test::thrown_message([&] {
    comm::run_ranks(2, [&](World& world) {
      comm::Mesh mesh(world, {{"pipeline", 2}});
      nn::DeferredGradients deferred;
      PipelineExecutor executor(schedule_of("1f1b", 2, 4),
                                {&mesh, &mesh.group("tensor"), &deferred, at::TensorOptions(at::kDouble)});
      executor.train(of_one([&](int stage, int i, const at::Tensor& x) {
                       require(stage == 0 || i < 1, "test", "stage 1 is broken");
                       return stage == 0 ? at::ones({2, 2}, at::kDouble).requires_grad_() * 2 : x.sum();
                     }),
                     one_state(executor.schedule(), {2, 2}), {});
    });
  });
  EXPECT_NE(message.find("stage 1 is broken"), std::string::npos) << message;
}

/// Returns the error of a pipeline of two stages if the first leaves `made` although a state of [2, 2] in fp64 is
/// expected.
std::string refusal_of(const at::Tensor& made) {
  return test::thrown_message([&] {
    comm::run_ranks(2, [&](World& world) {
      comm::Mesh mesh(world, {{"pipeline", 2}});
      nn::DeferredGradients deferred;
      PipelineExecutor executor(schedule_of("1f1b", 2, 4),
                                {&mesh, &mesh.group("tensor"), &deferred, at::TensorOptions(at::kDouble)});
      executor.train(of_one([&](int stage, int, const at::Tensor& x) { return stage == 0 ? made : x.sum(); }),
                     one_state(executor.schedule(), {2, 2}), {});
    });
  });
}

TEST(ExecutorErrors, NamesUnexpectedStates) {
  EXPECT_THAT(refusal_of(at::ones({2, 3}, at::kDouble)),
              testing::HasSubstr("stage 0 must leave state `hidden` in the sizes [2, 2], which stage 1 expects: got "
                                 "[2, 3]"));
  EXPECT_THAT(refusal_of(at::ones({2, 2}, at::kFloat)),
              testing::HasSubstr("stage 0 must leave state `hidden` in Double, which stage 1 expects: got Float"));
  EXPECT_THAT(refusal_of({}), testing::HasSubstr("stage 0 must leave state `hidden`, which stage 1 reads: got an"));
}

TEST(PipelineExecutor, RunsNoBackwardPassBeforeTheFirstTrainedStage) {
  constexpr int kMicroBatches = 4;
  for (const char* name : {"1f1b", "interleaved", "zero-bubble-h1", "zero-bubble-v", "chimera"}) {
    const schedule::Schedule schedule = schedule_of(name, 2, kMicroBatches);
    const int stages = schedule.placement.stages();
    const std::vector<at::Tensor> want = serial_gradients(stages, kMicroBatches);
    for (int first = 0; first < stages; ++first) {
      std::vector<at::Tensor> sums(stages);
      std::mutex mutex;
      comm::run_ranks(2, [&](World& world) {
        comm::Mesh mesh(world, {{"pipeline", 2}});
        Chain chain(stages);
        for (int k = 0; k < first; ++k) chain.weights[k].requires_grad_(false);
        PipelineExecutor executor(
            schedule, {&mesh, &mesh.group("tensor"), &chain.deferred, at::TensorOptions(at::kDouble), first});
        std::vector<PassedState> passed = one_state(schedule);
        for (PassedState& state : passed) state.has_gradient = state.from >= first;
        executor.train(of_one([&](int k, int micro_batch, const at::Tensor& input) {
                         EXPECT_EQ(input.defined() && input.requires_grad(), k > first) << name;
                         return chain(k, micro_batch, input);
                       }),
                       passed, {});
        const std::lock_guard lock(mutex);
        for (int k = 0; k < stages; ++k)  // each pipe of chimera has some of the micro-batches
          if (const at::Tensor g = chain.weights[k].grad(); g.defined()) sums[k] = sums[k].defined() ? sums[k] + g : g;
      });
      for (int k = 0; k < stages; ++k) {
        ASSERT_EQ(sums[k].defined(), k >= first) << name << ", stage " << k;
        if (k >= first) test::expect_close(sums[k], want[k], kRows * kMicroBatches * kWidth, name);
      }
    }
  }
}

}  // namespace
}  // namespace colossal::parallel::pipeline_executor_test
