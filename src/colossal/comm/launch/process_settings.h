// The environment variables that must be set before the libraries that read them are loaded.
//
//   for (const auto& [name, value] : comm::process_settings(comm::process_variables()))
//     setenv(name.c_str(), value.c_str(), /*overwrite=*/0);
#pragma once
#include "colossal/comm/launch/environment.h"

namespace colossal::comm {

/// Returns the variables that a program on LibTorch needs in addition to those of `environment`, its environment. A
/// variable that `environment` has is not returned, because settings of the user have priority.
///
/// GOMP_SPINCOUNT = 1000: threads of libgomp spin for milliseconds between two loops, unless this is set before libgomp
/// loads. While another process used the cores, a step took 25 times as long. A spin count of 1000 avoids this and
/// costs nothing on idle cores, where no spinning at all costs a quarter (docs/log.md). Not returned if
/// OMP_WAIT_POLICY is set.
///
/// CUDA_DEVICE_MAX_CONNECTIONS = 32: a GPU has eight queues, unless this is set before its first use, and streams share
/// them. A receive that waits for its sender would then block later work of other streams in the same queue. 32 is the
/// maximum.
Variables process_settings(const Variables& environment);

/// Sets CUDA_DEVICE_MAX_CONNECTIONS in this process, unless it is set. It is for a process that was started without
/// process_settings() and has not used a GPU: after the first use of CUDA it has no effect, except on programs that
/// this process starts. Call it before other threads read the environment. launch() calls it for `device = "cuda"`.
void set_device_connections();

}  // namespace colossal::comm
