// Chunks: parameters in one contiguous range of memory, which a group of ranks either replicates or shards.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/compressed_collectives.h"
#include "colossal/comm/group.h"
#include "colossal/memory/offload_store.h"
#include "colossal/memory/stream_aside.h"
#include "colossal/nn/parameter.h"

namespace colossal::memory {

/// Position of a parameter in its chunk, in elements.
struct Slot {
  nn::Parameter* parameter;
  int64_t offset, size;
};

/// A contiguous piece of this rank's part of a chunk, at [first, first + length) of the part.
struct Segment {
  int64_t first, length;
  std::shared_ptr<OffloadedTensor> offloaded;
};

/// Returns a view of the elements of `flat` that belong to `slot`, in the shape of its parameter.
at::Tensor view_of_slot(const at::Tensor& flat, const Slot& slot);

/// The values of some parameters: `length` elements. Each of the N ranks in `sharers` owns one part. The part of rank r
/// is the range [r, r + 1) * length / N.
///
///   Sharded --gather()--> Gathering --ready()--> Gathered <--begin_use()/end_use()--> Computing
///   Gathered --release()--> Sharded
///
/// Parameters are views of one storage for the whole life of the chunk. Releasing the chunk empties that storage, and
/// gathering fills it again. References to a parameter, such as autograd's saved tensors, therefore hold no memory of a
/// released chunk and see the values again after the next gather.
///
/// Only operators and other code between begin_use() and end_use() may take the address of a parameter of a chunk that
/// may be released: at all other times, and for good after the chunk's destruction, LibTorch's data_ptr() throws an
/// error that names gathered(). (LibTorch 2.11 returns null instead while the chunk exists and is released.)
///
/// A permanent chunk, for which stays() is true, is never released: its owned part is a slice of the gathered tensor.
/// The part of any other chunk is stored in an OffloadStore, cut into segments. A segment is borrowed for the duration
/// of a gather. If there are several, they are copied one after the other, so that only one is borrowed at a time. A
/// chunk that is read `in place` has one sharer and one segment, and is no copy: its part is borrowed until the chunk
/// is released and serves as the gathered tensor.
class Chunk {
 public:
  enum class State { Sharded, Gathering, Gathered, Computing };

  /// Observer of the uses of a chunk: it is called before an operator reads the chunk, and after. before_use() and
  /// after_use() must not throw, because no caller catches their errors.
  class Watcher {
   public:
    virtual ~Watcher() = default;
    virtual void before_use(Chunk& chunk) = 0;
    /// Called before segment number `segment` is borrowed or copied. Its values may be missing before the call (a copy
    /// that Shard::drop_copy() discarded) and must be there when it returns. Errors: as for a borrow.
    virtual void before_borrow(Chunk& chunk, size_t segment) = 0;
    /// Called if this rank's part could not be borrowed, because of `error`. The part then counts as NaN on this rank
    /// and on all ranks that share the chunk. The other ranks get no error, and the chunk is gathered and released as
    /// usual.
    virtual void not_borrowed(Chunk& chunk, std::exception_ptr error) = 0;
    virtual void after_use(Chunk& chunk) = 0;
  };

  /// Makes the slots' parameters views of the chunk, with the values of `whole` [length].
  /// `index`: number of the chunk, for the watcher. `compression`: applies to gathers; none = off. `offload`: stores
  /// this rank's part of a chunk that may be released; it must outlive the chunk. `capacity`: maximum number of
  /// elements of a segment, see segment_length(). `watcher`: observes a chunk that may be released and must outlive the
  /// chunk; null makes the chunk permanent. `in_place`: reads the part where the store provides it. It requires a chunk
  /// that may be released, one sharer, a store that provides tensors on the chunk's device, and parameters that are
  /// never written. Errors: see OffloadStore::offload(). ("chunk") the length is not divisible by the number of
  /// sharers; `in_place` for another kind of chunk.
  Chunk(size_t index, std::vector<Slot> slots, const at::Tensor& whole, comm::Group& sharers,
        const std::optional<comm::Compression>& compression, OffloadStore& offload, int64_t capacity, Watcher* watcher,
        bool in_place = false);
  ~Chunk();
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  /// Returns the chunk that `tensor` is a view of; null if there is none or the chunk is permanent.
  static Chunk* of(const at::Tensor& tensor);

  size_t index() const { return index_; }
  const std::vector<Slot>& slots() const { return slots_; }
  int64_t length() const { return length_; }
  const at::TensorOptions& options() const { return options_; }
  int64_t bytes() const { return length_ * static_cast<int64_t>(options_.dtype().itemsize()); }
  comm::Group& sharers() const { return *sharers_; }
  int64_t part_length() const { return length_ / sharers_->size(); }
  /// Returns the first element of the part that this rank owns.
  int64_t part_begin() const { return part_length() * sharers_->rank(); }
  /// Returns whether the parameters required gradients when the chunk was made.
  bool trained() const { return trained_; }
  bool stays() const { return !watcher_; }
  Watcher& watcher() { return *watcher_; }
  State state() const { return state_; }

  /// Returns the segments of this rank's part in ascending order, at least one. No other code may borrow them while the
  /// chunk is Gathering. A caller that changes the values of a permanent chunk calls share() afterwards.
  const std::vector<Segment>& segments() const { return segments_; }
  /// Returns the gathered values [length()]; valid while the chunk is Gathered or Computing.
  const at::Tensor& whole() const { return whole_; }
  /// Returns this rank's part of whole().
  at::Tensor own_slice() const { return whole_.narrow(0, part_begin(), part_length()); }

  /// Records that a caller wrote to the gathered chunk. The record ends with the next gather or release, which the
  /// caller must let wait for store_written().
  void set_written(bool written) { written_ = written; }
  /// Returns whether the chunk holds gathered values that a caller wrote to. Always false for a permanent chunk.
  bool is_written() const { return written_ && !stays() && (state_ == State::Gathered || state_ == State::Computing); }
  /// Returns whether gathers change values, because they are compressed.
  bool is_compressed() const { return compression_.has_value() && !is_alone(); }
  /// Returns `part`, this rank's part in the dtype of the parameters, as a compressed gather gives it back.
  at::Tensor as_gathered(const at::Tensor& part) const;
  /// Records that the shards have what was written to own_slice() of a chunk that is_compressed(). A gather of the
  /// shards would return other values, because the written ones change the scales of their blocks.
  /// Memory: that of the part, until the next gather, release or share().
  void set_part_kept() { kept_part_ = own_slice().clone(); }
  /// Returns own_slice() as it was at the last set_part_kept() since the last gather or share(); undefined if there was
  /// none.
  const at::Tensor& kept_part() const { return kept_part_; }
  /// Returns whether the parameter in that slot still is a view of the chunk. It is not after Tensor::set_data().
  bool is_attached(size_t slot) const;
  /// Returns whether `tensor` shares the memory of the chunk's parameters, permanent chunks included.
  bool has_memory_of(const at::Tensor& tensor) const;
  /// Makes the parameter in that slot a view of the chunk again. Errors ("memory"): its shape, dtype or device is not
  /// the one that it had when the chunk was made; require_same_kind().
  void attach(size_t slot);
  /// Errors ("memory"): the parameter in that slot has another shape, dtype or device than at the start.
  void require_same_kind(size_t slot) const;

  /// Borrows this rank's part and begins to gather the chunk. Returns false, and does nothing, unless the chunk is
  /// Sharded.
  ///
  /// Communication: collective among the sharers: an all_gather of length() elements, also if this rank cannot borrow
  ///                its part (see Watcher::not_borrowed()).
  /// Memory:        in addition to the gathered chunk, the part if it is sharded and has several segments. If the store
  ///                provides tensors on another device, no memory is added: the part is copied to its place in the
  ///                gathered chunk.
  /// Cost:          on an accelerator the exchange overlaps with computation until ready(). Copies from a store on
  ///                another device do so too, on a side stream. The host does not wait for them.
  bool gather();
  /// Returns when the chunk is gathered and the part is returned to the store (unless it is read in place). Gathers the
  /// chunk first if it is Sharded. Errors: see gather() and Group::all_gather().
  void ready();
  /// Begin and end a use, which may be inside of another one: calls ready(), and allows access to the memory until the
  /// last use ends. Errors: see ready().
  void begin_use();
  void end_use();
  /// Frees the gathered chunk; what was written to it is lost. Returns false, and does nothing, if the chunk is in use,
  /// permanent or Sharded. Waits for a gather in progress; if that failed, throws its error after the release.
  bool release();
  /// Sends the parts of a permanent chunk to all sharers, which see them after the returned Work is done. Collective
  /// among the sharers: an all_gather of length() elements.
  comm::Work share();
  /// Fills the chunk with NaN instead of gathered values, after a gather failed. Readers thus cannot use wrong values
  /// before a caller gets the error.
  void fill_with_nan();

 private:
  /// Returns the storage of the parameters. Requires a chunk that may be released.
  c10::StorageImpl& storage() const;
  void set_base_memory(const at::Tensor& whole);
  comm::Work gathered(const at::Tensor& part);
  bool is_alone() const { return sharers_->size() == 1; }
  /// Returns whether the tensor that is sent to the other ranks, or read in place, is the one that the store provides.
  bool borrows_part() const { return in_place_ || (borrows_here_ && !is_alone() && segments_.size() == 1); }
  /// Returns the tensor that the parameters are views of.
  const at::Tensor& base() const { return stays() ? whole_ : view_base_; }
  at::Tensor view_of(size_t slot) const;
  /// Returns that segment after the watcher was notified (before_borrow), so that it may be borrowed or copied.
  OffloadedTensor& to_borrow(size_t segment);
  /// Copies the part into `to` [part_length()], one segment after the other.
  void copy_part(const at::Tensor& to);
  void borrow_part();
  void return_part();
  /// Ends the gather and returns the part to the store. Errors: see Group::all_gather().
  void end_gather(comm::Work& work);

  size_t index_;
  std::vector<Slot> slots_;
  std::vector<std::vector<int64_t>> shapes_;  // shapes of the parameters in slots_
  int64_t length_;
  comm::Group* sharers_;
  std::optional<comm::Compression> compression_;
  at::TensorOptions options_;
  Watcher* watcher_;
  // borrows_here_: the store provides tensors on the device of the gathered chunk; it never changes
  bool trained_, in_place_, borrows_here_;
  State state_ = State::Sharded;
  bool written_ = false;
  at::Tensor kept_part_;
  int users_ = 0;
  std::vector<Segment> segments_;
  at::Tensor whole_, sent_;   // sent_: the part while it is borrowed or copied
  bool is_borrowed_ = false;  // sent_ was borrowed from the store and must be returned
  // The parameters are views of it, unless the chunk is permanent: it uses the memory of whole_, or none.
  at::Tensor view_base_;
  comm::Work work_;
  // Side stream for copies from a store on another device and for the gathers of them; else unused.
  StreamAside aside_;
  std::optional<std::string> refusal_;  // message of refused accesses, while access is allowed; else the storage has it
};

}  // namespace colossal::memory
