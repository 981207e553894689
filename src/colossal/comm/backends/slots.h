// The meeting place of a group in a segment: one slot a rank, lockstep between them, and the ways it can end.
//
//   segment = | end: aborted, reason | slot headers, one a rank | slot data, one a rank | channels of send and recv |
//
// Ranks advance in steps. In a step each writes into its own slot, meets the others, and then reads theirs. Slots are
// doubled and the steps alternate between the halves: a rank that writes for step k+2 knows that everybody has met at
// k+1, hence has finished reading k. So one meeting a step is enough.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "colossal/comm/backends/flag.h"
#include "colossal/comm/backends/segment.h"
#include "colossal/comm/call.h"

namespace colossal::comm {

constexpr int kMaxSharedRanks = 127;  // of one group, on one host

/// What must be alike on all ranks that make a call: they compare theirs in every step. 16 bytes, so that two of them
/// share a cache line with the flag.
struct Signature {
  uint64_t bytes = 0;  ///< of the tensor that every rank must have alike; 0 for all_to_all
  uint32_t number = 0;
  int8_t root = 0;
  Collective collective = Collective::Barrier;
  int8_t dtype = 0;
  uint8_t reduce = 0;
  bool operator==(const Signature&) const = default;
};

class Slots {
 public:
  /// Bytes of a segment for `size` ranks.
  static size_t segment_bytes(int size);

  /// `segment` is zeroed at the first rank's construction. `ranks_on_host` rules how long waiters spin.
  Slots(std::shared_ptr<Segment> segment, std::string group, int rank, int size, int ranks_on_host);
  /// Tells the peers that this rank is gone.
  ~Slots();
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Patience& patience() const { return patience_; }

  /// Bytes that a rank can show its peers in one step.
  int64_t capacity() const { return capacity_; }
  /// `capacity()` bytes of this step: written by the owner before meet(), read by the peers after it.
  std::byte* input(int rank) const { return half(rank, step_ + 1); }
  std::byte* shown(int rank) const { return half(rank, step_); }
  /// A second, smaller area (capacity / size rounded up): written after meet(), read by the peers after the next
  /// meet().
  std::byte* result(int rank) const { return half(rank, step_) + capacity_; }
  std::byte* last_result(int rank) const { return half(rank, step_ - 1) + capacity_; }

  /// Publishes input(rank()) and waits for all peers to have done the same; then shown() and last_result() may be read.
  /// Errors: throws Error("comm", ...) when a peer is at another call, has left or died, or the group was aborted.
  void meet(const Signature& call);

  /// Ends the group for all ranks; the first reason stays.
  void abort(const std::string& reason) noexcept;
  /// Throws when the group was aborted, or when `peer` has left or died (its own rank: only the former).
  void check(int peer) const;
  bool left(int peer) const;
  bool died(int peer) const;

  /// The part of the segment behind the slots.
  std::byte* channels() const;
  static size_t channel_bytes(int size);  ///< of one ordered pair of ranks, control words included

 private:
  struct Header;
  struct End;
  Header& header(int rank) const;
  End& end() const;
  std::byte* half(int rank, uint32_t step) const;
  void compare();
  [[noreturn]] void throw_reason() const;

  std::shared_ptr<Segment> segment_;
  const std::string group_;
  const int rank_, size_;
  const Patience patience_;
  int64_t capacity_;
  uint32_t step_ = 0;
};

/// "all_reduce(sum) of 4096 bytes of Float".
std::string describe(const Signature& call);

}  // namespace colossal::comm
