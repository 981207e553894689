// Does the executor keep to the schedule, and what does it cost itself? Sleeps stand for work, so that a busy machine
// with few cores can show it; ranks are threads. Peers: the simulator with the same costs; the same passes in a plain
// loop.
//
//   colossal_pipeline_bench [ranks = 4] [micro-batches = 8] [ms = 100]
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/parallel/pipeline/executor.h"
#include "colossal/schedule/make.h"

namespace colossal {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int kRounds = 3;

void sleep(double seconds) { std::this_thread::sleep_for(Seconds(seconds)); }

/// Returns x after a delay. Backward returns the gradient after another delay, followed by the "weight gradient", which
/// is deferred if the schedule says so.
struct Nap : torch::autograd::Function<Nap> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double forward, double input, double weight,
                            int64_t deferred) {
    context->saved_data["input"] = input;
    context->saved_data["weight"] = weight;
    context->saved_data["deferred"] = deferred;
    sleep(forward);
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    sleep(context->saved_data["input"].toDouble());
    auto* deferred = reinterpret_cast<nn::DeferredGradients*>(context->saved_data["deferred"].toInt());
    const double weight = context->saved_data["weight"].toDouble();
    if (deferred->active())
      deferred->add([weight] { sleep(weight); });
    else
      sleep(weight);
    const at::Tensor none;
    return {gradients[0], none, none, none, none};
  }
};

/// Runs `schedule` kRounds times on threads; round(executor, index, train) is called on each rank and calls train once.
template <class MakeStage, class Round>
void run(const schedule::Schedule& schedule, const MakeStage& make_stage, const Round& round) {
  comm::run_ranks(schedule.placement.ranks(), [&](comm::World& world) {
    comm::Mesh mesh(world, {{"pipeline", world.size()}});
    nn::DeferredGradients deferred;
    parallel::PipelineExecutor executor(schedule,
                                        {&mesh, &mesh.group("tensor"), &deferred, at::TensorOptions(at::kFloat)});
    const parallel::StageFunction stage = make_stage(deferred);
    std::vector<parallel::PassedState> passed;  // one state, which every stage reads and writes
    for (int k = 0; k + 1 < schedule.placement.stages(); ++k) passed.push_back({.from = k, .to = k + 1, .sizes = {1}});
    for (int i = 0; i < kRounds; ++i) {
      mesh.group("pipeline").barrier().wait();
      round(executor, i, [&] { executor.train(stage, passed, {}); });
    }
  });
}

at::Tensor first_input() { return at::ones({1}).requires_grad_(); }

/// Seconds from the first step to the end of the last, the best of the rounds.
double measured_makespan(const schedule::Schedule& schedule, const schedule::Costs& costs) {
  const schedule::Placement& place = schedule.placement;
  // Fraction of a rank's work that one stage has (schedule::cost_of).
  const double share = static_cast<double>(place.pipes()) / place.chunks();
  const auto make_stage = [&](nn::DeferredGradients& deferred) -> parallel::StageFunction {
    return [&, deferred = reinterpret_cast<int64_t>(&deferred)](int stage, int, std::vector<at::Tensor> states) {
      const at::Tensor y = Nap::apply(stage == 0 ? first_input() : states[0], share * costs.forward,
                                      share * costs.backward_input, share * costs.backward_weight, deferred);
      states[0] = stage + 1 == place.stages() ? y.sum() : y;
      return states;
    };
  };
  std::vector<std::vector<std::vector<schedule::Event>>> events(
      kRounds, std::vector<std::vector<schedule::Event>>(place.ranks()));
  run(schedule, make_stage, [&](const parallel::PipelineExecutor& executor, int i, const auto& train) {
    train();
    events[i][executor.rank()] = executor.events();
  });
  double best = 1e30;
  for (const auto& ranks : events) {
    std::vector<schedule::Event> all;
    for (const auto& of_rank : ranks) all.insert(all.end(), of_rank.begin(), of_rank.end());
    best = std::min(best, schedule::make_timeline(all, place).makespan);
  }
  return best;
}

void compare_with_simulator(int ranks, int micro_batches, double seconds) {
  const schedule::Costs costs{.forward = seconds, .backward_input = seconds, .backward_weight = seconds};
  std::printf(
      "%d ranks, %d micro-batches; forward, backward, weights %.1f ms each\nschedule           simulated ms   measured "
      "ms    ratio\n",
      ranks, micro_batches, 1e3 * seconds);
  for (const schedule::Family& family : schedule::families()) {
    const schedule::Options options{
        .name = family.name, .stages = ranks, .micro_batches = micro_batches, .costs = costs};
    try {
      schedule::check_options(options);
    } catch (const std::exception& error) {
      std::printf("%-16s left out: %s\n", family.name, error.what());
      continue;
    }
    const schedule::Schedule schedule = schedule::make_schedule(options);
    const double simulated = schedule::simulate(schedule, costs).makespan,
                 measured = measured_makespan(schedule, costs);
    std::printf("%-16s %14.1f %13.1f %8.3f\n", family.name, 1e3 * simulated, 1e3 * measured, measured / simulated);
  }
}

/// Stages that do next to nothing: what is left is the executor, autograd and, with several ranks, transfers.
at::Tensor tiny_stage(int stage, int stages, const at::Tensor& input) {
  const at::Tensor x = stage == 0 ? first_input() : input;
  return stage + 1 == stages ? x.sum() : x * 2;
}

/// Returns the microseconds per step of rank 0's list, the best of the rounds.
double step_time(const schedule::Schedule& schedule) {
  const int stages = schedule.placement.stages();
  double best = 1e30;
  run(
      schedule,
      [&](nn::DeferredGradients&) -> parallel::StageFunction {
        return [stages](int stage, int, std::vector<at::Tensor> states) {
          states[0] = tiny_stage(stage, stages, states[0]);
          return states;
        };
      },
      [&](const parallel::PipelineExecutor& executor, int, const auto& train) {
        const auto begin = Clock::now();
        train();
        const double seconds = Seconds(Clock::now() - begin).count();
        if (executor.rank() == 0) best = std::min(best, 1e6 * seconds / static_cast<double>(executor.events().size()));
      });
  return best;
}

/// Returns the same for a plain loop over the passes of one rank; forward and backward count as one step each.
double plain_step_time(int micro_batches) {
  double best = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < micro_batches; ++i) tiny_stage(0, 1, {}).backward();
    best = std::min(best, 1e6 * Seconds(Clock::now() - begin).count() / (2 * micro_batches));
  }
  return best;
}

void show_overhead() {
  constexpr int kMicroBatches = 512;
  const auto schedule = [](int ranks) {
    return schedule::make_schedule({.name = "1f1b", .stages = ranks, .micro_batches = kMicroBatches});
  };
  const double plain = plain_step_time(kMicroBatches), alone = step_time(schedule(1)), two = step_time(schedule(2));
  std::printf(
      "\nsteps without work, us each\nplain loop             %8.1f\nexecutor, 1 rank       %8.1f   of its own "
      "%.1f\nexecutor, 2 ranks      %8.1f   sends and receives are steps, too\n",
      plain, alone, alone - plain, two);
}

}  // namespace
}  // namespace colossal

int main(int count, char** words) {
  const int ranks = count > 1 ? std::atoi(words[1]) : 4, micro_batches = count > 2 ? std::atoi(words[2]) : 8;
  const double milliseconds = count > 3 ? std::atof(words[3]) : 100;
  colossal::compare_with_simulator(ranks, micro_batches, milliseconds / 1e3);
  colossal::show_overhead();
}
