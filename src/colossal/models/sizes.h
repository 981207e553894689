// The sizes that one family of models has in addition to the sizes of all families.
#pragma once
#include <cstdint>

#include "colossal/base/own_keys.h"

namespace colossal::models {

/// The largest value of any size. With this limit, no product of two sizes in a run overflows.
inline constexpr int64_t kMaxSize = (int64_t{1} << 40) - 1;

/// Keys of [model] that one family has.
using OwnSizes = OwnKeys;

}  // namespace colossal::models
