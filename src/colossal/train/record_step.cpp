#include "colossal/train/record_step.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/decorators/recording.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/memory/device_meter.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/train/engine.h"
#include "colossal/train/placed_model.h"
#include "colossal/train/step_rule.h"

namespace colossal::train {
namespace {

std::vector<StepMemory::Point> curve_of(const std::vector<memory::Account::Point>& points) {
  using memory::Kind;
  std::vector<StepMemory::Point> curve;
  curve.reserve(points.size());
  for (const memory::Account::Point& point : points) {
    const auto bytes = [&](Kind kind) { return point.live[static_cast<size_t>(kind)]; };
    curve.push_back({.event = point.at,
                     .kinds = {.parameters = bytes(Kind::Parameters),
                               .gradients = bytes(Kind::Gradients),
                               .states = bytes(Kind::States),
                               .activations = bytes(Kind::Activations),
                               .buffers = bytes(Kind::Buffers),
                               .host = point.host}});
  }
  return fewer_points(curve, kCurvePoints);
}

/// Runs a part of a step. If LibTorch lacks one of its operators on meta, the error names the keys that choose them,
/// which are keys().
template <class Keys, class Part>
void on_shapes(const Keys& keys, const Part& part) {
  try {
    part();
  } catch (const c10::Error& error) {
    throw Error("record",
                concat("the step must run on tensors without data (at::kMeta): got an operator of ", keys(),
                       " that does not (", missing_operator(error), "); choose another, or train without a plan"));
  }
}

std::string keys_of_pass(const ConfiguredRun& run) {
  const run::Config& config = run.config;
  const bool has_folder = !config.model.from.empty();
  std::string keys =
      concat(has_folder ? "model.from = \"" : "model.name = \"", has_folder ? config.model.from : config.model.name,
             "\" (architecture ", run.models.main().shape.architecture->name, ")");
  if (config.precision.mode == "fp8")
    keys += concat(", precision.fp8_scaling = \"", config.precision.fp8.scaling, "\"");
  if (config.parallel.compress != "none") keys += concat(", parallel.compress = \"", config.parallel.compress, "\"");
  return keys;
}

/// `rows`: null = full samples, each row one document.
RecordedStep second_step(comm::RecordingWorld& world, const ConfiguredRun& run, const tensor::Batch* rows) {
  const run::Config& config = run.config;
  const tensor::MeantDevice meant(simulated_by_meta(config.run));
  memory::Account account(memory::counted_on(at::kMeta), [&world] { return world.event_count(); });
  std::unique_ptr<Engine> engine;
  const auto keys = [&] {
    return engine && engine->is_updating() ? concat("optimizer.name = \"", config.optimizer.name, "\"")
                                           : keys_of_pass(run);
  };
  on_shapes(keys, [&] { engine = initialize(world, config, run.models, at::kMeta); });
  // Only sizes matter for the events, but the host checks values, so they must be valid.
  const auto copy = [](const tensor::Field& field) { return field.tensor.clone(); };  // which the account counts
  tensor::Batch batch = rows ? rows->map(copy) : run::batch_of_ones(engine->objective(), config);
  for (const std::string& added : engine->objective().added_fields()) batch = batch.without(added);
  const std::unique_ptr<StepRule> rule = run.models.make_rule(*engine);
  const auto step = [&] { on_shapes(keys, [&] { rule->step(*engine, [&] { return batch; }); }); };
  step();
  world.clear();
  account.reset_peaks();
  account.begin_curve();
  const comm::RecordingWorld::Operations operations(world, comm::RecordingWorld::Detail::All);
  step();
  StepMemory memory = step_memory(account.usage());
  memory.curve = curve_of(account.end_curve());
  if (const auto use = engine->device_use()) memory.budget_bytes = use->peak;
  if (engine->tiers()) memory.budget_host_bytes = engine->tiers()->counts().peak_host_bytes;
  const RecomputeChoice& choice = engine->recomputation();
  RecordedStep recorded{world.events(), std::move(memory)};
  if (choice.is_chosen) recorded.recompute = describe(choice);
  recorded.cache_bytes = rule->cache_bytes();
  if (recorded.cache_bytes == 0) return recorded;
  on_shapes(keys, [&] { engine->pack(); });
  recorded.panel_bytes = engine->panel_bytes();
  return recorded;
}

RecordedStep recorded_of(const ConfiguredRun& run, int rank, const tensor::Batch* rows) {
  const auto simulated = comm::make_simulated_world(rank, static_cast<int>(run.config.parallel.ranks()));
  comm::RecordingWorld world(*simulated);
  return second_step(world, run, rows);
}

}  // namespace

StepMemory step_memory(const memory::Account::Usage& usage) {
  using memory::Kind;
  return {.kinds = {.parameters = usage.peak_of(Kind::Parameters),
                    .gradients = usage.peak_of(Kind::Gradients),
                    .states = usage.peak_of(Kind::States),
                    .activations = usage.peak_of(Kind::Activations),
                    .buffers = usage.peak_of(Kind::Buffers),
                    .host = usage.peak_of(Kind::Host)},
          .peak_bytes = usage.peak_device,
          .peak_event = usage.moment};
}

RecordedStep record_step(const ConfiguredRun& run, int rank) { return recorded_of(run, rank, nullptr); }

RecordedStep record_step(const ConfiguredRun& run, int rank, const tensor::Batch& rows) {
  return recorded_of(run, rank, &rows);
}

}  // namespace colossal::train
