// A reference must be a model like the one that is trained.
//
//   check_reference_shape(engine.model("reference").model().shape, engine.model().shape);
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "colossal/models/shape.h"

namespace colossal::align {

/// Returns the keys of [model] that change what the weights compute: all but dropout, the number of positions, and
/// those that only training reads (models::HuggingFace::own_training).
nlohmann::json computing_keys(const models::ModelShape& shape);

/// Checks that the reference has the architecture, the vocabulary and the computing_keys() of the model. Errors
/// ("reference"): it does not; the message has the keys that differ.
void check_reference_shape(const models::ModelShape& reference, const models::ModelShape& model);

/// Returns true if the experts of a model drop tokens in training.
bool drops_tokens(const models::ModelShape& shape);

}  // namespace colossal::align
