// One try of `colossal bench memory`: real training steps of one model, in a process of its own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/memory/tiers/tier_event.h"
#include "colossal/run/config.h"

namespace colossal::cli {

/// What was measured, of the last step where nothing else is said.
struct MemoryTry {
  int64_t parameters = 0;
  double seconds = 0;
  double loss = 0;
  int64_t resident_bytes = 0;                   ///< of the process, at most, ever
  int64_t host_bytes = 0, disk_bytes = 0;       ///< of tensors, where they lie behind it
  int64_t device_bytes = 0, bytes_copied = 0;   ///< with memory.device: that it had, at most; to and from it
  int64_t bytes_read = 0, bytes_written = 0;    ///< between the two
  double evictions = 0, optimal_evictions = 0;  ///< and those of memory::offline_optimum()
  int64_t optimal_bytes_read = 0;               ///< likewise
  std::vector<memory::TierEvent> events{};      ///< if they are wanted
};

/// A GPT of `layers` blocks, or of `heads` heads of 64 features: what grows.
enum class Growth { Layers, Heads };
/// `config` with the sizes of a model that has grown to `size`.
run::Config grown(run::Config config, Growth growth, int64_t size);

/// Trains `steps` (two at least: the first one is not like the others) on random tokens, in this process.
MemoryTry measured_try(const run::Config& config, int64_t steps, bool with_events);

/// As one line of JSON, and back. Errors ("bench"): it is none.
std::string to_json(const MemoryTry& measured);
MemoryTry memory_try_of(const std::string& line);

}  // namespace colossal::cli
