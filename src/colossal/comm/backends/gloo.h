// The transport between hosts: c10d's Gloo over TCP. It adds a reduce-scatter that moves only the necessary bytes, and
// sums of bf16 and fp16 that are accumulated in fp32.
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
  std::string address;  ///< address of this host's interface that the peers can reach; GLOO_SOCKET_IFNAME overrides it
  std::chrono::milliseconds limit = kBackendTimeout;  ///< limit of Gloo itself: only the watchdog limits waits
};

/// Makes the group; collective among the members. Opens a connection to each peer. `store` belongs to the group alone
/// (its prefix is unique).
///
/// CPU tensors only (see HostStaging). Calls of up to 64 KB run in the calling thread, larger ones on a thread of the
/// group, in order.
/// Errors: a lost connection throws Error("comm", ...). Gloo does not compare the calls of ranks: a mismatch shows as
///         a failure of size, or as a stall that the watchdog ends.
std::shared_ptr<Backend> make_gloo_group(const GlooOptions& options, std::shared_ptr<Store> store);

}  // namespace colossal::comm
