#include "colossal/train/tier_needs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/memory/chunk_plan.h"
#include "colossal/memory/store_plan.h"
#include "colossal/memory/tiers/block_file.h"
#include "colossal/optim/optimizer.h"

namespace colossal::train {
namespace {

/// Keeps sizes alone.
class SizesAlone final : public memory::Home {
 public:
  std::unique_ptr<memory::Kept> keep(const at::Tensor& tensor) override {
    return std::make_unique<Size>(static_cast<int64_t>(tensor.nbytes()));
  }
  std::unique_ptr<memory::Kept> keep(int64_t bytes) { return std::make_unique<Size>(bytes); }
  at::Device lends_on(at::Device) const override { return at::kCPU; }

 private:
  struct Size final : memory::Kept {
    explicit Size(int64_t of) : taken(memory::whole_blocks(of)) {}
    int64_t bytes() const override { return taken; }
    at::Tensor bring() override { throw Error("memory", "a tensor of which the size alone is known was wanted"); }
    void put(const at::Tensor&, bool) override {}
    void forget() override {}
    void replace(const at::Tensor&) override {}
    int64_t taken;
  };
};

/// The shards that a store will have of a chunk, in `home`.
void add_shards(const memory::PlannedChunk& chunk, const memory::ChunkOptions& options, at::TensorOptions of_parameters,
                const std::shared_ptr<SizesAlone>& home, std::vector<memory::Shard>& shards) {
  const bool has_masters = chunk.is_trained && options.masters.has_value(), stays = !options.sharing.parameters;
  const at::TensorOptions exact = has_masters ? of_parameters.dtype(*options.masters) : of_parameters;
  const auto size = [](int64_t length, const at::TensorOptions& of) {
    return length * static_cast<int64_t>(of.dtype().itemsize());
  };
  const int64_t part = chunk.part_length(), most = memory::segment_length(part, options.capacity);
  for (int64_t first = 0; first == 0 || first < part; first += most) {
    const int64_t length = std::min(most, part - first);
    std::shared_ptr<memory::Kept> kept =
        stays ? memory::InPlace().keep(at::empty({0}, of_parameters)) : home->keep(size(length, of_parameters));
    memory::Shard::Parts parts{.values = std::move(kept), .options = exact, .length = length, .home = home};
    if (has_masters) {
      parts.copy = std::move(parts.values);
      parts.values = home->keep(size(length, exact));
    }
    const int64_t begin = part * chunk.sharers->rank() + first;
    shards.emplace_back(std::move(parts), memory::pieces_of(chunk.slots, begin, length, true));
    if (part == 0) return;
  }
}

/// Of a chunk's whole gradients: all, and of the largest segment.
std::pair<int64_t, int64_t> bytes_aside(const memory::PlannedChunk& chunk, int64_t capacity, int64_t element) {
  const int64_t most = memory::segment_length(chunk.length, capacity);
  int64_t all = 0;
  for (int64_t first = 0; first < chunk.length; first += most)
    all += memory::whole_blocks(std::min(most, chunk.length - first) * element);
  return {all, memory::whole_blocks(most * element)};
}

}  // namespace

TierNeeds tier_needs(nn::Parameters& parameters, comm::Mesh& mesh, const memory::ChunkOptions& chunks,
                     const parallel::GradientOptions& gradients, const optim::OptimizerConfig& optimizer,
                     bool sets_aside) {
  const auto of_parameters = at::TensorOptions().dtype(parameters.options().dtype).device(parameters.options().device);
  const auto home = std::make_shared<SizesAlone>();
  const memory::StorePlan plan = memory::plan_store(parameters, mesh, chunks);
  std::vector<memory::Shard> shards, frozen;
  std::vector<size_t> ends;  // of the shards of each trained chunk
  for (const memory::PlannedChunk& chunk : plan.chunks) {
    add_shards(chunk, chunks, of_parameters, home, chunk.is_trained ? shards : frozen);
    if (chunk.is_trained) ends.push_back(shards.size());
  }
  const auto rule = optim::make_optimizer(optimizer, shards, {parameters, mesh, at::kCPU});
  const optim::Optimizer::Takes takes = rule->takes();

  // Gradients that nobody shares out are in place.
  const auto element = static_cast<int64_t>(c10::elementSize(gradients.sums));
  TierNeeds needs;
  int64_t kept = 0, of_gradients = 0, of_directions = 0, of_passes = 0, largest = 0;
  std::vector<int64_t> together, of_shards;
  for (const memory::Shard& shard : shards) {
    const auto exact = shard.options().dtype().toScalarType();
    const int64_t gradient = chunks.sharing.gradients ? memory::whole_blocks(shard.length() * element) : 0;
    const bool is_apart = takes.directions && exact != gradients.sums;
    const int64_t direction =
        is_apart ? memory::whole_blocks(shard.length() * static_cast<int64_t>(c10::elementSize(exact))) : 0;
    kept += shard.bytes(), of_gradients += gradient, of_directions += direction;
    of_shards.push_back(gradient);
    together.push_back(takes.of_directions && is_apart ? direction : gradient);
    needs.least = std::max(needs.least, shard.bytes() + gradient + direction);
    largest = std::max(largest, gradient);
  }
  for (const memory::Shard& shard : frozen) {
    kept += shard.bytes();
    needs.least = std::max(needs.least, shard.bytes());
  }
  size_t begin = 0, trained = 0;
  for (const memory::PlannedChunk& chunk : plan.chunks) {
    needs.largest_chunk =
        std::max(needs.largest_chunk, chunk.length * static_cast<int64_t>(of_parameters.dtype().itemsize()));
    const bool is_lent = chunks.sharing.parameters && chunk.sharers->size() > 1;
    if (is_lent)  // the one that is read, and the next
      needs.of_gathers = std::max(
          needs.of_gathers,
          2 * memory::whole_blocks(chunk.part_length() * static_cast<int64_t>(of_parameters.dtype().itemsize())));
    if (!chunk.is_trained) continue;
    int64_t of_chunk = 0;
    for (const size_t end = ends[trained++]; begin < end; ++begin) of_chunk += of_shards[begin];
    const auto [all, segment] =
        sets_aside ? bytes_aside(chunk, chunks.capacity, element) : std::pair<int64_t, int64_t>();
    of_passes += std::max(of_chunk, all);
    largest = std::max(largest, segment);
  }
  std::sort(together.rbegin(), together.rend());
  together.resize(std::min(together.size(), takes.shards));
  int64_t window = 0;
  for (const int64_t bytes : together) window += bytes;
  needs.least = std::max(needs.least, needs.of_gathers + largest);
  needs.is_of_window = window > needs.least;
  needs.least = std::max(needs.least, window);
  needs.whole = std::max(needs.least, kept + std::max(of_passes, of_gradients + of_directions));
  return needs;
}

void TierNeeds::agree(comm::Mesh& mesh) {
  at::Tensor most =
      at::tensor({least, whole, largest_chunk, of_gathers, static_cast<int64_t>(is_of_window)}, at::kLong);
  mesh.all().all_reduce(most, comm::Reduce::Max).wait();
  const int64_t* numbers = most.const_data_ptr<int64_t>();
  *this = {.least = numbers[0],
           .whole = numbers[1],
           .largest_chunk = numbers[2],
           .of_gathers = numbers[3],
           .is_of_window = numbers[4] != 0};
}

void check_budgets(const TierNeeds& needs, const run::Config& config, int ranks_here) {
  const int64_t device = config.memory.device, host = config.memory.host;
  require(
      device == 0 || device >= needs.largest_chunk, "memory", "device = \"", print_bytes(device),
      "\" is too small: the largest chunk alone has ", print_bytes(needs.largest_chunk),
      " while it is read, and a step needs more, which the first one measures and tells; give more, or take smaller "
      "chunks (parallel.chunk_mib), down to the largest parameter");
  if (host == 0) return;
  const int64_t least = needs.least * ranks_here, whole = needs.whole * ranks_here;
  require(!config.memory.disk.empty() || host >= whole, "memory", "host = \"", print_bytes(host),
          "\" is too small for the ", ranks_here, " rank(s) of this machine: without a disk all parameters, gradients ",
          "and states lie there, those of ", config.optimizer.name, "; the smallest that works is \"",
          print_bytes(whole), "\", or name a folder for what does not fit (memory.disk)");
  require(host >= least, "memory", "host = \"", print_bytes(host), "\" is too small for the ", ranks_here,
          " rank(s) of this machine: a step with ", config.optimizer.name, " needs ",
          needs.is_of_window ? "gradients of several chunks or parts"
                             : "values, gradients and states of one chunk, or of a part of a parameter that is larger,",
          " at once; the smallest that works is \"", print_bytes(least),
          "\"; smaller chunks (parallel.chunk_mib) need less");
}

}  // namespace colossal::train
