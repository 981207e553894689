// The sizes that one family of models has in addition to those of all families.
#pragma once
#include <cstdint>

#include "colossal/base/own_keys.h"

namespace colossal::models {

/// The largest value of any size: no product of two sizes that a run can have overflows.
inline constexpr int64_t kLargestSize = (int64_t{1} << 40) - 1;

/// Keys of [model] of one family.
using OwnSizes = OwnKeys;

}  // namespace colossal::models
