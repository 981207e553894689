// What a folder of a model of clips has beside published weights, so that it can be drawn: colossal_pipeline.json.
// diffusers has no pipelines of such models.
//
//   if (has_pipeline_index("exported")) {
//     const PipelineIndex index = read_pipeline_index("exported");
//     index.diffusion.guidance, index.has("vae");                      // the autoencoder is the folder exported/vae
//   }
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/run/objectives/diffusion/diffusion_keys.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"

namespace colossal::run {

struct PipelineIndex {
  int64_t frames = 0, height = 0, width = 0;  ///< of the clips for which the model is made, in cells
  int64_t seed = 1;                           ///< of the weights of presets that replace parts
  /// Names of the folders beside the weights: "vae", "text_encoder", "tokenizer", and of further text encoders
  /// "text_encoder_2" and so on. Without a vae the model draws pixels; without a tokenizer captions are bytes
  std::vector<std::string> parts{};
  DiffusionKeys diffusion{};  ///< completed()
  void fields(Fields& f);

  bool has(const std::string& part) const;
};

/// Returns true for a folder that has such a file.
bool has_pipeline_index(const std::string& path);

/// Returns what the file of a folder has. Errors ("pipeline"), with the name of the file: it is no such object; a part
/// of another name; a part whose folder is missing.
PipelineIndex read_pipeline_index(const std::string& folder);

/// Writes the file of a pipeline of clips. Errors: those of write_file().
void write_pipeline_index(const std::string& folder, const PipelineSource& source);

}  // namespace colossal::run
