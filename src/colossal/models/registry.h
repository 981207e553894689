// The architectures, one row each. A new model is its pair of files and a row in registry.cpp.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/models/model.h"
#include "colossal/nn/external_name.h"
#include "colossal/nn/layers.h"

namespace colossal::models {

struct Preset {
  const char* name;
  ModelShape shape;
};

/// What a model reads: it decides which data a run opens, and what can be asked of the model.
enum class Input {
  Tokens,  ///< ids [B, S]; each label is the next token
  Images,  ///< [B, C, side, side]; one label an image, its class
};

struct Architecture {
  const char* name;
  Input input = Input::Tokens;
  std::vector<Preset> (*presets)();
  Model (*make)(const ModelShape&, nn::Layers&);
  /// Errors: inputs or labels that the model does not have. What the layers are given was checked by this before any
  ///         communication.
  void (*check)(const ModelShape&, const at::Tensor& inputs, const at::Tensor& labels);
  /// Trainable logical elements of the matrices that the hidden states are multiplied with.
  int64_t (*matrix_elements)(const ModelShape&);
  /// Floating point operations of a training step per sample, forward and backward; of text, a sample has `sequence`
  /// tokens.
  double (*flops)(const ModelShape&, int64_t sequence);
  /// Where each parameter is found in a Hugging Face folder, and the config.json of one.
  std::vector<nn::ExternalName> (*external_names)(const ModelShape&);
  ModelShape (*from_json)(const nlohmann::json&);
  nlohmann::json (*to_json)(const ModelShape&);
  const char* model_type;            ///< "model_type" of its config.json
  const char* prefix;                ///< of all names but the head's; folders of the bare model leave it out
  std::vector<std::string> ignored;  ///< tensors of such a folder that carry no weights, as patterns with `*`
};

const std::vector<Architecture>& architectures();
/// Errors ("model"): unknown name.
const Architecture& architecture(const std::string& name);
std::vector<std::string> preset_names();

/// Builds the model of `shape` with layers from `layers`, whose Parameters it fills. Errors: those of shape.validate().
Model make_model(const ModelShape& shape, nn::Layers& layers);

/// The shape that a Hugging Face config.json describes. Errors ("model"): an unknown model_type, a missing or
/// unsupported key.
ModelShape shape_from_json(const nlohmann::json& config);

}  // namespace colossal::models
