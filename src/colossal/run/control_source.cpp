#include "colossal/run/control_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/manifest.h"
#include "colossal/comm/agreement.h"
#include "colossal/models/unet_control_net.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/average_weights.h"
#include "colossal/run/data.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/model_source.h"
#include "colossal/run/program.h"
#include "colossal/run/stored_config.h"

namespace colossal::run {
namespace {

using ControlTensors = std::vector<checkpoint::NamedTensor>;

/// Returns how a folder of a ControlNet has its tensors.
checkpoint::ExternalNames control_names(const models::ModelShape& shape) {
  return {.names = models::control_folder_names(shape), .stem = "diffusion_pytorch_model"};
}

/// Declares the parameters of the ControlNet alone, as a folder has them. With `values` they share the memory of these.
std::unique_ptr<nn::Parameters> alone(const nn::Parameters& parameters, const ControlTensors* values = nullptr) {
  std::map<std::string, const nn::Parameter*> found;
  for (const nn::Parameter& p : parameters.declared())
    if (p.model.empty() && models::is_of_control(p.name)) found[p.name] = &p;
  nn::Parameters::Options options{.dtype = parameters.options().dtype, .without_memory = true};
  if (!values) options.device = at::kMeta;
  options.stages = [found](const std::string& name) { return found.at(name)->spec.stages; };
  auto own = std::make_unique<nn::Parameters>(parameters.coordinates(), options);
  for (const nn::Parameter& p : parameters.declared())
    if (found.contains(p.name)) own->add(p.name, p.spec, p.init, p.decay > 0);
  for (const checkpoint::NamedTensor& tensor : values ? *values : ControlTensors())
    own->at(tensor.name).value = tensor.value.read().value;
  return own;
}

/// Returns the channels of the layers that read control pictures of so many pixels a side of a cell.
std::vector<int64_t> channels_for(int64_t factor) {
  const std::vector<int64_t> usual{16, 32, 96, 256};
  std::vector<int64_t> channels;
  for (int64_t side = 1; side <= factor; side *= 2)
    channels.push_back(usual[std::min(channels.size(), usual.size() - 1)]);
  return channels;
}

/// Returns the channels of the layers that read control pictures, as the checkpoint of a run has them.
std::vector<int64_t> channels_of_run(const std::string& run) {
  const std::string newest = newest_checkpoint(run, checkpoint::step_folders(RunFolder(run).checkpoints())),
                    prefix = "model.control.condition.";
  const auto stored = checkpoint::Manifest::read(newest + "/manifest.json").tensors;
  std::vector<int64_t> channels;
  const auto add = [&](const std::string& layer) {
    const auto found = stored.find(prefix + layer + ".weight");
    if (found != stored.end()) channels.push_back(found->second.shape.at(0));
    return found != stored.end();
  };
  add("conv_in");
  for (int64_t i = 1; add(concat("blocks.", i)); i += 2) {
  }
  return channels;
}

}  // namespace

bool is_control_run(const std::string& path) {
  return is_run(path) && adapter_keys(stored_config(path)).kind == kControlKind;
}

models::OwnControl control_of(const std::string& path, const models::ModelShape& shape) {
  if (is_control_run(path)) {
    models::ModelShape trained = resolve_model(stored_config(path), built_in()).shape;
    trained.set(models::OwnControl{.channels = channels_of_run(path)});  // its config may lack the ControlNet's source
    return models::control_from_diffusers(models::control_to_diffusers(trained), shape);
  }
  std::error_code ignored;
  require(std::filesystem::exists(path + "/config.json", ignored) && !is_run(path), "adapter", path,
          " must have a ControlNet: got neither a folder of diffusers with its config.json, nor a run with "
          "adapter.kind = \"controlnet\"");
  return models::control_from_diffusers(checkpoint::read_config(path), shape);
}

models::ModelShape with_control(models::ModelShape shape, const AdapterChoice& choice) {
  models::OwnControl control = control_of(choice.folder, shape);
  control.scale = choice.scale;
  return models::with_control(std::move(shape), std::move(control));
}

void check_control_factor(const models::OwnControl& control, int64_t factor, const std::string& path) {
  const int64_t reads = int64_t{1} << (control.channels.size() - 1);
  require(reads == factor, "adapter", "the ControlNet ", path, " must read ", factor,
          " pixels a side for each cell, as the autoencoder does: got ", reads, "; it belongs to another base");
}

models::OwnControl trained_control(const std::string& from, const models::ModelShape& shape, int64_t factor) {
  require(factor > 0 && (factor & (factor - 1)) == 0, "adapter",
          "a ControlNet needs cells whose sides are a power of 2 in pixels: got ", factor);
  if (from.empty()) return {.channels = channels_for(factor)};
  models::OwnControl control = control_of(from, shape);
  check_control_factor(control, factor, from);
  return control;
}

AdapterKind control_kind() {
  const auto check = [](const models::ModelShape& shape) {
    require(models::has_control(shape), "adapter",
            "adapter.kind = \"controlnet\" needs a unet that learns to draw what captions say: got another model; set "
            "adapter.kind = \"lora\", or name another model");
  };
  return {.name = kControlKind, .keys = {"from"}, .check = check, .is_own = models::is_of_control};
}

ControlTensors take_control(const nn::Parameters& parameters, ControlTensors& tensors) {
  const auto is_other = [&](const checkpoint::NamedTensor& tensor) {
    const auto& all = parameters.declared();
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.name == tensor.name; });
    return found == all.end() || !found->is_added || !models::is_of_control(tensor.name);
  };
  const auto first = std::stable_partition(tensors.begin(), tensors.end(), is_other);
  ControlTensors taken(std::make_move_iterator(first), std::make_move_iterator(tensors.end()));
  tensors.erase(first, tensors.end());
  return taken;
}

void fill_control(const std::string& path, const models::ModelShape& shape, const nn::Parameters& parameters,
                  ControlTensors tensors, comm::Mesh& mesh, bool uses_average, const ModelSource* base) {
  std::string newest;  // of a run
  comm::agree(mesh.all(), at::kCPU, [&] {
    if (is_control_run(path)) {
      newest = newest_checkpoint(path, checkpoint::step_folders(RunFolder(path).checkpoints()));
      if (base && mesh.world().rank() == 0) check_same_base({.path = path, .checkpoint = newest}, *base);
      return;
    }
    const std::unique_ptr<nn::Parameters> own = alone(parameters);
    checkpoint::import_weights(path, *own, tensors, control_names(shape));
  });
  newest = comm::broadcast_text(mesh.all(), at::kCPU, 0, newest);  // the run may save a newer one meanwhile
  if (newest.empty()) return;
  checkpoint::TrainingState state;
  for (checkpoint::NamedTensor& tensor : tensors) {
    tensor.name = "model." + tensor.name;
    state.tensors.push_back(std::move(tensor));
  }
  checkpoint::load(newest, state, mesh.all(), mesh.coordinates(), "model.", {},
                   averages_in(newest, uses_average, state));
}

void copy_into_control(const ModelSource& base, const nn::Parameters& parameters, const ControlTensors& tensors,
                       comm::Mesh& mesh) {
  ControlTensors copies;
  for (const checkpoint::NamedTensor& tensor : tensors)
    if (const auto origin = models::control_origin(tensor.name)) {
      copies.push_back(tensor);
      copies.back().name = *origin;
    }
  read_source(base, parameters, std::move(copies), mesh, "");
}

void export_control(const std::string& to, const SavedModel& saved, const std::string& run, comm::Mesh& mesh,
                    bool uses_average) {
  models::ModelShape shape;
  comm::agree(mesh.all(), at::kCPU, [&] {
    shape = models::with_control(saved.model->model().shape, control_of(run, saved.model->model().shape));
  });
  nn::Parameters parameters(mesh.coordinates(), {.dtype = saved.model->parameters().options().dtype});
  nn::SerialLayers layers(parameters);
  models::make_model(shape, layers);
  ControlTensors tensors;
  for (const nn::Parameter& p : parameters) tensors.push_back({p.name, p.value.detach(), p.spec});
  const ControlTensors own = take_control(parameters, tensors);
  fill_control(run, shape, parameters, own, mesh, uses_average);
  checkpoint::export_weights(to, *alone(parameters, &own), control_names(shape), models::control_to_diffusers(shape),
                             mesh.all());
}

}  // namespace colossal::run
