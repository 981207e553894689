#include "colossal/run/streamed_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/comm/agreement.h"
#include "colossal/memory/tiers/block_file.h"
#include "colossal/memory/tiers/eviction.h"
#include "colossal/run/stored_weights.h"

namespace colossal::run {
namespace {

constexpr int64_t kChunksOfBudget = 64;  // small ones make the part of the budget small that is not for staying
constexpr int64_t kLargestChunk = int64_t{64} << 20;
/// At once there may be whole: the chunk in use, the next one, and another that the same operator reads.
constexpr size_t kAtOnce = 3;
/// Beside these, so that the disk has something to do while they are computed with.
constexpr int64_t kAhead = 3;

struct Sizes {
  std::vector<int64_t> tables, others;  // bytes of parameters, whole blocks; the largest first
  int64_t all = 0;
};

Sizes sizes_of(const nn::Parameters& parameters) {
  Sizes sizes;
  for (const nn::Parameter& p : parameters) {
    const int64_t bytes = memory::whole_blocks(static_cast<int64_t>(p.value.nbytes()));
    (p.value.dim() >= 2 && !p.hidden_matrix ? sizes.tables : sizes.others).push_back(bytes);
    sizes.all += bytes;
  }
  std::sort(sizes.tables.rbegin(), sizes.tables.rend());
  std::sort(sizes.others.rbegin(), sizes.others.rend());
  return sizes;
}

/// Bytes of the largest chunks that may be whole at once, where parameters of these sizes travel.
int64_t bytes_at_once(std::vector<int64_t> sizes, int64_t chunk) {
  sizes.resize(std::max(sizes.size(), kAtOnce), 0);
  std::partial_sort(sizes.begin(), sizes.begin() + kAtOnce, sizes.end(), std::greater<>());
  int64_t bytes = 0;
  for (size_t i = 0; i < kAtOnce; ++i) bytes += std::max(sizes[i], chunk);
  return bytes;
}

/// `travelling` is what is needed at least.
WeightBudget split(const Sizes& sizes, int64_t host, bool may_stay) {
  WeightBudget budget{.host = host, .all = sizes.all};
  budget.chunk = std::clamp(host / kChunksOfBudget / memory::kBlock * memory::kBlock, memory::kBlock, kLargestChunk);
  budget.largest = std::max(sizes.others.empty() ? 0 : sizes.others.front(), budget.chunk);
  std::vector<int64_t> travel = sizes.others;
  for (const int64_t table : sizes.tables) {
    if (table > budget.largest) budget.tables += table;
    travel.push_back(table);
  }
  const int64_t without_tables = bytes_at_once(sizes.others, budget.chunk);
  if (may_stay && budget.tables <= host / 2 && budget.tables + without_tables <= host) {
    budget.travelling = without_tables;
    return budget;
  }
  budget.tables = 0;
  budget.largest = sizes.all;
  budget.travelling = bytes_at_once(std::move(travel), budget.chunk);
  return budget;
}

int64_t needed(const WeightBudget& budget) { return std::min(budget.tables + budget.travelling, budget.all); }

/// The smallest budget that works, if `host` does not; else `host`.
int64_t least_that_works(const Sizes& sizes, int64_t host, bool may_stay) {
  for (;;) {
    const int64_t more = memory::whole_blocks(needed(split(sizes, host, may_stay)));
    if (more <= host) return host;
    host = more;
  }
}

/// Bytes for the weights of one of `ranks`.
int64_t host_of(const MemoryConfig& memory, const Sizes& sizes, int64_t ranks) {
  if (memory.host > 0) return memory.host / ranks;
  // As little as transfers need: the least for what is read at once, and as much to read ahead.
  const int64_t little = 2 * least_that_works(sizes, memory::kBlock, memory.placement == "auto");
  return memory.disk.empty() ? sizes.all : std::min(little, sizes.all);
}

memory::ChunkOptions chunk_options(const WeightBudget& budget, at::ScalarType dtype,
                                   std::shared_ptr<memory::Home> home) {
  memory::ChunkOptions options;
  options.sharing = memory::Sharing::of_stage(3);
  options.sharers = 1;
  options.capacity = budget.chunk / static_cast<int64_t>(c10::elementSize(dtype));
  options.home = std::move(home);
  options.inference = true;
  return options;
}

}  // namespace

WeightBudget plan_weights(const nn::Parameters& parameters, const MemoryConfig& memory, int64_t ranks) {
  const Sizes sizes = sizes_of(parameters);
  const int64_t host = host_of(memory, sizes, ranks);
  const bool may_stay = memory.placement == "auto";
  WeightBudget budget = split(sizes, host, may_stay);
  if (sizes.all <= host) {
    budget.host = sizes.all, budget.travelling = may_stay ? 0 : sizes.all;
    return budget;
  }
  budget.least = memory.disk.empty() ? sizes.all : least_that_works(sizes, host, may_stay);
  budget.travelling =
      may_stay ? std::min(host - budget.tables, budget.travelling + kAhead * std::min(budget.largest, budget.chunk))
               : host;
  return budget;
}

StreamedWeights::StreamedWeights(nn::Parameters& parameters, comm::Mesh& mesh, const MemoryConfig& memory)
    : mesh_(mesh) {
  for (nn::Parameter& p : parameters) p.value.requires_grad_(false);
  const int64_t ranks = mesh.world().local_size();
  const WeightBudget budget = plan_weights(parameters, memory, ranks);
  at::Tensor most = at::full({}, budget.least, at::kLong);  // stages of a pipeline need unequally much
  mesh.all().all_reduce(most, comm::Reduce::Max).wait();
  const int64_t least = most.item<int64_t>() * ranks;
  comm::agree(mesh.all(), at::kCPU, [&] {
    const at::Device device = parameters.options().device;
    require(device.is_cpu(), "memory", "host and disk serve ranks that compute on the CPU: got ", device.str(),
            "; leave memory.host and memory.disk out, or take --run.device=cpu");
    require(memory.host == 0 || memory.host >= least, "memory", "host = \"", print_bytes(memory.host),
            "\" is too small for the ", ranks, " rank(s) of this machine: ",
            memory.disk.empty() ? "all weights must fit, or have a folder for the rest (memory.disk)"
                                : "weights that an operator reads, and the next ones, must fit at once",
            "; the smallest that works is \"", print_bytes(least), "\"");
    memory::TieredHome::Options options{.host_bytes = budget.travelling, .ahead = 1};
    options.eviction = memory::make_eviction(memory.placement);
    if (budget.least > 0 && !memory.disk.empty()) options.disk = std::make_shared<memory::DiskSpace>(memory.disk);
    tiers_ = std::make_shared<memory::TieredHome>(std::move(options));
  });
  home_ = std::make_shared<memory::LoadedHome>(tiers_,
                                               memory::LoadedHome::Residence{.all = budget.all,
                                                                             .stays = budget.host - budget.travelling,
                                                                             .largest = budget.largest,
                                                                             .above_largest = budget.tables});
  comm::agree(mesh.all(), at::kCPU, [&] {
    store_ = std::make_unique<memory::ChunkStore>(parameters, mesh,
                                                  chunk_options(budget, parameters.options().dtype, home_));
  });
}

std::vector<checkpoint::NamedTensor> StreamedWeights::tensors() { return weights_of(*store_); }

void StreamedWeights::end_pass() {
  comm::agree(mesh_.all(), at::kCPU, [&] { store_->end_pass(); });
  tiers_->end_step();
  tiers_->begin_step();
}

}  // namespace colossal::run
