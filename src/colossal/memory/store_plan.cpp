#include "colossal/memory/store_plan.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/memory/chunk_plan.h"

namespace colossal::memory {
namespace {

/// Properties that all parameters of a chunk have in common: trained or not; ShardSpec::gradient_axes, and with them
/// the replicas that may share; `stages` if there are several; whether blocks share the parameter; and the dtype.
using Family = std::tuple<bool, std::vector<std::string>, std::vector<int>, bool, at::ScalarType>;

Family family_of(const nn::Parameter& p, at::ScalarType dtype) {
  return {p.value.requires_grad(), p.spec.gradient_axes, p.spec.stages.size() > 1 ? p.spec.stages : std::vector<int>{},
          p.is_shared, dtype};
}

comm::Group& sharers_of(const tensor::ShardSpec& spec, comm::Mesh& mesh, const ChunkOptions& options) {
  const std::vector<std::string> axes = tensor::replicas(spec, mesh.coordinates());
  const int replicas = mesh.coordinates().size(axes);
  if (options.sharing.states && (options.sharers == 0 || options.sharers >= replicas)) return mesh.group(axes);
  const int wanted = !options.sharing.states ? 1 : options.sharers;
  require(wanted >= 1 && replicas % wanted == 0, "zero",
          "the number of sharing replicas must divide the number of replicas: got ", wanted, " of ", replicas);
  return replicas == 1 ? mesh.group(axes) : mesh.neighbours(axes, wanted);
}

/// Parameters of one model, in order, and their sizes and groups for plan_chunks().
struct Packing {
  std::vector<nn::Parameter*> parameters;
  std::vector<PackItem> items;
};

}  // namespace

StorePlan plan_store(nn::Parameters& parameters, comm::Mesh& mesh, const ChunkOptions& options) {
  require(options.sharing.is_legal(), "zero",
          "gradients can only be sharded together with states, and parameters together with gradients");
  std::vector<std::pair<std::string, Packing>> models;  // models in the order of their first parameters
  std::map<Family, int64_t> families;
  std::vector<comm::Group*> sharers;  // sharing group of each family
  for (nn::Parameter& p : parameters) {
    const auto [family, is_new] = families.emplace(family_of(p, parameters.stored_dtype(p)), families.size());
    if (is_new) sharers.push_back(&sharers_of(p.spec, mesh, options));
    // Skipped after its group was made, because other ranks that make the group may have it.
    if (options.left_out.contains(&p)) continue;
    if (models.empty() || models.back().first != p.model) models.emplace_back(p.model, Packing{});
    Packing& model = models.back().second;
    model.parameters.push_back(&p);
    model.items.push_back({p.value.numel(), family->second, sharers[static_cast<size_t>(family->second)]->size()});
  }
  StorePlan plan;
  for (const auto& [name, model] : models) {
    const ChunkPlan packed = plan_chunks(model.items, options.capacity);
    plan.padding += packed.padding;
    for (const PackedChunk& chunk : packed.chunks) {
      std::vector<Slot> slots;
      for (size_t i = 0; i < chunk.items.size(); ++i)
        slots.push_back({model.parameters[chunk.items[i]], chunk.offsets[i], model.items[chunk.items[i]].size});
      const bool is_trained = slots.front().parameter->value.requires_grad();
      const auto family = static_cast<size_t>(model.items[chunk.items[0]].group);
      const at::ScalarType dtype = parameters.stored_dtype(*slots.front().parameter);
      plan.chunks.push_back({std::move(slots), chunk.length, sharers[family], is_trained, dtype});
    }
  }
  return plan;
}

std::vector<Piece> pieces_of(const std::vector<Slot>& slots, int64_t begin, int64_t length, bool counts) {
  std::vector<Piece> pieces;
  const int64_t end = begin + length;
  for (const Slot& slot : slots) {
    const int64_t first = std::max(slot.offset, begin), last = std::min(slot.offset + slot.size, end);
    if (first < last) pieces.push_back({slot.parameter, first - begin, {first - slot.offset, last - first, counts}});
  }
  return pieces;
}

std::vector<Piece> trained_pieces(const std::vector<Piece>& pieces, const tensor::MeshCoordinates& coordinates) {
  std::vector<Piece> trained;
  for (const Piece& piece : pieces) {
    const tensor::ShardSpec& spec = piece.parameter->spec;
    const auto [begin, end] = piece.parameter->trained_rows();
    if (spec.shape.empty() || end - begin == spec.shape.front()) {
      trained.push_back(piece);
      continue;
    }
    const std::vector<int64_t> local = spec.local_shape(coordinates);
    const int64_t columns = c10::multiply_integers(local.begin() + 1, local.end());
    const tensor::ShardSpec rows{.shape = {spec.shape[0]}, .splits = {spec.splits[0]}, .gradient_axes = {}};
    std::vector<std::pair<int64_t, int64_t>> ranges;  // first element of the local tensor, and the end
    for (const tensor::LocalBox& box : rows.local_boxes(coordinates)) {
      const int64_t local_row = box.local_start[0] - box.start[0];
      const int64_t first = std::max(begin, box.start[0]), last = std::min(end, box.start[0] + box.size[0]);
      if (first < last) ranges.emplace_back((first + local_row) * columns, (last + local_row) * columns);
    }
    std::sort(ranges.begin(), ranges.end());
    for (auto [first, last] : ranges) {
      first = std::max(first, piece.part.first);
      last = std::min(last, piece.part.first + piece.part.size);
      if (first < last)
        trained.push_back(
            {piece.parameter, piece.offset + first - piece.part.first, {first, last - first, piece.part.counts}});
    }
  }
  return trained;
}

}  // namespace colossal::memory
