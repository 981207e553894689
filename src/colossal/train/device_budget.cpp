#include "colossal/train/device_budget.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/parallel/tensor/config.h"
#include "colossal/run/layout_keys.h"
#include "colossal/train/memory_needs.h"
#include "colossal/train/recompute_choice.h"
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

/// Returns the bytes of the host that a rank needs for tiers without a disk.
int64_t host_need(const ConfiguredRun& run) {
  return most_of_stages(run, [&](int rank) {
    int64_t sum = 0;
    for (const MemoryNeed& need : memory_needs(run, rank))
      if (need.what == "without a disk") sum += need.bytes;
    return sum;
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

/// Returns the bytes of the device that the run needs.
int64_t device_need(const ConfiguredRun& run) {
  if (run.config.memory.device > 0) return least_device_budget(run);
  return most_of_stages(run, [&](int rank) { return record_step(run, rank).memory.peak_bytes; });
}

/// Returns true if the device has enough for the run. It records less than device_need() does.
bool fits(const ConfiguredRun& run, int64_t bytes) {
  if (run.config.memory.device == 0) return device_need(run) <= bytes;
  return largest_chunk(run) <= bytes && refused_need(run) == 0;
}

/// Returns the changes that need less memory, the cheapest first.
std::vector<run::Config> frugal_configs(const run::Config& given, const MachineMemory& machine) {
  std::vector<run::Config> configs;
  run::Config last = given;
  const auto add_splits = [&] {
    for (const run::Config& split : in_more_micro_batches(last)) configs.push_back(split);
  };
  for (const char* recompute : {"selective", "block"}) {
    if (last.memory.recompute == "block" || last.memory.recompute == recompute) continue;
    last.memory.recompute = recompute;
    configs.push_back(last);
  }
  add_splits();
  if (!given.memory.has_tiers()) {
    const auto usable_mib = static_cast<int64_t>(kUsablePart * static_cast<double>(machine.device) / kMiB);
    last = with_device_budget(last, usable_mib << 20);
    configs.push_back(last);
    add_splits();
  }
  for (int64_t rows = given.training.batch_size / given.parallel.replicas() / 2; rows > 0; rows /= 2) {
    last.training.batch_size = rows * given.parallel.replicas();
    configs.push_back(last);
  }
  return configs;
}

/// Returns the changed keys as "memory.recompute = "block" and training.accumulate = 2".
std::string changed_keys(const run::Config& changed, const run::Config& given) {
  return join(run::changed_values(changed, given), " and ",
              [](const auto& one) { return concat(one.first, " = ", one.second); });
}

/// Returns the remedy for the message, for a device of that many bytes.
std::string remedy(const ConfiguredRun& run, const MachineMemory& machine, int64_t bytes) {
  for (run::Config& config : frugal_configs(run.config, machine)) {
    try {
      config.validate();
      const bool keeps_all_on_host = config.memory.has_tiers() && config.memory.disk.empty();
      if (keeps_all_on_host && machine.host > 0 && host_need({config, run.models}) * machine.ranks > machine.host)
        config.memory.disk = config.run.folder + "/disk";
      const int64_t need = device_need({config, run.models});
      if (need <= (config.memory.device > 0 ? config.memory.device : bytes))
        return concat("set ", changed_keys(config, run.config), ", with which ", readable_at_least(need), " suffice");
    } catch (const Error&) {
      continue;  // not legal for this run
    }
  }
  return "no recomputation, micro-batches, tiers of [memory] or smaller batch that the run permits are enough; use "
         "smaller chunks (parallel.chunk_mib), take a smaller model, or a device with more memory";
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

std::vector<run::Config> in_more_micro_batches(const run::Config& config, size_t most) {
  const int64_t samples = config.training.batch_size / config.parallel.replicas(),
                parts = parallel::batch_parts(config.parallel.tensor);
  int64_t last = config.micro_batches();
  std::vector<run::Config> configs;
  for (int64_t count = 2 * last; count * parts <= samples && configs.size() < most; ++count) {
    if (count < 2 * last || samples % (count * parts) != 0) continue;
    run::Config& split = configs.emplace_back(config);
    (config.parallel.pipeline.size > 1 ? split.parallel.pipeline.micro_batches : split.training.accumulate) = count;
    last = count;
  }
  return configs;
}

run::Config with_device_budget(run::Config config, int64_t bytes) {
  config.memory.device = bytes;
  if (config.parallel.zero == 1 || config.parallel.zero == 2) config.parallel.zero = 3;
  return config;
}

void check_device_budget(const ConfiguredRun& run, const MachineMemory& machine) {
  const run::MemoryConfig& memory = run.config.memory;
  const int64_t bytes = memory.device > 0 ? memory.device : machine.device;
  if (bytes == 0 || memory.recompute == "auto") return;
  int64_t need = 0;
  try {
    if (fits(run, bytes)) return;
    need = device_need(run);
  } catch (const std::exception&) {
    return;  // the run itself refuses what cannot be recorded
  }
  throw Error("memory", concat("device must be at least ", readable_at_least(need), ": got ",
                               memory.device > 0 ? print_bytes(bytes) : readable_bytes(bytes) + ", all that it has",
                               "; ", remedy(run, machine, bytes)));
}

}  // namespace colossal::train
