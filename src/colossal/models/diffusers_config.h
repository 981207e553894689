// The config.json of a class of diffusers, as a family reads it.
//
//   nlohmann::json known{...};                                   // every key that the class has
//   check_diffusers_config(config, "AutoencoderKL", known);
//   return settled(read_folder(FolderConfig(config, "AutoencoderKL"), keys), "autoencoder_kl");
#pragma once
#include <string>

#include "colossal/base/json.h"
#include "colossal/models/shape.h"

namespace colossal::models {

/// Checks that a config is of the class and has none but its keys, the members of `known`. Keys that begin with `_` are
/// ignored. Errors ("model"): another class; a key that the class does not have.
void check_diffusers_config(const nlohmann::json& config, const char* class_name, const nlohmann::json& known);

/// Returns a shape that was read from a folder as one of the built-in architecture of that name, with the sizes that
/// follow from others. Errors ("model"): those of check_own_ranges(), Architecture::settle and ModelShape::validate().
ModelShape settled(ModelShape shape, const std::string& architecture);

}  // namespace colossal::models
