// The label of what does not count in a loss.
#pragma once
#include <cstdint>

namespace colossal::data {

constexpr int64_t kIgnored = -100;  ///< the label of a token or image that does not count in the loss

}  // namespace colossal::data
