// The parts that a loaded model gets within it, as Loading asks for: learned words, a ControlNet, an IP-adapter.
//
//   shape = with_parts(shape, loading);
//   TensorsOfParts parts = take_parts(parameters, tensors);                 // `tensors` are then those of the base
//   fill_parts(std::move(parts), loading, shape, parameters, mesh, base);
#pragma once
#include <string>

#include "colossal/comm/mesh.h"
#include "colossal/models/shape.h"
#include "colossal/nn/parameter.h"
#include "colossal/run/added_part.h"
#include "colossal/run/saved_model.h"

namespace colossal::run {

struct ModelSource;

/// Returns the shape with the parts. It does not communicate. Errors: those of control_of() and image_prompt_of().
models::ModelShape with_parts(models::ModelShape shape, const Loading& loading);

/// The tensors of parts that have a place of their own.
struct TensorsOfParts {
  PartTensors control, image;
};

/// Moves the tensors of the parts from `tensors` into the result.
TensorsOfParts take_parts(const nn::Parameters& parameters, PartTensors& tensors);

/// Reads the parts. `base`: the source of the model's other weights. Collective, as fill_part().
void fill_parts(TensorsOfParts parts, const Loading& loading, const models::ModelShape& shape,
                const nn::Parameters& parameters, comm::Mesh& mesh, const ModelSource& base);

/// Returns true for a run whose checkpoints have such a part, and no other weights.
bool has_parts_alone(const std::string& run);

}  // namespace colossal::run
