#include "colossal/train/device_budget.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/run/layout_keys.h"
#include "colossal/train/memory_needs.h"
#include "colossal/train/record_step.h"
#include "colossal/train/step_result.h"

namespace colossal::train {
namespace {

/// Returns the largest result of `of_rank` for the first rank of each stage.
int64_t most_of_stages(const ConfiguredRun& run, const std::function<int64_t(int rank)>& of_rank) {
  const distributed::ParallelConfig& parallel = run.config.parallel;
  const int64_t stages = parallel.pipeline.size, ranks_of_stage = parallel.ranks() / stages;
  int64_t most = 0;
  for (int64_t stage = 0; stage < stages; ++stage)
    most = std::max(most, of_rank(static_cast<int>(stage * ranks_of_stage)));
  return most;
}

int64_t largest_chunk(const ConfiguredRun& run) {
  return most_of_stages(run, [&](int rank) {
    int64_t largest = 0;
    for (const MemoryNeed& need : memory_needs(run, rank))
      if (need.what == "largest chunk") largest = std::max(largest, need.bytes);
    return largest;
  });
}

/// Returns the budget that a refused step names; 0 = no step is refused.
int64_t refused_need(const ConfiguredRun& run) {
  return most_of_stages(run, [&](int rank) -> int64_t {
    try {
      record_step(run, rank);
    } catch (const RefusedStep& error) {
      return error.needed_bytes();
    }
    return 0;
  });
}

/// Returns the changes that need less memory, the cheapest first.
std::vector<run::Config> frugal_configs(const run::Config& given) {
  std::vector<run::Config> configs;
  const auto add = [&](const run::Config& from, const std::function<void(run::Config&)>& change) {
    configs.push_back(from);
    change(configs.back());
  };
  if (given.memory.recompute == "none") add(given, [](run::Config& c) { c.memory.recompute = "selective"; });
  if (given.memory.recompute != "block") add(given, [](run::Config& c) { c.memory.recompute = "block"; });
  run::Config last = configs.empty() ? given : configs.back();
  const int64_t samples = given.training.batch_size / given.parallel.replicas();
  for (int64_t count = 2 * given.micro_batches(); count <= samples; count *= 2)
    add(last, [count](run::Config& c) {
      (c.parallel.pipeline.size > 1 ? c.parallel.pipeline.micro_batches : c.training.accumulate) = count;
    });
  return configs;
}

/// Returns the changed keys as "memory.recompute = "block" and training.accumulate = 2".
std::string changed_keys(const run::Config& changed, const run::Config& given) {
  const auto before = run::chosen_values(given);
  std::vector<std::string> keys;
  for (const auto& one : run::chosen_values(changed))
    if (std::find(before.begin(), before.end(), one) == before.end())
      keys.push_back(concat(one.first, " = ", one.second));
  return join(keys, " and ");
}

/// Returns the remedy for the message.
std::string remedy(const ConfiguredRun& run) {
  for (const run::Config& config : frugal_configs(run.config)) {
    try {
      config.validate();
      const int64_t need = least_device_budget({config, run.models});
      if (need <= config.memory.device)
        return concat("set ", changed_keys(config, run.config), ", with which ", readable_at_least(need), " suffice");
    } catch (const Error&) {
      continue;  // not legal for this run
    }
  }
  return "no recomputation and no smaller micro-batches suffice; raise memory.device, use smaller chunks "
         "(parallel.chunk_mib), or take a smaller model";
}

}  // namespace

int64_t least_device_budget(const ConfiguredRun& run) {
  ConfiguredRun smallest = run;
  int64_t& device = smallest.config.memory.device;
  device = largest_chunk(run);
  // With more room other chunks stay, so a refusal may name a budget that the next one raises.
  while (const int64_t need = refused_need(smallest)) device = need;
  return device;
}

void check_device_budget(const ConfiguredRun& run) {
  const int64_t given = run.config.memory.device;
  if (given == 0 || run.config.memory.recompute == "auto") return;
  int64_t need = 0;
  try {
    if (given >= largest_chunk(run) && refused_need(run) == 0) return;
    need = least_device_budget(run);
  } catch (const std::exception&) {
    return;  // the run itself refuses what cannot be recorded
  }
  throw Error("memory", concat("device must be at least ", readable_at_least(need), ": got ", print_bytes(given), "; ",
                               remedy(run)));
}

}  // namespace colossal::train
