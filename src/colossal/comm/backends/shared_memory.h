// The transport of ranks that share memory: one algorithm over a Segment, for threads and for processes of one host.
//
//   up to 64 KB / (n-1)   every rank shows its tensor and reduces all of them itself: one meeting
//   beyond                direct reduce-scatter and all-gather in pieces of half a megabyte: chunk r of a piece is
//                         reduced by rank r from where the peers put it, while the previous piece is collected: one
//                         meeting a piece
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "colossal/comm/backends/backend.h"
#include "colossal/comm/backends/channels.h"
#include "colossal/comm/backends/slots.h"
#include "colossal/comm/backends/worker.h"

namespace colossal::comm {

/// CPU tensors only (see HostStaging). Calls of up to 64 KB run in the calling thread and may block it until all peers
/// have arrived. Larger calls run on a thread of this group, in order. Ranks that are in several groups must therefore
/// call them in an order that all ranks agree on, as with MPI.
///
/// Errors: a mismatch of collective, size, dtype, root or reduction throws on every rank, with one message that names
///         both calls; a peer that died or left is named. Large calls throw from Work::wait(). After an error the group
///         is dead.
/// Cost:   all_reduce of B bytes moves about 3 B (n-1)/n + 2 B/n bytes through memory on each rank.
class SharedMemory : public Backend {
 public:
  /// `segment` has Slots::segment_bytes(size) zeroed bytes and is the same memory on every rank.
  SharedMemory(std::shared_ptr<Segment> segment, std::string name, int rank, int size, int ranks_on_host);
  ~SharedMemory() override;

  const std::string& name() const override { return name_; }
  int rank() const override { return slots_->rank(); }
  int size() const override { return slots_->size(); }
  Work issue(const Call& call) override;
  void abort(const std::string& reason) noexcept override;

 private:
  template <class Task>
  Work run(int64_t bytes, Task task);
  Signature next_signature(const Call& call);
  void perform(const Call& call, const Signature& signature);

  void reduce_at_once(const Call& call, const Signature& signature);
  void reduce_in_pieces(const Call& call, const Signature& signature);
  void gather(const Call& call, const Signature& signature);
  void scatter(const Call& call, const Signature& signature);
  void exchange(const Call& call, const Signature& signature);
  void spread(const Call& call, const Signature& signature);
  void collect(const Call& call, const Signature& signature);

  const std::string name_;
  std::shared_ptr<Slots> slots_;
  std::shared_ptr<Channels> channels_;
  uint32_t calls_ = 0;
  std::mutex running_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace colossal::comm
