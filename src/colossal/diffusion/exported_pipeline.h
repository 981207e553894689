// Writes a model that draws as the folder of a pipeline of diffusers: model_index.json, and a folder for each part.
//
//   export_pipeline("out", *saved.model, objective, mesh, at::kFloat, program);
//   // Python: DiTTransformer2DModel.from_pretrained("out", subfolder="transformer")
#pragma once
#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "colossal/comm/group.h"
#include "colossal/comm/mesh.h"
#include "colossal/diffusion/own_model.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/program.h"
#include "colossal/run/saved_model.h"

namespace colossal::diffusion {

/// Writes the folder of the model (models::Diffusers::part), `scheduler`, the autoencoder and the text encoder of the
/// pipeline with its tokenizer, and model_index.json with the names of the classes. Folders of parts are copied; those
/// of runs and presets are written, and a text encoder with OwnLoading::adapters. A byte tokenizer has no form in
/// diffusers, and is left out.
/// Communication: that of checkpoint::export_weights(): every rank of `mesh` calls it. Returns lines for the user.
/// Errors ("export"): a model or a target that diffusers 0.42 does not have, with the key. Errors of export_weights().
std::vector<std::string> export_pipeline(const std::string& folder, distributed::DistributedModel& model,
                                         const run::DiffusionObjective& objective, comm::Mesh& mesh,
                                         at::ScalarType dtype, const OwnLoading& text_encoder,
                                         const run::Program& program);

/// Writes what draws clips beside the weights of their model in `folder`, which must be there, as run::PipelineIndex
/// has it: the text encoder with its tokenizer, the autoencoder, and the index. Parts are copied or written as by
/// export_pipeline(). All ranks of `mesh` call it; rank 0 writes. Errors, on all ranks: those of export_weights();
/// ("file") a file that cannot be copied or written.
void export_parts_of_clips(const std::string& folder, const run::PipelineSource& source, comm::Mesh& mesh,
                           const OwnLoading& text_encoder, const run::Program& program);

/// Writes the pipeline of `from`, a folder or a makers' single file, with the weights of `model`, its denoiser. The
/// files of all other parts of a folder are copied as they are, but for pickles beside safetensors; parts of a file
/// are written.
/// Communication and errors: as export_pipeline(), ("pipeline") those of run::read_pipeline(), ("file") a file that
/// cannot be copied.
void export_pipeline_from(const std::string& from, const std::string& folder, distributed::DistributedModel& model,
                          comm::Mesh& mesh, at::ScalarType dtype, const run::Program& program);

/// Writes the IP-adapter of a run as run::export_image_prompt(), and its encoder of pictures as the folder
/// image_encoder, which diffusers' load_ip_adapter() reads. Collective among all ranks of `mesh`. Errors: those of
/// run::export_image_prompt(); ("file") a file that cannot be copied.
void export_image_prompt(const std::string& to, const run::SavedModel& saved, const std::string& run, comm::Mesh& mesh,
                         bool uses_average, const run::Program& program);

}  // namespace colossal::diffusion
