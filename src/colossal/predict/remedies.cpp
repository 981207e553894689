#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/models/expert_keys.h"
#include "colossal/predict/rank_load.h"
#include "colossal/predict/roles.h"
#include "colossal/predict/search.h"
#include "colossal/predict/step.h"
#include "colossal/run/layout_keys.h"
#include "colossal/run/learned_parts.h"
#include "colossal/train/device_budget.h"

namespace colossal::predict {
namespace {

constexpr double kRemedySeconds = 20;
constexpr size_t kMaxRemedies = 40;
constexpr size_t kMaxSplits = 3;  // into micro-batches

/// A change of one kind. Changes of different kinds can be made together.
struct Change {
  int kind = 0;
  std::function<void(train::ConfiguredRun&)> make;
  bool is_enough = false;  // it makes the run fit alone
};

constexpr int kCapacity = 4;  // the kind of change
/// Capacities of experts that are tried, from the one that drops the fewest tokens.
constexpr double kCapacities[] = {2, 1.5, 1.25, 1};

int64_t rank_of_recompute(const std::string& name) { return name == "block" ? 2 : name == "selective" ? 1 : 0; }

bool uses_tiers(const plan::Remedy& remedy) {
  return remedy.table.find("\ndevice = ") != std::string::npos || remedy.table.find("\ndisk = ") != std::string::npos;
}

std::vector<Change> changes_of(const train::ConfiguredRun& now, const plan::Cluster& cluster) {
  const run::Config& config = now.config;
  std::vector<Change> changes;
  for (const char* recompute : {"selective", "block"})
    if (rank_of_recompute(recompute) > rank_of_recompute(config.memory.recompute))
      changes.push_back({0, [recompute](train::ConfiguredRun& c) {
                           c.config.memory.recompute = recompute;
                           c.config.memory.activations = 0;  // only "auto" may have it
                         }});
  if (config.parallel.copies() > 1)
    for (int64_t zero = config.parallel.zero + 1; zero <= 3; ++zero)
      changes.push_back({1, [zero](train::ConfiguredRun& c) { c.config.parallel.zero = zero; }});
  for (const run::Config& split : train::in_more_micro_batches(config, kMaxSplits))
    changes.push_back({2, [split](train::ConfiguredRun& c) {
                         c.config.parallel.pipeline.micro_batches = split.parallel.pipeline.micro_batches;
                         c.config.training.accumulate = split.training.accumulate;
                       }});
  for (const double capacity : kCapacities) {
    if (worst_rank_load(now) <= 1) break;
    const models::ModelShape shape = models::with_expert_capacity(now.models.main().shape, capacity);
    if (worst_rank_load({config, now.models.with_shape(shape)}) < worst_rank_load(now))
      changes.push_back({kCapacity, [shape](train::ConfiguredRun& c) { c.models = c.models.with_shape(shape); }});
  }
  if (config.memory.has_tiers()) return changes;
  const plan::Profile& profile = cluster.profile();
  if (!profile.device.shared && profile.host.bandwidth > 0)
    changes.push_back({3, [bytes = cluster.device_bytes()](train::ConfiguredRun& c) {
                         c.config = train::with_device_budget(c.config, bytes);
                       }});
  if (profile.device.shared && profile.disk.read > 0)
    changes.push_back({3, [](train::ConfiguredRun& c) { c.config.memory.disk = c.config.run.folder + "/disk"; }});
  return changes;
}

/// Returns the table of a remedy, with its capacity of experts if that changed.
std::string table_of(const train::ConfiguredRun& changed, const train::ConfiguredRun& before) {
  std::string table = run::layout_changes(changed.config, before.config);
  const double capacity = models::expert_keys_of(changed.models.main().shape).capacity;
  if (capacity == models::expert_keys_of(before.models.main().shape).capacity) return table;
  return concat(table, table.empty() ? "" : "\n", "[model.experts]\ncapacity = ", capacity, "\n");
}

/// Returns how a change changes what the run learns; empty = not at all.
std::string change_of_training(const train::ConfiguredRun& changed, const train::ConfiguredRun& before) {
  const double capacity = models::expert_keys_of(changed.models.main().shape).capacity;
  if (capacity != models::expert_keys_of(before.models.main().shape).capacity)
    return concat("an expert drops tokens above ", capacity, " times its even share");
  const run::LearnedParts learned(before.config.parallel, before.models.main().shape, *before.objective());
  if (!learned.any()) return "";
  return run::learned_change(learned.of(before.config.parallel, before.config.micro_batches()),
                             learned.of(changed.config.parallel, changed.config.micro_batches()));
}

}  // namespace

std::vector<plan::Remedy> remedies(const train::ConfiguredRun& before, const plan::Cluster& cluster,
                                   const std::function<void(int64_t recorded)>& progress) {
  std::vector<Change> changes = changes_of(before, cluster);
  std::vector<plan::Remedy> found;
  const Stopwatch watch;
  size_t recorded = 0;
  const auto blocks = before.models.main().shape.layers;
  double work_left = kRemedySeconds * kBlocksPerSecond;
  /// Adds the changed run if it fits. Returns whether it does.
  const auto try_change = [&](const std::function<void(train::ConfiguredRun&)>& make) {
    train::ConfiguredRun changed = before;
    make(changed);
    try {
      changed.config.validate();
      const double work = recording_work(changed.config, blocks);
      const bool is_first = recorded == 0;
      if (!is_first && (work > work_left || recorded >= kMaxRemedies || watch.seconds() > kRemedySeconds)) return false;
      work_left -= work;
      ++recorded;
      if (progress) progress(static_cast<int64_t>(recorded));
      const plan::Prediction prediction = predict_step(changed, record_stages(changed, cluster), cluster);
      if (!prediction.fits) return false;
      found.push_back({.table = table_of(changed, before),
                       .peak_bytes = prediction.peak_bytes,
                       .step_seconds = prediction.step_seconds,
                       .training = change_of_training(changed, before)});
      return true;
    } catch (const Error&) {
      return false;  // not legal for this run
    }
  };
  bool has_capacity = false;  // the largest capacity that is enough is the remedy; smaller ones are not tried
  for (Change& change : changes) {
    const bool is_capacity = change.kind == kCapacity;
    change.is_enough = (is_capacity && has_capacity) || try_change(change.make);
    has_capacity = has_capacity || (is_capacity && change.is_enough);
  }
  for (size_t a = 0; a < changes.size(); ++a)
    for (size_t b = a + 1; b < changes.size(); ++b) {
      if (changes[a].kind == changes[b].kind || changes[a].is_enough || changes[b].is_enough) continue;
      try_change([&](train::ConfiguredRun& c) {
        changes[a].make(c);
        changes[b].make(c);
      });
    }
  const bool has_copy_times = cluster.profile().host.bandwidth > 0;
  std::stable_sort(found.begin(), found.end(), [&](const plan::Remedy& a, const plan::Remedy& b) {
    // Without the speed of copies their seconds are 0, so the order of tiers among the others would mean nothing.
    if (!has_copy_times && uses_tiers(a) != uses_tiers(b)) return uses_tiers(b);
    return a.step_seconds < b.step_seconds;
  });
  return found;
}

}  // namespace colossal::predict
