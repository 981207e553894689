#include "colossal/train/store_options.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/memory/chunk_plan.h"

namespace colossal::train {
namespace {

/// Returns true if a rank without ZeRO has tiers: then it is configured as one that shards with itself alone.
bool offloads_all(const run::Config& config) { return config.parallel.zero == 0 && config.memory.has_tiers(); }

/// Returns the ZeRO stage.
int64_t stage_of(const run::Config& config) { return offloads_all(config) ? 3 : config.parallel.zero; }

/// An offload store that keeps only the sizes of tensors.
class SizesAlone final : public memory::OffloadStore {
 public:
  explicit SizesAlone(int64_t block) : block_(block) {}
  std::unique_ptr<memory::OffloadedTensor> offload(const at::Tensor& tensor) override {
    return offload(static_cast<int64_t>(tensor.nbytes()));
  }
  std::unique_ptr<memory::OffloadedTensor> offload(int64_t bytes) {
    return std::make_unique<Size>((bytes + block_ - 1) / block_ * block_);
  }
  at::Device borrow_device(at::Device) const override { return at::kMeta; }

 private:
  struct Size final : memory::OffloadedTensor {
    explicit Size(int64_t bytes) : taken(bytes) {}
    int64_t bytes() const override { return taken; }
    at::Tensor borrow() override { throw Error("memory", "a tensor of which only the size is known cannot be read"); }
    void return_borrowed(const at::Tensor&, bool) override {}
    void discard() override {}
    void replace(const at::Tensor&) override {}
    int64_t taken;
  };
  const int64_t block_;
};

/// Appends the shards that a store will have of a chunk, in `offload`.
void add_shards(const memory::PlannedChunk& chunk, const memory::ChunkOptions& options, at::TensorOptions of_parameters,
                const std::shared_ptr<SizesAlone>& offload, const tensor::MeshCoordinates& coordinates,
                std::vector<memory::Shard>& shards) {
  const bool has_masters = chunk.is_trained && options.masters.has_value(), stays = !options.sharing.parameters;
  of_parameters = of_parameters.dtype(chunk.dtype);
  const at::TensorOptions exact = has_masters ? of_parameters.dtype(*options.masters) : of_parameters;
  const auto size = [](int64_t length, const at::TensorOptions& of) {
    return length * static_cast<int64_t>(of.dtype().itemsize());
  };
  const int64_t part = chunk.part_length(), most = memory::segment_length(part, options.capacity);
  for (int64_t first = 0; first == 0 || first < part; first += most) {
    const int64_t length = std::min(most, part - first);
    std::shared_ptr<memory::OffloadedTensor> offloaded = stays
                                                             ? memory::InPlace().offload(at::empty({0}, of_parameters))
                                                             : offload->offload(size(length, of_parameters));
    memory::Shard::Parts parts{.values = std::move(offloaded), .options = exact, .length = length, .offload = offload};
    if (has_masters) {
      parts.copy = std::move(parts.values);
      parts.values = offload->offload(size(length, exact));
    }
    const int64_t begin = part * chunk.sharers->rank() + first;
    std::vector<memory::Piece> pieces = memory::pieces_of(chunk.slots, begin, length, true);
    std::vector<memory::Piece> updated = memory::trained_pieces(pieces, coordinates);
    shards.emplace_back(std::move(parts), std::move(pieces), std::move(updated));
    if (part == 0) return;
  }
}

memory::ChunkOptions chunk_options(const run::Config& config, at::ScalarType dtype) {
  memory::ChunkOptions options;
  options.sharing = memory::Sharing::of_stage(static_cast<int>(stage_of(config)));
  options.sharers = offloads_all(config) ? 1 : static_cast<int>(config.parallel.zero_group);
  options.capacity =
      static_cast<int64_t>(config.parallel.chunk_mib * (1 << 20)) / static_cast<int64_t>(c10::elementSize(dtype));
  if (config.precision.has_masters()) options.masters = at::kFloat;
  options.compression = comm::compression_of(config.parallel.compress);
  return options;
}

parallel::GradientOptions gradient_options(const run::Config& config, at::ScalarType dtype) {
  const bool one = config.micro_batches() == 1;
  const bool is_shared = stage_of(config) >= 2;
  const parallel::PipelineConfig& pipeline = config.parallel.pipeline;
  return {.sums = one || dtype == at::kDouble ? dtype : at::kFloat,
          .each_pass = is_shared && pipeline.size == 1,
          .sets_aside = is_shared && config.memory.has_tiers() && pipeline.size > 1 &&
                        !(one && pipeline.schedule == "1f1b")};  // the only pass produces all gradients on the device
}

}  // namespace

StoreOptions store_options(const run::Config& config, at::ScalarType dtype) {
  return {chunk_options(config, dtype), gradient_options(config, dtype)};
}

PlannedShards plan_shards(nn::Parameters& parameters, comm::Mesh& mesh, const memory::ChunkOptions& options,
                          int64_t block) {
  const auto of_parameters = at::TensorOptions().dtype(parameters.options().dtype).device(at::kMeta);
  const auto offload = std::make_shared<SizesAlone>(block);
  PlannedShards planned{.plan = memory::plan_store(parameters, mesh, options)};
  for (const memory::PlannedChunk& chunk : planned.plan.chunks) {
    add_shards(chunk, options, of_parameters, offload, mesh.coordinates(),
               chunk.is_trained ? planned.trained : planned.frozen);
    planned.ends.push_back(planned.trained.size());
  }
  return planned;
}

}  // namespace colossal::train
