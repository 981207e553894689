// Checks a shape's own keys against their ranges. Config files are checked while they are read, but values that a
// Hugging Face folder or a program sets are not.
#pragma once
#include "colossal/models/sizes.h"

namespace colossal::models {

/// Errors ("model"): the first key of `own` that is outside its range or not one of its choices.
void check_own_ranges(OwnSizes own);

}  // namespace colossal::models
