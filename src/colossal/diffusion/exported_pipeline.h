// Writes a model that draws as the folder of a pipeline of diffusers: model_index.json, and a folder for each part.
//
//   export_pipeline("out", *saved.model, objective, mesh.group("data"), at::kFloat);
//   // Python: DiTTransformer2DModel.from_pretrained("out", subfolder="transformer")
#pragma once
#include <c10/core/ScalarType.h>

#include <string>

#include "colossal/comm/group.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"

namespace colossal::diffusion {

/// Writes the folders `transformer` and `scheduler`, and model_index.json with the names of the classes.
/// Communication: that of checkpoint::export_weights(): every rank of `world` calls it.
/// Errors ("export"): a model or a target that diffusers 0.42 does not have, with the key. Errors of export_weights().
void export_pipeline(const std::string& folder, distributed::DistributedModel& model,
                     const run::DiffusionObjective& objective, comm::Group& world, at::ScalarType dtype);

}  // namespace colossal::diffusion
