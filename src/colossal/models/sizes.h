// The sizes that one family of models has in addition to the sizes of all families.
#pragma once
#include <cstdint>

#include "colossal/base/own_keys.h"

namespace colossal::models {

/// The largest value of any size. With this limit, no product of two sizes in a run overflows.
inline constexpr int64_t kMaxSize = (int64_t{1} << 40) - 1;

/// Keys of [model] that one family has.
using OwnSizes = OwnKeys;

/// Checks own keys against their ranges. Config files are checked while they are read, but values that a Hugging Face
/// folder or a program sets are not.
/// Errors ("model"): the first key of `own` that is outside its range or not one of its choices.
void check_own_ranges(OwnSizes own);

}  // namespace colossal::models
