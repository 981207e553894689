// Which device a rank computes on, and exchanges tensors of.
//
//   const at::Device device = comm::choose_device("auto", world.local_rank());
#pragma once
#include <c10/core/Device.h>

#include <string>

namespace colossal::comm {

/// The device that `name` ("cpu", "cuda", "auto") means for rank `local_rank` of this host: GPU number `local_rank`,
/// counted around where there are fewer. "auto" is "cuda" where there is a GPU that this build can use, else "cpu".
/// Errors: throws Error("run", ...) for "cuda" without one.
at::Device choose_device(const std::string& name, int local_rank);

}  // namespace colossal::comm
