// The dispatch key at which the tracer hears operators: above autograd and autocast. LibTorch registers nothing on it.
#pragma once
#include <c10/core/DispatchKey.h>

namespace colossal::automatic {

inline constexpr c10::DispatchKey kTraceKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

}  // namespace colossal::automatic
