#include "colossal/run/control_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/manifest.h"
#include "colossal/comm/agreement.h"
#include "colossal/models/unet_control_net.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/added_part.h"
#include "colossal/run/data.h"
#include "colossal/run/model_source.h"
#include "colossal/run/program.h"
#include "colossal/run/stored_config.h"

namespace colossal::run {
namespace {

constexpr AddedPart kControlPart{
    .kind = kControlKind, .is_of = models::is_of_control, .origin = models::control_origin};

/// Returns how a folder of a ControlNet has its tensors.
checkpoint::ExternalNames control_names(const models::ModelShape& shape) {
  return {.names = models::control_folder_names(shape), .stem = "diffusion_pytorch_model"};
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

bool is_control_run(const std::string& path) { return is_run_of(kControlPart, path); }

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

PartTensors take_control(const nn::Parameters& parameters, PartTensors& tensors) {
  return take_part(kControlPart, parameters, tensors);
}

void fill_control(const std::string& path, const models::ModelShape& shape, const nn::Parameters& parameters,
                  PartTensors tensors, comm::Mesh& mesh, bool uses_average, const ModelSource* base) {
  fill_part(kControlPart, path, parameters, std::move(tensors), mesh, uses_average, base,
            [&](const nn::Parameters& alone, const PartTensors& own) {
              checkpoint::import_weights(path, alone, own, control_names(shape));
            });
}

void copy_into_control(const ModelSource& base, const nn::Parameters& parameters, const PartTensors& tensors,
                       comm::Mesh& mesh) {
  copy_into_part(kControlPart, base, parameters, tensors, mesh);
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
  PartTensors tensors;
  for (const nn::Parameter& p : parameters) tensors.push_back({p.name, p.value.detach(), p.spec});
  const PartTensors own = take_control(parameters, tensors);
  fill_control(run, shape, parameters, own, mesh, uses_average);
  checkpoint::export_weights(to, *part_alone(kControlPart, parameters, &own), control_names(shape),
                             models::control_to_diffusers(shape), mesh.all());
}

}  // namespace colossal::run
