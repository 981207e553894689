// Training steps of large diffusion transformers on random inputs, in fp32: forward, backward, reduction, clipping and
// update. Ranks are threads of this process.
//
//   colossal_denoiser_bench stdit [rounds = 3] [steps = 4] [pairs = 2]
//     A table: an STDiT on one rank with both cores, and on two ranks by dsp and by ulysses, in turns.
//   colossal_denoiser_bench flux [steps = 3]
//     A line of JSON for beside_diffusers.py: a FLUX of 1 + 2 blocks of hidden 1,024, 1,024 patches and 256 words, with
//     all cores. Its seconds are the median of the steps without the first.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/denoiser.h"
#include "colossal/run/objective.h"
#include "colossal/train/engine.h"

namespace colossal {
namespace {

using Clock = std::chrono::steady_clock;

/// Learns given targets by their mean squared error. It opens no data.
class GivenTargets final : public run::Objective {
 public:
  explicit GivenTargets(models::ModelShape shape) : shape_(std::move(shape)) {}
  run::OpenedData open(const run::DataRequest&) const override { return {}; }
  tensor::Batch example(int64_t rows) const override {
    const tensor::Batch batch = models::example_noised(shape_, rows);
    return batch.with("targets", batch.field("noised"));
  }
  void check(const tensor::Batch& batch) const override { batch.at("targets"); }
  double weight(const tensor::Batch& batch) const override { return static_cast<double>(batch.rows()); }
  at::Tensor loss(const models::Model&, const models::States& end, const nn::ForwardContext& step) const override {
    const at::Tensor predicted = models::predicted_picture(shape_, end.at(0), *step.batch);
    return (predicted - step.batch->at("targets")).square().flatten(1).mean(1).sum();
  }

 private:
  models::ModelShape shape_;
};

/// Returns inputs of one row, the same on all ranks: noise for what is noised and for texts, and constants for the
/// numbers of a row.
tensor::Batch random_batch(const run::Objective& objective) {
  auto numbers = at::detail::createCPUGenerator(/*seed=*/1);
  return objective.example(1).map([&](const tensor::Field& field) {
    const at::Tensor& like = field.tensor;
    if (like.dim() == 1) return at::full(like.sizes(), 3.5, like.scalar_type());
    return at::randn(like.sizes(), numbers, at::TensorOptions(like.scalar_type()));
  });
}

struct Layout {
  std::string name;
  int ranks = 1;
  std::string mode = "gather";  // mode of sequence parallelism
};

struct Result {
  double seconds = 0;  // time of a step
  double sent = 0;     // elements that all ranks exchange in a step, for attention
  int64_t parameters = 0;
  std::vector<double> losses{};
};

/// Trains a model with all cores, the same number for each rank.
Result train(const models::ModelShape& shape, const Layout& layout, int64_t steps) {
  const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  Result result;
  std::mutex mutex;
  comm::run_ranks(layout.ranks,
                  [&](comm::World& world) {
                    at::set_num_threads(std::max(1, cores / layout.ranks));
                    run::Config config;
                    config.precision.mode = "fp32";
                    config.parallel.sequence = {.size = layout.ranks, .mode = layout.mode};
                    config.training.batch_size = 1;
                    config.training.steps = steps;
                    config.training.clip = 1;
                    config.optimizer.warmup_steps = 0;
                    const auto objective = std::make_shared<const GivenTargets>(shape);
                    const auto engine = train::initialize(
                        world, config, train::NamedModel{.shape = shape, .objective = objective}, at::kCPU);
                    const tensor::Batch batch = random_batch(*objective);
                    std::vector<double> seconds, losses;
                    world.traffic().reset();
                    for (int64_t step = 0; step < steps; ++step) {
                      engine->mesh().all().barrier().wait();
                      const auto began = Clock::now();
                      engine->zero_grad();
                      losses.push_back(engine->train_step(batch));
                      engine->step();
                      seconds.push_back(std::chrono::duration<double>(Clock::now() - began).count());
                    }
                    seconds.erase(seconds.begin());  // the first step allocates
                    std::sort(seconds.begin(), seconds.end());
                    const std::scoped_lock lock(mutex);
                    result.sent +=
                        world.traffic().total("sequence", "all_to_all").elements / static_cast<double>(steps);
                    result.seconds = std::max(result.seconds, seconds[seconds.size() / 2]);
                    result.losses = losses;
                    if (world.rank() != 0) return;
                    for (const nn::Parameter& p : engine->parameters()) result.parameters += p.spec.numel();
                  },
                  {.watchdog = std::chrono::minutes(10)});
  return result;
}

void compare_layouts(int64_t rounds, int64_t steps, int64_t pairs) {
  const models::ModelShape shape = models::built_in().resolve(
      {.name = "stdit3-tiny",
       .hidden = 384,
       .layers = 2 * pairs,
       .heads = 6,
       .ffn = 1536,
       .own = models::own_keys({"frames=16", "height=32", "width=32", "channels=4", "patch=2", "text=768"})});
  const std::vector<Layout> layouts{{"1 rank"}, {"2 ranks, dsp", 2, "dsp"}, {"2 ranks, ulysses", 2, "ulysses"}};
  std::vector<Result> best(layouts.size());
  for (int64_t round = 0; round < rounds; ++round)
    for (size_t i = 0; i < layouts.size(); ++i) {
      Result result = train(shape, layouts[i], steps);
      if (round > 0) result.seconds = std::min(result.seconds, best[i].seconds);
      best[i] = result;
    }
  std::printf("STDiT of %lld blocks of hidden 384, 16 frames of 256 places, %u cores\n",
              static_cast<long long>(2 * pairs), std::thread::hardware_concurrency());
  std::printf("%-18s%10s%8s%14s%12s\n", "", "seconds", "speed", "sent, a step", "last loss");
  for (size_t i = 0; i < layouts.size(); ++i)
    std::printf("%-18s%10.4f%8.2f%14.0f%12.6f\n", layouts[i].name.c_str(), best[i].seconds,
                best[0].seconds / best[i].seconds, best[i].sent, best[i].losses.back());
}

void print_flux(int64_t steps) {
  const Result result = train(
      models::built_in().resolve({.name = "flux-dev",
                                  .hidden = 1024,
                                  .layers = 3,
                                  .heads = 8,
                                  .ffn = 4096,
                                  .own = models::own_keys({"single=2", "height=64", "width=64", "text_tokens=256"})}),
      {"1 rank"}, steps);
  std::printf("{\"s\": %.6f, \"parameters\": %lld, \"losses\": [", result.seconds,
              static_cast<long long>(result.parameters));
  for (size_t i = 0; i < result.losses.size(); ++i) std::printf("%s%.6f", i == 0 ? "" : ", ", result.losses[i]);
  std::puts("]}");
}

}  // namespace
}  // namespace colossal

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  const auto number = [&](int index, int64_t otherwise) {
    return count > index ? std::max(int64_t{1}, static_cast<int64_t>(std::atoll(arguments[index]))) : otherwise;
  };
  try {
    if (what == "stdit")
      return colossal::compare_layouts(number(2, 3), std::max(int64_t{2}, number(3, 4)), number(4, 2)), 0;
    if (what == "flux") return colossal::print_flux(std::max(int64_t{2}, number(2, 3))), 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "usage: %s stdit [ROUNDS] [STEPS] [PAIRS] | flux [STEPS]\n", arguments[0]);
  return 2;
}
