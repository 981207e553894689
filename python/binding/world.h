// A world that Python holds.
#pragma once
#include <c10/core/Device.h>

#include <memory>

#include "colossal/comm/world.h"

namespace colossal::binding {

/// All ranks of a run, a group of them for calls of Python, and the device of this rank.
struct JoinedWorld {
  /// Collective among all ranks.
  JoinedWorld(std::unique_ptr<comm::World> joined, at::Device chosen);

  std::unique_ptr<comm::World> world;
  std::shared_ptr<comm::Group> all;
  at::Device device;
};

}  // namespace colossal::binding
