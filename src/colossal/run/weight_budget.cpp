#include "colossal/run/weight_budget.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/memory/tiers/block_file.h"
#include "colossal/memory/tiers/loaded_store.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::run {
namespace {

using memory::kBlock;

// small chunks, because the part of the budget for chunks in transit is then small
constexpr int64_t kChunksOfBudget = 64;
constexpr int64_t kMaxChunk = int64_t{64} << 20;
/// Number of chunks that may be whole at once: the one in use, the next one, and another that the same operator reads.
constexpr size_t kAtOnce = 3;
/// Number of further chunks that are read ahead, so that the disk is busy during computation.
constexpr int64_t kAhead = 3;

int64_t bytes_of(const nn::Parameter& p) { return memory::whole_blocks(static_cast<int64_t>(p.value.nbytes())); }

struct Sizes {
  std::vector<int64_t> tables, others;  // bytes of parameters in whole blocks, largest first
  int64_t all = 0;
};

Sizes sizes_of(const nn::Parameters& parameters) {
  Sizes sizes;
  for (const nn::Parameter& p : parameters) {
    const int64_t bytes = bytes_of(p);
    (p.value.dim() >= 2 && !p.hidden_matrix ? sizes.tables : sizes.others).push_back(bytes);
    sizes.all += bytes;
  }
  std::sort(sizes.tables.rbegin(), sizes.tables.rend());
  std::sort(sizes.others.rbegin(), sizes.others.rend());
  return sizes;
}

/// Returns the bytes of the largest chunks that may be whole at once, if parameters of these sizes are transferred.
int64_t bytes_at_once(std::vector<int64_t> sizes, int64_t chunk) {
  sizes.resize(std::max(sizes.size(), kAtOnce), 0);
  std::partial_sort(sizes.begin(), sizes.begin() + kAtOnce, sizes.end(), std::greater<>());
  int64_t bytes = 0;
  for (size_t i = 0; i < kAtOnce; ++i) bytes += std::max(sizes[i], chunk);
  return bytes;
}

int64_t chunk_of(int64_t budget, int64_t max_chunk) {
  return std::clamp(budget / kChunksOfBudget / kBlock * kBlock, kBlock, max_chunk);
}

/// A division of a budget for whole parameters.
struct Split {
  int64_t chunk = 0;
  int64_t largest = 0;     ///< largest parameter that is transferred, in bytes; larger ones are always resident
  int64_t tables = 0;      ///< bytes of the embeddings and heads larger than any chunk, if they are always resident
  int64_t travelling = 0;  ///< minimum for the parameters that are transferred
};

Split split(const Sizes& sizes, int64_t budget, bool may_stay, int64_t max_chunk) {
  Split parts{.chunk = chunk_of(budget, max_chunk)};
  parts.largest = std::max(sizes.others.empty() ? 0 : sizes.others.front(), parts.chunk);
  std::vector<int64_t> travel = sizes.others, without = sizes.others;
  for (const int64_t table : sizes.tables) {
    travel.push_back(table);
    if (table > parts.largest)
      parts.tables += table;
    else
      without.push_back(table);
  }
  const int64_t without_tables = bytes_at_once(std::move(without), parts.chunk);
  if (may_stay && parts.tables <= budget / 2 && parts.tables + without_tables <= budget) {
    parts.travelling = without_tables;
    return parts;
  }
  parts.tables = 0;
  parts.largest = sizes.all;
  parts.travelling = bytes_at_once(std::move(travel), parts.chunk);
  return parts;
}

/// Returns the smallest budget that works if `budget` is too small, else `budget`.
int64_t min_working_budget(const Sizes& sizes, int64_t budget, bool may_stay, int64_t max_chunk) {
  for (;;) {
    const Split parts = split(sizes, budget, may_stay, max_chunk);
    const int64_t more = memory::whole_blocks(std::min(parts.tables + parts.travelling, sizes.all));
    if (more <= budget) return budget;
    budget = more;
  }
}

/// Plans weights that are read directly from host memory.
WeightBudget plan_in_place(const Sizes& sizes, const MemoryConfig& memory, int64_t ranks) {
  const bool may_stay = memory.placement == "auto";
  const auto min_budget = [&](int64_t host) { return min_working_budget(sizes, host, may_stay, kMaxChunk); };
  // As little as transfers need: the minimum for chunks that are read at once, and as much again for reading ahead.
  const int64_t host = memory.host > 0       ? memory.host / ranks
                       : memory.disk.empty() ? sizes.all
                                             : std::min(2 * min_budget(kBlock), sizes.all);
  const Split parts = split(sizes, host, may_stay, kMaxChunk);
  WeightBudget budget{.chunk = parts.chunk, .host = host};
  if (sizes.all <= host) {
    budget.host = sizes.all, budget.travelling = may_stay ? 0 : sizes.all;
  } else {
    budget.min_host = memory.disk.empty() ? sizes.all : min_budget(host);
    const int64_t ahead = kAhead * std::min(parts.largest, parts.chunk);
    budget.travelling = may_stay ? std::min(host - parts.tables, parts.travelling + ahead) : host;
  }
  budget.residence = {.all = sizes.all,
                      .stays = budget.host - budget.travelling,
                      .largest = parts.largest,
                      .above_largest = parts.tables};
  return budget;
}

/// Plans parameters that are copied to an accelerator: which are always on it, and the size of chunks.
WeightBudget plan_device(const nn::Parameters& parameters, const Sizes& sizes, const MemoryConfig& memory,
                         int64_t ranks) {
  const int64_t largest = std::min(sizes.others.empty() ? kBlock : sizes.others.front(), kMaxChunk);
  // Without a disk, host memory holds all others, in chunks of any size.
  const bool is_cut = memory.host > 0 && !memory.disk.empty();
  const int64_t max_chunk = is_cut ? chunk_of(memory.host / ranks, largest) : largest;
  if (memory.device == 0) return {.chunk = max_chunk};
  WeightBudget budget;
  if (sizes.all <= memory.device) {
    for (const nn::Parameter& p : parameters) budget.on_device.insert(&p);
    budget.chunk = max_chunk;
    return budget;
  }
  const Split parts = split(sizes, memory.device, true, max_chunk);
  budget.chunk = parts.chunk;
  budget.min_device = min_working_budget(sizes, memory.device, true, max_chunk);
  const int64_t share = memory.device - parts.travelling - parts.tables;
  memory::EvenShare spread(share, sizes.all - parts.tables);
  for (const nn::Parameter& p : parameters)
    if (bytes_of(p) > parts.largest || spread.takes(bytes_of(p))) budget.on_device.insert(&p);
  int64_t left = share - spread.taken();
  for (const nn::Parameter& p : parameters)
    if (bytes_of(p) <= left && budget.on_device.insert(&p).second) left -= bytes_of(p);
  return budget;
}

/// Plans weights that are copied to an accelerator, from buffers of at most one chunk.
WeightBudget plan_copied(const nn::Parameters& parameters, const Sizes& sizes, const MemoryConfig& memory,
                         int64_t ranks) {
  WeightBudget budget = plan_device(parameters, sizes, memory, ranks);
  int64_t all = sizes.all;
  for (const nn::Parameter* p : budget.on_device) all -= bytes_of(*p);
  const int64_t at_once = static_cast<int64_t>(kAtOnce) * budget.chunk, with_ahead = at_once + kAhead * budget.chunk;
  const bool may_stay = memory.placement == "auto";
  budget.host = memory.host > 0 ? memory.host / ranks : memory.disk.empty() ? all : std::min(with_ahead, all);
  if (all <= budget.host) {
    budget.host = all, budget.travelling = may_stay ? 0 : all;
  } else {
    // If a budget does not hold the chunks at once, its chunks have the minimum size of one block already.
    budget.min_host = memory.disk.empty() ? all : std::max(std::min(at_once, all), budget.host);
    budget.travelling = may_stay ? std::min(budget.host, with_ahead) : budget.host;
  }
  budget.residence = {.all = all, .stays = budget.host - budget.travelling, .largest = all};
  return budget;
}

}  // namespace

WeightBudget plan_weights(const nn::Parameters& parameters, const MemoryConfig& memory, int64_t ranks) {
  const Sizes sizes = sizes_of(parameters);
  return tensor::is_for_accelerator(parameters.options().device) ? plan_copied(parameters, sizes, memory, ranks)
                                                                 : plan_in_place(sizes, memory, ranks);
}

void check_weight_budget(const WeightBudget& needed, const MemoryConfig& memory, int64_t ranks, at::Device device) {
  require(memory.device == 0 || !device.is_cpu(), "memory", "device = \"", print_bytes(memory.device),
          "\" needs an accelerator, because on the CPU weights are read directly from host memory; limit them with "
          "memory.host and leave memory.device out");
  require(memory.device == 0 || memory.device >= needed.min_device, "memory", "device = \"", print_bytes(memory.device),
          "\" is too small for the weights of a rank: those of an operator and of the next one must fit at once; the "
          "smallest that works is \"",
          print_bytes(needed.min_device), "\"");
  const int64_t host = needed.min_host * ranks;
  require(memory.host == 0 || memory.host >= host, "memory", "host = \"", print_bytes(memory.host),
          "\" is too small for the ", ranks, " rank(s) of this machine: ",
          !memory.disk.empty() ? "the weights of an operator and those of the next one must fit at once"
          : memory.device == 0
              ? "all weights must fit, or memory.disk must name a folder for the rest"
              : "weights that the device has no room for must fit, or memory.disk must name a folder for the rest",
          "; the smallest that works is \"", print_bytes(host), "\"");
}

}  // namespace colossal::run
