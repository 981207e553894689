#include "colossal/train/planned_shards.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/memory/chunk_plan.h"

namespace colossal::train {
namespace {

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
                const std::shared_ptr<SizesAlone>& offload, std::vector<memory::Shard>& shards) {
  const bool has_masters = chunk.is_trained && options.masters.has_value(), stays = !options.sharing.parameters;
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
    shards.emplace_back(std::move(parts), memory::pieces_of(chunk.slots, begin, length, true));
    if (part == 0) return;
  }
}

}  // namespace

PlannedShards plan_shards(nn::Parameters& parameters, comm::Mesh& mesh, const memory::ChunkOptions& options,
                          int64_t block) {
  const auto of_parameters = at::TensorOptions().dtype(parameters.options().dtype).device(at::kMeta);
  const auto offload = std::make_shared<SizesAlone>(block);
  PlannedShards planned{.plan = memory::plan_store(parameters, mesh, options)};
  for (const memory::PlannedChunk& chunk : planned.plan.chunks) {
    add_shards(chunk, options, of_parameters, offload, chunk.is_trained ? planned.trained : planned.frozen);
    planned.ends.push_back(planned.trained.size());
  }
  return planned;
}

}  // namespace colossal::train
