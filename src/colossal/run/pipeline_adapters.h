// The adapters of a file for a pipeline (checkpoint/peft/pipeline_file.h) that belong to one of its models, by the
// names of that model's modules.
//
//   const auto found = run::adapters_of_part(*source.peft, modules, shape);
//   modules.linear()[found.front().module].name;      // "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/checkpoint/peft/folder.h"
#include "colossal/models/shape.h"
#include "colossal/run/adapter_modules.h"
#include "colossal/run/adapter_source.h"

namespace colossal::run {

/// Returns the adapters of a folder with is_of_pipeline() that belong to the model of `shape`: a model that draws, a
/// text encoder, or the first with the second within it. Adapters of the other parts of a pipeline are left out. Names
/// without the prefix of a part belong to the model that draws. Kohya's names may be those of diffusers or of makers'
/// files (checkpoint/ldm/module_names.h); the adapter of a matrix that a file has in one for several modules is split
/// by its rows, and its A is that of each. A text encoder has the adapters of a pipeline's first one.
/// Errors ("adapter"): layers that no part has, all listed; a layer of another size, which belongs to another base.
std::vector<FolderAdapter> adapters_of_part(const checkpoint::PeftFolder& folder, const AdapterModules& modules,
                                            const models::ModelShape& shape);

/// Returns true if the folder has adapters of a text encoder. `encoder`: its number, from 0; -1 = any.
bool has_text_adapters(const checkpoint::PeftFolder& folder, int64_t encoder = -1);

/// Returns the adapters of a pipeline's text encoder of that number, under the names of the first one.
checkpoint::PeftFolder adapters_of_encoder(const checkpoint::PeftFolder& folder, int64_t encoder);

}  // namespace colossal::run
