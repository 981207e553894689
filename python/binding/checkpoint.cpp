// Whole checkpoints as tensors in memory, read and written by one rank.
#include "colossal/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "colossal/checkpoint/manifest.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "parts.h"

namespace colossal::binding {
namespace {

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A state without sharding.
checkpoint::TrainingState state_of(const Tensors& tensors, nlohmann::json progress) {
  checkpoint::TrainingState state{.progress = std::move(progress)};
  for (const auto& [name, value] : tensors)
    state.tensors.push_back({name, value, tensor::ShardSpec::whole(value.sizes().vec())});
  return state;
}

Tensors load_checkpoint(const std::string& path) {
  Tensors tensors;
  for (const auto& [name, stored] : checkpoint::Manifest::read(path + "/manifest.json").tensors)
    tensors.emplace_back(name, at::empty(stored.shape, stored.dtype));
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {});
    checkpoint::TrainingState state = state_of(tensors, {});
    checkpoint::load(path, state, mesh.all(), mesh.coordinates());
  });
  return tensors;
}

void save_checkpoint(const std::string& folder, int64_t step, const Tensors& tensors, const std::string& progress) {
  Tensors whole;
  for (const auto& [name, value] : tensors) whole.emplace_back(name, value.detach().cpu().contiguous());
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {});
    checkpoint::save(folder, step, state_of(whole, nlohmann::json::parse(progress)), mesh.all(), mesh.coordinates(), 0);
  });
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  module.def("load_checkpoint", &load_checkpoint, py::arg("path"), WithoutGil());
  module.def("save_checkpoint", &save_checkpoint, py::arg("folder"), py::arg("step"), py::arg("tensors"),
             py::arg("progress"), WithoutGil());
}

}  // namespace colossal::binding
