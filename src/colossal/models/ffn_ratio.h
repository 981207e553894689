// The size of a feed-forward layer in folders that give it as a ratio to the hidden size, as Open-Sora does.
//
//   ffn_of_ratio(4.5, 16);                       // 72
//   ffn_of_ratio(ratio_of_ffn(107, 104), 104);   // 107
#pragma once
#include <cstdint>

namespace colossal::models {

/// Returns the features of the layer: the product, rounded down.
int64_t ffn_of_ratio(double ratio, int64_t hidden);
/// Returns the ratio with which ffn_of_ratio() is `ffn`.
double ratio_of_ffn(int64_t ffn, int64_t hidden);

}  // namespace colossal::models
