#include "colossal/base/step_memory.h"

#include <algorithm>

namespace colossal {

void StepMemory::Kinds::fields(Fields& f) {
  f.member("parameters", parameters);
  f.member("gradients", gradients);
  f.member("states", states);
  f.member("activations", activations);
  f.member("buffers", buffers);
  f.member("host", host);
}

std::vector<StepMemory::Point> fewer_points(const std::vector<StepMemory::Point>& points, size_t count) {
  if (points.size() <= count) return points;
  std::vector<StepMemory::Point> fewer;
  fewer.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = i * points.size() / count, end = (i + 1) * points.size() / count;
    StepMemory::Point joined = points[begin];
    for (size_t j = begin + 1; j < end; ++j) {
      const int64_t host = std::max(joined.kinds.host, points[j].kinds.host);
      if (points[j].kinds.device() > joined.kinds.device()) joined.kinds = points[j].kinds;
      joined.kinds.host = host;
    }
    fewer.push_back(joined);
  }
  return fewer;
}

}  // namespace colossal
