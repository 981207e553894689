// Folders of peft: adapter_config.json and adapter_model.safetensors. A layer of the base has the tensors
//
//   base_model.model.model.layers.4.self_attn.k_proj.lora_A.weight            [r, in]
//   base_model.model.model.layers.4.self_attn.k_proj.lora_B.weight            [out, r]
//   base_model.model.model.layers.4.self_attn.k_proj.lora_magnitude_vector    [out], with use_dora
//
// and a module that was trained whole has its own: base_model.model.lm_head.weight. The experts of a layer have
// adapters of whole stacks (target_parameters). Of two parameters of one module, the later one has the name of the
// module, and the earlier one also ".base_layer", because peft wraps the module once for each:
//
//   base_model.model.model.layers.4.mlp.experts.lora_A.weight                 [r E, in], seen as (E, r, in): down_proj
//   base_model.model.model.layers.4.mlp.experts.lora_B.weight                 [out, r E], seen as (out, r, E)
//   base_model.model.model.layers.4.mlp.experts.base_layer.lora_A.weight      [r E, in], of gate_up_proj
//
//   const checkpoint::PeftFolder folder("poet");
//   folder.layers().at("model.layers.4.self_attn.k_proj").a;
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "colossal/checkpoint/peft/config.h"

namespace colossal::checkpoint {

/// The adapter of one layer: W + scale b a.
struct PeftLayer {
  at::Tensor a, b;       ///< [rank, in], [out, rank]; of E experts [E, rank, in], [E, out, rank]
  at::Tensor magnitude;  ///< [out], the norms of rows that DoRA trains; undefined = none
  int64_t rank = 0;
  double scale = 1;
};

/// Returns true if the folder has an adapter_config.json.
bool is_peft_folder(const std::string& folder);

/// The adapters of a folder, whose tensors are views of the file.
class PeftFolder {
 public:
  /// Errors ("peft"): no adapter_model.safetensors, in the place of which an adapter_model.bin has code that reading it
  ///        would run; tensors of shape [0]; a layer without its A, B or magnitude, or of shapes or ranks that do not
  ///        fit the config; other adapters of a module than target_parameters has; tensors of embeddings and of
  ///        tokens, which have no adapters here; a tensor that is none of the config's. Errors of PeftConfig::read()
  ///        and SafetensorsReader.
  explicit PeftFolder(const std::string& folder);
  /// Adapters to be written.
  PeftFolder(PeftConfig config, std::map<std::string, PeftLayer> layers, std::map<std::string, at::Tensor> trained)
      : config_(std::move(config)), layers_(std::move(layers)), trained_(std::move(trained)) {}

  /// Adapters of the parts of a pipeline, which are loaded in the same way (checkpoint/peft/pipeline_file.h).
  static PeftFolder of_pipeline(PeftConfig config, std::map<std::string, PeftLayer> layers) {
    PeftFolder folder(std::move(config), std::move(layers), {});
    folder.is_of_pipeline_ = true;
    return folder;
  }

  /// Returns true if layers() are of the parts of a pipeline, with names as its file has them.
  bool is_of_pipeline() const { return is_of_pipeline_; }
  const PeftConfig& config() const { return config_; }
  /// The adapters by the names of their modules in the model: "model.layers.4.self_attn.k_proj"; of stacks of experts
  /// by the names of the parameters: "model.layers.4.mlp.experts.down_proj".
  const std::map<std::string, PeftLayer>& layers() const { return layers_; }
  /// The tensors of modules that were trained whole, by their names in the model: "lm_head.weight".
  const std::map<std::string, at::Tensor>& trained() const { return trained_; }
  /// Returns the modules of trained(): "lm_head".
  std::vector<std::string> trained_modules() const;

  /// Writes both files, as peft 0.21 does. The folder must exist. Errors ("file"): it cannot be written.
  void write(const std::string& folder) const;

 private:
  void add(const std::string& name, const at::Tensor& value, const std::string& file);
  void name_stacks(const std::string& file);
  void check(const std::string& file);

  PeftConfig config_;
  std::map<std::string, PeftLayer> layers_;
  std::map<std::string, at::Tensor> trained_;
  bool is_of_pipeline_ = false;
};

}  // namespace colossal::checkpoint
