#include "colossal/models/ffn_ratio.h"

#include <cmath>
#include <limits>

namespace colossal::models {

int64_t ffn_of_ratio(double ratio, int64_t hidden) { return static_cast<int64_t>(static_cast<double>(hidden) * ratio); }

double ratio_of_ffn(int64_t ffn, int64_t hidden) {
  const double ratio = static_cast<double>(ffn) / static_cast<double>(hidden);
  return ffn_of_ratio(ratio, hidden) < ffn ? std::nextafter(ratio, std::numeric_limits<double>::infinity()) : ratio;
}

}  // namespace colossal::models
