// The transport of ranks that share memory: one algorithm over a Segment, for threads and for the processes of one
// host.
//
//   up to 64 KB / (n-1)   every rank shows its tensor and reduces all of them itself: one meeting
//   beyond                direct reduce-scatter and all-gather in pieces of half a megabyte: chunk r of a piece is
//   reduced by rank r
//                         from where the peers put it, while the previous piece is collected: one meeting a piece
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
/// have come; larger ones run on a thread of this group, in order. Ranks that are in several groups must therefore call
/// them in an order that all ranks agree on, as with MPI.
///
/// Errors: a mismatch of collective, size, dtype, root or reduction throws on every rank, with one message that names
/// both calls;
///         a peer that died or left is named. Large calls throw from Work::wait(). After an error the group is dead.
/// Cost:   all_reduce of B bytes moves about 3 B (n-1)/n + 2 B/n bytes through memory on each rank.
class SharedMemory : public Backend {
 public:
  /// `segment` has Slots::segment_bytes(size) zeroed bytes and is the same memory on every rank.
  SharedMemory(std::shared_ptr<Segment> segment, std::string name, int rank, int size, int ranks_on_host);
  ~SharedMemory() override;

  const std::string& name() const override { return name_; }
  int rank() const override { return slots_->rank(); }
  int size() const override { return slots_->size(); }
  Work all_reduce(at::Tensor& x, Reduce op) override;
  Work all_gather(at::Tensor& out, const at::Tensor& in) override;
  Work reduce_scatter(at::Tensor& out, const at::Tensor& in, Reduce op) override;
  Work all_to_all(at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_rows,
                  const std::vector<int64_t>& in_rows) override;
  Work broadcast(at::Tensor& x, int root) override;
  Work reduce(at::Tensor& x, int root, Reduce op) override;
  Work send(const at::Tensor& x, int to) override;
  Work recv(at::Tensor& x, int from) override;
  Work barrier() override;
  void abort(const std::string& reason) noexcept override;

 private:
  template <class Task>
  Work run(int64_t bytes, Task task);
  Call next_call(Collective collective, const at::Tensor* x, int64_t bytes, int root = 0, Reduce op = Reduce::Sum);

  void reduce_at_once(const at::Tensor& x, Reduce op, const Call& call);
  void reduce_in_pieces(const at::Tensor& x, Reduce op, const Call& call);
  void gather(std::byte* out, const std::byte* in, int64_t bytes, const Call& call);
  void scatter(const at::Tensor& out, const at::Tensor& in, Reduce op, const Call& call);
  void exchange(std::byte* out, const std::byte* in, const std::vector<int64_t>& out_borders,
                const std::vector<int64_t>& in_borders, const Call& call);
  void spread(std::byte* x, int64_t bytes, int root, const Call& call);
  void collect(const at::Tensor& x, int root, Reduce op, const Call& call);

  const std::string name_;
  std::shared_ptr<Slots> slots_;
  std::shared_ptr<Channels> channels_;
  uint32_t calls_ = 0;
  std::mutex running_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace colossal::comm
