// Writes the adapters of a model as a folder of peft.
//
//   const run::SavedModel saved = run::load_model("runs/lora", mesh, {}, at::kCPU,
//                                                 {.tokenizer = "none", .merges_adapters = false});
//   run::export_adapters("out", saved, run::open_adapters("runs/lora"), mesh);
#pragma once
#include <string>

#include "colossal/checkpoint/peft/pipeline_file.h"
#include "colossal/comm/mesh.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/saved_model.h"

namespace colossal::run {

/// Writes adapter_config.json and adapter_model.safetensors, as peft 0.21 does, into the folder `to`, which is made if
/// there is none. `saved`: a model whose adapters, those of `source`, are apart (Loading::merges_adapters). Values have
/// the dtype of its parameters.
/// Communication: every rank of `mesh` must call. The adapters and modules that were trained whole are sent to rank 0;
/// with magnitudes also that of row_norms().
/// Adapters of a model that draws are written as a file for its pipeline instead (checkpoint/peft/pipeline_file.h), in
/// the form `form`; other models have the form Peft alone.
/// Errors ("export"): an architecture without a folder of transformers or diffusers; another form of a model of text;
/// modules that were trained whole, for a pipeline; a file that cannot be written.
void export_adapters(const std::string& to, const SavedModel& saved, const AdapterSource& source, comm::Mesh& mesh,
                     checkpoint::PipelineForm form = checkpoint::PipelineForm::Peft);

}  // namespace colossal::run
