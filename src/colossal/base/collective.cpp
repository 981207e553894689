#include "colossal/base/collective.h"

#include <cstddef>
#include <iterator>

namespace colossal {

const char* to_string(Collective collective) {
  static constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                                           "reduce",     "send",       "recv",           "barrier"};
  const auto index = static_cast<size_t>(collective);
  return index < std::size(kNames) ? kNames[index] : "an unknown collective";
}

}  // namespace colossal
