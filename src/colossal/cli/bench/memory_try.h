// One try of `colossal bench memory`, real training steps of one model in its own process, and the search over sizes.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/run/config.h"

namespace colossal::cli {

/// Measurements of a try, of its last step unless stated otherwise. Without memory tiers the values from host_bytes on
/// are 0.
struct MemoryTry {
  int64_t parameters = 0;
  double seconds = 0;
  double loss = 0;
  int64_t resident_bytes = 0;                   ///< peak resident memory of the process since it started
  int64_t host_bytes = 0, disk_bytes = 0;       ///< bytes of tensors in host memory, and only on disk
  int64_t device_bytes = 0, bytes_copied = 0;   ///< peak on memory.device; sum of copies to and from it
  int64_t bytes_read = 0, bytes_written = 0;    ///< bytes moved from disk to host memory, and back
  double evictions = 0, optimal_evictions = 0;  ///< tensors evicted; mean of memory::offline_optimum()
  int64_t optimal_bytes_read = 0;               ///< bytes read from disk, mean of memory::offline_optimum()
  std::vector<memory::TierEvent> events{};      ///< empty unless `with_events` (measured_try())

  void fields(Fields& f);
};

/// Dimension in which the GPT grows: its number of layers, or of heads of 64 features.
enum class Growth { Layers, Heads };
/// Returns `config` with the sizes of a model that has grown to `size`.
run::Config grown(run::Config config, Growth growth, int64_t size);

/// Trains `steps` steps on random tokens in this process. At least two, because the first step is not representative.
MemoryTry measured_try(const run::Config& config, int64_t steps, bool with_events);

/// Converts measurements to one line of JSON, and back. Errors ("bench"): the line is not such a JSON object.
std::string to_json(const MemoryTry& measured);
MemoryTry memory_try_of(const std::string& line);

/// Returns the largest number for which `works` returns true; 0 = not even `first` works. If a number works, all
/// smaller ones must work too. Doubles the number until it does not work, then bisects. Stops when the interval is at
/// most 1, or at most `resolution` times the largest number that works. `works` may throw to end the search.
int64_t largest_that_works(int64_t first, double resolution, const std::function<bool(int64_t)>& works);

}  // namespace colossal::cli
