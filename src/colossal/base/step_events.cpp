#include "colossal/base/step_events.h"

#include <algorithm>

namespace colossal {

int32_t StepEvents::index_of(const Group& group) {
  const auto found = std::find(groups.begin(), groups.end(), group);
  const auto index = static_cast<int32_t>(found - groups.begin());
  if (found == groups.end()) groups.push_back(group);
  return index;
}

}  // namespace colossal
