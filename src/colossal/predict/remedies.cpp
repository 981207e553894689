#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/parallel/tensor/config.h"
#include "colossal/predict/record_stages.h"
#include "colossal/predict/search.h"
#include "colossal/predict/step.h"
#include "colossal/run/layout_keys.h"

namespace colossal::predict {
namespace {

constexpr double kRemedySeconds = 20;
constexpr size_t kMaxRemedies = 40;

/// A change of one kind. Changes of different kinds can be made together.
struct Change {
  int kind = 0;
  std::function<void(run::Config&)> make;
  bool is_enough = false;  // it makes the run fit alone
};

int64_t rank_of_recompute(const std::string& name) { return name == "block" ? 2 : name == "selective" ? 1 : 0; }

bool uses_tiers(const plan::Remedy& remedy) {
  return remedy.table.find("\ndevice = ") != std::string::npos || remedy.table.find("\ndisk = ") != std::string::npos;
}

/// Returns the numbers of micro-batches that split those of `config` further: up to three, each the next that divides.
std::vector<int64_t> more_micro_batches(const run::Config& config) {
  const int64_t samples = config.training.batch_size / config.parallel.replicas(),
                parts = parallel::batch_parts(config.parallel.tensor), now = config.micro_batches();
  std::vector<int64_t> counts;
  for (int64_t count = now + 1; count * parts <= samples && counts.size() < 3; ++count)
    if (samples % (count * parts) == 0 && count >= 2 * (counts.empty() ? now : counts.back())) counts.push_back(count);
  return counts;
}

std::vector<Change> changes_of(const run::Config& config, const plan::Cluster& cluster) {
  std::vector<Change> changes;
  for (const char* recompute : {"selective", "block"})
    if (rank_of_recompute(recompute) > rank_of_recompute(config.memory.recompute))
      changes.push_back({0, [recompute](run::Config& c) {
                           c.memory.recompute = recompute;
                           c.memory.activations = 0;  // only "auto" may have it
                         }});
  if (config.parallel.copies() > 1)
    for (int64_t zero = config.parallel.zero + 1; zero <= 3; ++zero)
      changes.push_back({1, [zero](run::Config& c) { c.parallel.zero = zero; }});
  for (const int64_t count : more_micro_batches(config))
    changes.push_back({2, [count](run::Config& c) {
                         (c.parallel.pipeline.size > 1 ? c.parallel.pipeline.micro_batches : c.training.accumulate) =
                             count;
                       }});
  if (config.memory.has_tiers()) return changes;
  const plan::Profile& profile = cluster.profile();
  if (!profile.device.shared && profile.host.bandwidth > 0)
    changes.push_back({3, [bytes = cluster.device_bytes()](run::Config& c) {
                         c.memory.device = bytes;
                         if (c.parallel.zero == 1 || c.parallel.zero == 2) c.parallel.zero = 3;  // see Config::validate
                       }});
  if (profile.device.shared && profile.disk.read > 0)
    changes.push_back({3, [](run::Config& c) { c.memory.disk = c.run.folder + "/disk"; }});
  return changes;
}

}  // namespace

std::vector<plan::Remedy> remedies(const run::Config& config, const train::NamedModel& model,
                                   const plan::Cluster& cluster) {
  std::vector<Change> changes = changes_of(config, cluster);
  std::vector<plan::Remedy> found;
  const Stopwatch watch;
  size_t recorded = 0;
  const auto blocks = model.shape.layers;
  double work_left = kRemedySeconds * kBlocksPerSecond;
  /// Adds the changed config if it fits. Returns whether it does.
  const auto try_change = [&](const std::function<void(run::Config&)>& make) {
    run::Config changed = config;
    make(changed);
    try {
      changed.validate();
      const double work = recording_work(changed, blocks);
      const bool is_first = recorded == 0;
      if (!is_first && (work > work_left || recorded >= kMaxRemedies || watch.seconds() > kRemedySeconds)) return false;
      work_left -= work;
      ++recorded;
      const plan::Prediction prediction =
          predict_step(changed, model, record_stages(on_devices(changed, model, cluster), model), cluster);
      if (!prediction.fits) return false;
      found.push_back({.table = run::layout_changes(changed, config),
                       .peak_bytes = prediction.peak_bytes,
                       .step_seconds = prediction.step_seconds});
      return true;
    } catch (const Error&) {
      return false;  // not legal for this run
    }
  };
  for (Change& change : changes) change.is_enough = try_change(change.make);
  for (size_t a = 0; a < changes.size(); ++a)
    for (size_t b = a + 1; b < changes.size(); ++b) {
      if (changes[a].kind == changes[b].kind || changes[a].is_enough || changes[b].is_enough) continue;
      try_change([&](run::Config& c) {
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
