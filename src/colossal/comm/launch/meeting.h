// How ranks that know nothing but a store agree on things before they have a group.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/backends/segment.h"
#include "colossal/comm/store.h"

namespace colossal::comm {

struct Meeting {
  std::shared_ptr<Store> store;  ///< of this meeting alone
  std::string what;              ///< for errors: "group \"data\"", "the run"
  int rank = 0, size = 1;
  std::chrono::milliseconds limit{60000};
};

/// Every rank's `text`, in rank order. Errors: throws Error("launch", ...) that names the ranks which did not come
/// within the limit.
std::vector<std::string> gather_texts(const Meeting& meeting, const std::string& text);

/// Throws Error("launch", ...) that names the ranks of the meeting which did not come. Does nothing if all have come,
/// or if the store is gone.
void throw_missing(const Meeting& meeting);

/// One piece of shared memory for all ranks of the meeting, who must be on one host. Rank 0 makes it when all have
/// come, and hands it to the others; it has no name, so that nothing of it can be left behind. Errors: throws the same
/// Error on every rank when any of them could not make or get it.
std::shared_ptr<Segment> share_segment(const Meeting& meeting, size_t bytes);

}  // namespace colossal::comm
