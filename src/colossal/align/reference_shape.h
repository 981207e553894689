// A reference must be a model like the one that is trained.
//
//   check_reference_shape(engine.model("reference").model().shape, engine.model().shape);
#pragma once
#include "colossal/models/shape.h"

namespace colossal::align {

/// Checks that the reference has the architecture, the vocabulary and the sizes of the model; dropout and the number of
/// positions may differ. Errors ("reference"): it does not; the message has the keys that differ.
void check_reference_shape(const models::ModelShape& reference, const models::ModelShape& model);

/// Returns true if the experts of a model drop tokens in training.
bool drops_tokens(const models::ModelShape& shape);

}  // namespace colossal::align
