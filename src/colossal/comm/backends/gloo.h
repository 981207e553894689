// The transport between hosts: c10d's Gloo over TCP, with what it lacks: a reduce-scatter that moves only what it must,
// and sums of bf16 and fp16 that are accumulated in fp32.
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "colossal/comm/backends/backend.h"
#include "colossal/comm/store.h"

namespace colossal::comm {

struct GlooOptions {
  std::string name;
  int rank = 0, size = 1;
  std::string address;  ///< of this host's interface that the peers can reach; GLOO_SOCKET_IFNAME overrides it
  std::chrono::milliseconds limit = kFarOff;  ///< of Gloo itself: ranks wait as long as the watchdog lets them
};

/// Collective among the members: opens a connection to each peer. `store` is the group's own (a prefix no other group
/// has).
///
/// CPU tensors only (see HostStaging). Calls of up to 64 KB run in the calling thread, larger ones on a thread of the
/// group, in order.
/// Errors: a lost connection throws Error("comm", ...). Gloo does not compare what ranks call: a mismatch shows as a
///         failure of size, or as a stall that the watchdog ends.
std::shared_ptr<Backend> make_gloo_group(const GlooOptions& options, std::shared_ptr<Store> store);

}  // namespace colossal::comm
