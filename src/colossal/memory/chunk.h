// Parameters in one run of memory, which a group of ranks holds whole or shares out.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "colossal/comm/compressed_collectives.h"
#include "colossal/comm/group.h"
#include "colossal/memory/home.h"
#include "colossal/memory/stream_aside.h"
#include "colossal/nn/parameter.h"

namespace colossal::memory {

/// Where a parameter lies in its chunk, in elements.
struct Slot {
  nn::Parameter* parameter;
  int64_t offset, size;
};

/// A run of the part of a chunk that a rank owns, at [first, first + length) of the part.
struct Segment {
  int64_t first, length;
  std::shared_ptr<Kept> kept;
};

/// The part of a flat tensor that a slot names, in the shape of its parameter.
at::Tensor view_of_slot(const at::Tensor& flat, const Slot& slot);

/// The values of some parameters: `length` elements, of which rank r of the N in `sharers` owns the run [r, r + 1) *
/// length / N.
///
///   Sharded --gather()--> Gathering --ready()--> Gathered <--begin_use()/end_use()--> Computing
///   Gathered --release()--> Sharded
///
/// Parameters are views of one storage for the chunk's whole life; releasing empties that storage, gathering fills it
/// anew. So whatever refers to a parameter, autograd's saved tensors too, holds no memory of a released chunk and sees
/// the values again when they are back. A chunk that `stays` is never released: its owned part is a slice of the whole.
/// That of any other lies in a Home, cut into segments, of which each is brought for the time of a gather, or of a copy
/// where there are several: the home lends one at a time. One that is read `in place`, of a
/// single sharer, is no copy and has one segment: the part is brought until the chunk is released, and is the whole.
class Chunk {
 public:
  enum class State { Sharded, Gathering, Gathered, Computing };

  /// Observer of the uses of a chunk: it is called before an operator reads the chunk, and after. before_use() and
  /// after_use() must not throw, because no caller catches their errors.
  class Watcher {
   public:
    virtual ~Watcher() = default;
    virtual void before_use(Chunk& chunk) = 0;
    /// Segment number `segment` is about to be brought: it may not be there, and is when this returns. Errors: what is
    /// in the way of that, as of Kept::bring().
    virtual void before_bring(Chunk& chunk, size_t segment) = 0;
    /// The part could not be brought, for `error`: it counts as NaN, here and for all that share the chunk. They do not
    /// hear of it, and nothing else is different: the chunk comes and goes like any other.
    virtual void not_brought(Chunk& chunk, std::exception_ptr error) = 0;
    virtual void after_use(Chunk& chunk) = 0;
  };

  /// Takes the slots' parameters: from here on they are views of the chunk, with the values of `whole` [length].
  /// `watcher` (outlives the chunk): of a chunk that may be released; null: it stays whole.
  /// `index`: for the watcher. `compression`: of what is gathered. `home` (outlives the chunk): of its part, where it
  /// may be released. `capacity`: elements of a segment at most, see segment_length(). `in_place`: of one that may be
  /// released, to whose parameters nobody writes. Errors: of Home::keep().
  Chunk(size_t index, std::vector<Slot> slots, const at::Tensor& whole, comm::Group& sharers,
        const std::optional<comm::Compression>& compression, Home& home, int64_t capacity, Watcher* watcher,
        bool in_place = false);
  ~Chunk();
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  /// The chunk that `tensor` is a view of, if that is one that may be released.
  static Chunk* of(const at::Tensor& tensor);

  size_t index() const { return index_; }
  const std::vector<Slot>& slots() const { return slots_; }
  int64_t length() const { return length_; }
  const at::TensorOptions& options() const { return options_; }
  int64_t bytes() const { return length_ * static_cast<int64_t>(options_.dtype().itemsize()); }
  comm::Group& sharers() const { return *sharers_; }
  int64_t part_length() const { return length_ / sharers_->size(); }
  /// First element of the part that this rank owns.
  int64_t part_begin() const { return part_length() * sharers_->rank(); }
  /// Whether its parameters wanted gradients when it was made.
  bool trained() const { return trained_; }
  bool stays() const { return !watcher_; }
  Watcher& watcher() { return *watcher_; }
  State state() const { return state_; }

  /// What this rank owns, one behind the other; at least one. Nobody else brings them while the chunk is Gathering.
  /// After changing them: share().
  const std::vector<Segment>& segments() const { return segments_; }
  /// [length()], while the chunk is Gathered or Computing.
  const at::Tensor& whole() const { return whole_; }

  /// Brings the part and begins to make the chunk whole, unless it is. Returns whether. Collective among the sharers:
  /// all_gather of length() elements, also where the part cannot be brought: see Watcher::not_brought().
  /// Memory beside the whole: the part, where it is shared and has several segments; none where the home lends on
  /// another device, from which the part comes to its place in the whole. An accelerator does all of it beside what it
  /// computes until ready(), for which the host does not wait.
  bool gather();
  /// Returns when it is whole, and the part is back. Errors: of the all_gather.
  void ready();
  void begin_use();
  void end_use();
  /// Frees the whole, unless it is in use or stays. Returns whether. What was written to it is lost.
  bool release();
  /// Makes the parts of all ranks visible to all sharers, once the Work is done, for a chunk that stays. Collective
  /// among the sharers, as gather() is.
  comm::Work share();
  /// After a gather that failed: stands in for the whole, all NaN, so that readers do no harm before the error reaches
  /// someone who can be told.
  void fill_with_nan();

 private:
  void lend(const at::Tensor& whole);
  comm::Work gathered(const at::Tensor& part);
  bool is_alone() const { return sharers_->size() == 1; }
  /// Whether what the others are sent, or what is read, is what the home lends.
  bool is_lent() const { return in_place_ || (lends_here_ && !is_alone() && segments_.size() == 1); }
  at::Tensor own_slice() const { return whole_.narrow(0, part_begin(), part_length()); }
  /// That segment, which is about to be brought, or copied: the watcher has been told.
  Kept& to_bring(size_t segment);
  /// to [part_length()] <- the part, one segment after the other.
  void copy_part(const at::Tensor& to);
  void bring_part();
  void return_part();
  /// The gather is over, and the part is back. Errors: of the all_gather.
  void end_gather(comm::Work& work);

  size_t index_;
  std::vector<Slot> slots_;
  int64_t length_;
  comm::Group* sharers_;
  std::optional<comm::Compression> compression_;
  at::TensorOptions options_;
  Watcher* watcher_;
  bool trained_, in_place_, lends_here_;  // lends_here_: where the chunk is whole, and from the beginning
  State state_ = State::Sharded;
  int users_ = 0;
  std::vector<Segment> segments_;
  at::Tensor whole_, sent_;   // sent_: the part, while it is brought
  bool is_borrowed_ = false;  // sent_ is what the home lent, to be put back
  at::Tensor lent_;  // what parameters are views of, unless the chunk stays: borrows whole_'s memory, or has none
  comm::Work work_;
  StreamAside aside_;  // of an accelerator: for what comes from a home on the host, and what the ranks exchange of it
};

}  // namespace colossal::memory
