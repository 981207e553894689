// A denoiser with a ControlNet within it (arXiv:2302.05543), so that both run and train as one model: its shape, the
// names of its parameters, and its form in diffusers, the folder of a ControlNetModel (0.42.1).
//
//   const ModelShape whole = models::with_control(unet, {.channels = {16, 32, 96, 256}, .scale = 0.8});
//   for (const nn::ExternalName& name : models::control_folder_names(whole)) ...    // "controlnet_mid_block.weight"
//
// Folders of the UNet have none of its parameters, which count as added (nn::Parameter::is_added). The model reads the
// field `control` (models/denoiser.h) in addition.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/external_name.h"
#include "colossal/nn/parameter.h"

namespace colossal::models {

/// Returns the shape with a ControlNet. Errors ("model"): another denoiser than a UNet; one with its text encoder
/// within it; no channels.
ModelShape with_control(ModelShape denoiser, OwnControl control);

/// Returns the shape without its ControlNet. Other shapes stay as they are.
ModelShape without_control(ModelShape shape);

/// Returns true if the shape has a ControlNet.
bool has_control(const ModelShape& shape);

/// Returns true for the name of a parameter of a ControlNet, within its model.
bool is_of_control(const std::string& name);

/// Returns the parameter of the UNet whose values that parameter of the ControlNet starts from; none = it has values of
/// its own: the layers of the control picture, and the convolutions that start at 0.
std::optional<std::string> control_origin(const std::string& name);

/// Marks the parameters of a ControlNet as added. Models call it once their layers are made.
void mark_control(nn::Parameters& parameters);

/// Returns the place of each parameter of the ControlNet in its folder. `shape` has one.
std::vector<nn::ExternalName> control_folder_names(const ModelShape& shape);

/// Returns the ControlNet that the config.json of a ControlNetModel describes, for the UNet of `shape`.
/// Errors ("adapter"): another class; a key that this class does not have; a value that makes another model; sizes of
/// another UNet, with both numbers.
OwnControl control_from_diffusers(const nlohmann::json& config, const ModelShape& shape);

/// Returns the config.json with which diffusers computes the same. `shape` has a ControlNet.
nlohmann::json control_to_diffusers(const ModelShape& shape);

}  // namespace colossal::models
