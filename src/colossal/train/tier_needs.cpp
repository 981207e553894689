#include "colossal/train/tier_needs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/memory/chunk_plan.h"
#include "colossal/memory/tiers/block_file.h"

namespace colossal::train {
namespace {

/// Returns the bytes of a chunk's whole gradients: of all segments, and of the largest one.
std::pair<int64_t, int64_t> bytes_aside(const memory::PlannedChunk& chunk, int64_t capacity, int64_t element) {
  const int64_t most = memory::segment_length(chunk.length, capacity);
  int64_t all = 0;
  for (int64_t first = 0; first < chunk.length; first += most)
    all += memory::whole_blocks(std::min(most, chunk.length - first) * element);
  return {all, memory::whole_blocks(most * element)};
}

/// Bytes that an update needs of a shard in addition to the tensors that it stores.
struct OfUpdate {
  int64_t gradients, directions;
};

OfUpdate of_update(const memory::Shard& shard, bool shares_gradients, at::ScalarType sums, bool takes_directions) {
  const at::ScalarType exact = shard.options().dtype().toScalarType();
  const auto bytes = [&](at::ScalarType type) {
    return memory::whole_blocks(shard.length() * static_cast<int64_t>(c10::elementSize(type)));
  };
  // Gradients that are not sharded are not offloaded.
  return {shares_gradients ? bytes(sums) : 0, takes_directions && exact != sums ? bytes(exact) : 0};
}

/// Returns the bytes of the parts that gathers use at one time: of the chunk that is read, and of the next one.
int64_t bytes_of_gathers(const std::vector<memory::PlannedChunk>& chunks) {
  int64_t most = 0;
  for (const memory::PlannedChunk& chunk : chunks)
    if (chunk.sharers->size() > 1)
      most = std::max(most, memory::whole_blocks(chunk.part_length() * chunk.element_size()));
  return 2 * most;
}

int64_t sum_of_largest(std::vector<int64_t> bytes, size_t count) {
  std::sort(bytes.rbegin(), bytes.rend());
  bytes.resize(std::min(bytes.size(), count));
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

}  // namespace

TierNeeds tier_needs(nn::Parameters& parameters, comm::Mesh& mesh, const StoreOptions& options,
                     const optim::OptimizerConfig& optimizer, const std::vector<OwnOptimizer>& own, double ema) {
  const auto& [chunks, gradients] = options;
  const auto size_of_sums = static_cast<int64_t>(c10::elementSize(gradients.sums));
  PlannedShards planned = plan_shards(parameters, mesh, chunks, memory::kBlock);
  const memory::StorePlan& plan = planned.plan;
  const auto takes = ModelOptimizers(optimizer, own, planned.trained, parameters, mesh, at::kMeta, ema).takes();

  TierNeeds needs{.of_gathers = chunks.sharing.parameters ? bytes_of_gathers(plan.chunks) : 0};
  int64_t kept = 0, in_passes = 0, in_update = 0, largest = 0;  // the last three: gradients and directions
  std::vector<int64_t> together;
  size_t next = 0;
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    const memory::PlannedChunk& chunk = plan.chunks[i];
    needs.largest_chunk = std::max(needs.largest_chunk, chunk.length * chunk.element_size());
    const auto [aside, aside_at_once] = gradients.sets_aside && chunk.is_trained
                                            ? bytes_aside(chunk, chunks.capacity, size_of_sums)
                                            : std::pair<int64_t, int64_t>();
    largest = std::max(largest, aside_at_once);
    int64_t of_chunk = 0;
    for (; next < planned.ends[i]; ++next) {
      const memory::Shard& shard = planned.trained[next];
      const OfUpdate beside = of_update(shard, chunks.sharing.gradients, gradients.sums, takes.directions);
      kept += shard.bytes(), of_chunk += beside.gradients, in_update += beside.gradients + beside.directions;
      needs.min_host_bytes = std::max(needs.min_host_bytes, shard.bytes() + beside.gradients + beside.directions);
      largest = std::max(largest, beside.gradients);
      together.push_back(takes.of_directions && beside.directions > 0 ? beside.directions : beside.gradients);
    }
    in_passes += std::max(of_chunk, aside);
  }
  for (const memory::Shard& shard : planned.frozen) {
    kept += shard.bytes();
    needs.min_host_bytes = std::max(needs.min_host_bytes, shard.bytes());
  }
  needs.min_host_bytes = std::max(needs.min_host_bytes, needs.of_gathers + largest);
  const int64_t window = sum_of_largest(std::move(together), takes.shards);
  needs.is_of_window = window > needs.min_host_bytes;
  needs.min_host_bytes = std::max(needs.min_host_bytes, window);
  needs.whole = std::max(needs.min_host_bytes, kept + std::max(in_passes, in_update));
  return needs;
}

void TierNeeds::agree(comm::Mesh& mesh) {
  at::Tensor most =
      at::tensor({min_host_bytes, whole, largest_chunk, of_gathers, static_cast<int64_t>(is_of_window)}, at::kLong);
  mesh.all().all_reduce(most, comm::Reduce::Max).wait();
  const int64_t* numbers = most.const_data_ptr<int64_t>();
  *this = {.min_host_bytes = numbers[0],
           .whole = numbers[1],
           .largest_chunk = numbers[2],
           .of_gathers = numbers[3],
           .is_of_window = numbers[4] != 0};
}

void check_budgets(const TierNeeds& needs, const run::MemoryConfig& memory, const std::string& optimizer,
                   int ranks_here) {
  const int64_t device = memory.device, host = memory.host;
  require(device == 0 || device >= needs.largest_chunk, "memory", "device = \"", print_bytes(device),
          "\" is too small: the largest chunk alone has ", print_bytes(needs.largest_chunk),
          " while it is read, and a step needs more, which the first step measures and reports; raise memory.device, "
          "or use smaller chunks (parallel.chunk_mib), down to the largest parameter");
  if (host == 0) return;
  const int64_t least = needs.min_host_bytes * ranks_here, whole = needs.whole * ranks_here;
  require(!memory.disk.empty() || host >= whole, "memory", "host = \"", print_bytes(host), "\" is too small for the ",
          ranks_here,
          " rank(s) of this machine: without memory.disk it must hold all parameters, "
          "gradients and states of ",
          optimizer, "; the smallest that works is \"", print_bytes(whole),
          "\", or name a folder for the rest with memory.disk");
  require(host >= least, "memory", "host = \"", print_bytes(host), "\" is too small for the ", ranks_here,
          " rank(s) of this machine: a step with ", optimizer, " needs ",
          needs.is_of_window ? "gradients of several chunks or parts"
                             : "values, gradients and states of one chunk, or of a part of a larger parameter,",
          " at once; the smallest that works is \"", print_bytes(least),
          "\"; smaller chunks (parallel.chunk_mib) need less");
}

}  // namespace colossal::train
