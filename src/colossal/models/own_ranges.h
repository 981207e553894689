// Own sizes of a shape against the ranges that their keys have: config files are checked while they are read, but what
// a Hugging Face folder or a program sets is not.
#pragma once
#include "colossal/models/sizes.h"

namespace colossal::models {

/// Errors ("model"): the first of `own` that lies outside the range of its key or is none of its choices.
void check_own_ranges(OwnSizes own);

}  // namespace colossal::models
