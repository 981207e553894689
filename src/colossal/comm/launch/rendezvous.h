// Lets ranks that share only a store agree on things before they have a group.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/backends/segment.h"
#include "colossal/comm/store.h"

namespace colossal::comm {

struct Rendezvous {
  std::shared_ptr<Store> store;  ///< store of this rendezvous alone
  std::string what;              ///< name for errors: "group \"data\"", "the run"
  int rank = 0, size = 1;
  std::chrono::milliseconds limit{60000};
};

/// Returns every rank's `text`, in rank order. Errors: throws Error("launch", ...) that names the ranks which did not
/// arrive within the limit.
std::vector<std::string> gather_texts(const Rendezvous& rendezvous, const std::string& text);

/// Throws Error("launch", ...) that names the ranks of the rendezvous which did not arrive. Does nothing if all
/// arrived, or if the store is gone.
void throw_missing(const Rendezvous& rendezvous);

/// Returns one piece of shared memory for all ranks of the rendezvous, which must be on one host. Rank 0 makes it after
/// all ranks have arrived, and passes it to the others. The memory has no name, so none of it can remain after the
/// run. Errors: throws the same Error on every rank if any of them could not make or get it.
std::shared_ptr<Segment> share_segment(const Rendezvous& rendezvous, size_t bytes);

}  // namespace colossal::comm
