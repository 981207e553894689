// All ranks of a run as one of them sees it. Made by launch() in a process of its own or by run_ranks() as a thread of
// a test.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/group.h"
#include "colossal/comm/traffic.h"

namespace colossal::comm {

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  ///< among the ranks of this host
  virtual int local_size() const = 0;
  /// The group of `ranks` (of the world, in group order), decorated with counting and the watchdog. Collective among
  /// exactly those ranks. One rank: a null group, which communicates nothing. `name` appears in counters and errors;
  /// the same set of ranks may be asked for under several names.
  virtual std::shared_ptr<Group> make_group(const std::string& name, const std::vector<int>& ranks) = 0;
  virtual Traffic& traffic() = 0;
  /// Name of the transport that groups of this world use: "threads", "shm", "gloo", "nccl", "null".
  virtual std::string backend() const = 0;
};

}  // namespace colossal::comm
