#include <ATen/ATen.h>

#include <set>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/checkpoint/hugging_face/external_part.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/hugging_face/weight_folder.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/group.h"

namespace colossal::checkpoint {
namespace {

/// Returns the mesh coordinates of another rank: neighbours along the last axis have consecutive ranks.
tensor::MeshCoordinates coordinates_of(int rank, const tensor::MeshCoordinates& mine) {
  std::vector<tensor::MeshCoordinates::Axis> axes = mine.axes();
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    axis->index = rank % axis->size;
    rank /= axis->size;
  }
  return tensor::MeshCoordinates(axes);
}

/// Calls visit(box of the part, the same box in the rank's local tensor) for each block of which `rank` is the primary
/// owner.
template <class Visit>
void for_primary_boxes(const ExternalPart& part, const tensor::MeshCoordinates& coordinates, const Visit& visit) {
  for (const tensor::LocalBox& block : part.parameter->spec.local_boxes(coordinates)) {
    if (!block.primary) continue;
    const std::optional<Box> common = intersect(part.box, {block.start, block.size});
    if (!common) continue;
    Box local = *common;
    for (size_t d = 0; d < local.start.size(); ++d) local.start[d] += block.local_start[d] - block.start[d];
    visit(*common, local);
  }
}

/// Returns one parameter's part of a tensor on the host of rank 0; undefined on other ranks.
at::Tensor gather(const ExternalPart& part, const nn::Parameters& parameters, comm::Group& world) {
  const tensor::MeshCoordinates& coordinates = parameters.coordinates();
  // It is undefined for parameters of other pipeline stages.
  const at::Tensor& value = part.parameter->value;
  // Converts buffers, because other stages do not know their dtype.
  const at::Tensor local = value.defined() ? value.detach().to(parameters.options().dtype) : at::Tensor();
  if (world.rank() != 0) {
    for_primary_boxes(part, coordinates,
                      [&](const Box&, const Box& box) { world.send(at_box(local, box).contiguous(), 0).wait(); });
    return {};
  }
  const auto options = at::TensorOptions().dtype(parameters.options().dtype);
  at::Tensor whole = at::empty(part.box.size, options);
  for (int rank = 0; rank < world.size(); ++rank) {
    for_primary_boxes(part, coordinates_of(rank, coordinates), [&](const Box& box, const Box& mine) {
      at::Tensor piece =
          rank == 0 ? at_box(local, mine) : at::empty(box.size, options.device(parameters.options().device));
      if (rank != 0) world.recv(piece, rank).wait();
      at_box(whole, box, part.box.start).copy_(piece);
    });
  }
  return whole;
}

}  // namespace

at::Tensor gather(const Parts& parts, const nn::Parameters& parameters, comm::Group& world) {
  if (parts.size() == 1) return gather(*parts.front(), parameters, world);
  at::Tensor whole;
  for (const ExternalPart* part : parts) {
    const at::Tensor own = gather(*part, parameters, world);
    if (!own.defined()) continue;
    if (!whole.defined()) whole = at::empty(part->shape(), own.options());
    part->rows_of(whole).copy_(own);
  }
  return whole;
}

namespace {

/// Returns the tensors of the folder in the order of the parts, each tensor once, so that a layer's tensors stay
/// together.
std::vector<TensorEntry> entries_of(const std::vector<ExternalPart>& parts, const TensorDtypes& dtypes) {
  std::vector<TensorEntry> entries;
  const auto dtype_of = [&](const std::string& name) {
    const auto found = dtypes.by_name.find(name);
    return found == dtypes.by_name.end() ? dtypes.others : found->second;
  };
  std::set<std::string> planned;
  for (const ExternalPart& part : parts)
    if (planned.insert(part.name).second) entries.push_back({part.name, dtype_of(part.name), part.external_shape()});
  return entries;
}

/// Gathers the tensors of a file one by one and writes them on rank 0. A failed write is stored in `failure`, not
/// thrown: the other ranks continue to send, so rank 0 must continue to receive.
void write_shard(const std::string& path, const WeightFile& shard, const std::map<std::string, Parts>& parts,
                 const nn::Parameters& parameters, comm::Group& world, std::exception_ptr& failure) {
  std::unique_ptr<SafetensorsWriter> writer;
  const auto attempt = [&](const auto& work) {
    if (world.rank() != 0 || failure) return;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  attempt([&] {
    writer =
        std::make_unique<SafetensorsWriter>(path, shard.entries, std::map<std::string, std::string>{{"format", "pt"}});
  });
  for (const TensorEntry& entry : shard.entries) {
    const Parts& own = parts.at(entry.name);
    const at::Tensor whole = gather(own, parameters, world);
    attempt([&] { writer->write(own.front()->to_theirs(whole.to(entry.dtype))); });
  }
  attempt([&] { writer->finish(); });
}

}  // namespace

void export_weights(const std::string& folder, const nn::Parameters& parameters, const ExternalNames& external,
                    const nlohmann::json& config, comm::Group& world, int64_t max_file_bytes,
                    std::optional<at::ScalarType> dtype) {
  export_weights(folder, parameters, external, config, world, max_file_bytes,
                 TensorDtypes{.others = dtype.value_or(parameters.options().dtype)});
}

void export_weights(const std::string& folder, const nn::Parameters& parameters, const ExternalNames& external,
                    const nlohmann::json& config, comm::Group& world, int64_t max_file_bytes,
                    const TensorDtypes& dtypes) {
  const at::Device device = parameters.options().device;
  const bool first = world.rank() == 0;
  std::vector<ExternalPart> parts;
  comm::agree(world, device, [&] {
    require_none_added(parameters, external.model);
    parts = external_parts(parameters, external.names, external.model);
    if (first) create_folder(folder);
  });
  std::map<std::string, Parts> by_name;
  for (const ExternalPart& part : parts) by_name[part.name].push_back(&part);
  std::vector<TensorEntry> entries = entries_of(parts, dtypes);
  if (external.writes_copies)
    for (const nn::ExternalCopy& copy : external.copies) {
      const Parts& original = by_name.at(copy.original);
      entries.push_back({copy.name, dtypes.others, original.front()->external_shape()});
      by_name[copy.name] = original;
    }
  const std::vector<WeightFile> shards = plan_weight_files(entries, max_file_bytes, external.stem);
  std::exception_ptr failure;
  for (const WeightFile& shard : shards)
    write_shard(folder + "/" + shard.file, shard, by_name, parameters, world, failure);
  comm::agree(world, device, [&] {
    if (failure) std::rethrow_exception(failure);
    if (!first) return;
    write_file(folder + "/config.json", config.dump(2) + "\n");
    finish_weight_files(folder, shards, external.stem);
  });
}

}  // namespace colossal::checkpoint
