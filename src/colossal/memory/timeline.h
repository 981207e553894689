// The order in which the passes of a model use its chunks: learnt in one pass, predicted in the next.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace colossal::memory {

/// A pass is what happens between two calls of end_pass(), for instance the forward and backward computation of a step.
/// If a pass differs from the previous one, its remaining uses are not predicted. A pass that stops early, as in
/// evaluation, changes nothing. A wrong prediction costs communication, never a wrong value.
class Timeline {
 public:
  enum class Resumes { No, Yes };
  /// Resumes::Yes: predictions survive small differences from the previous pass. If a use happens up to 16 uses early,
  /// the uses in between are skipped. A use that is not among the next 16 is ignored, up to 32 of them in a row. The
  /// order of the pass is learnt in either case.
  explicit Timeline(Resumes resumes = Resumes::No) : resumes_(resumes == Resumes::Yes) {}

  /// Records a use of `chunk`, which differs from the chunk of the use before.
  void used(size_t chunk);
  void end_pass();
  /// Forgets the uses of this pass, so that it begins again.
  void restart_pass();

  /// Return the chunk in use, and the one used before it in this pass; none if there is none.
  std::optional<size_t> current() const { return back(1); }
  std::optional<size_t> previous() const { return back(2); }
  /// Returns the chunk that is used next in this pass; none if that is not predicted.
  std::optional<size_t> next() const;
  /// Returns the chunk of the `steps`-th use from now, in this pass or in a following one of the same order; none if
  /// that is not predicted.
  std::optional<size_t> ahead(size_t steps) const;
  /// Returns after how many changes `chunk` is used again, in this pass or in a following one of the same order; none
  /// if no use is predicted. Cost: the logarithm of the chunk's uses in a pass.
  std::optional<size_t> until(size_t chunk) const;
  /// Returns the number of the next use of `chunk`, counted from the first use ever; none if no use is predicted. The
  /// number stays the same until that use happens or revision() changes.
  std::optional<uint64_t> next_use(size_t chunk) const;
  /// Returns a number that changes when a use differs from the prediction. Results of next_use() from before are then
  /// invalid.
  uint64_t revision() const { return revision_; }
  /// Returns how many changes ago `chunk` was last used in this pass; none if it was not.
  std::optional<size_t> since(size_t chunk) const;
  /// Returns the number of uses in this pass so far.
  size_t position() const { return pass_.size(); }
  /// Returns whether this pass equals the previous one so far, so that position() is an index of both.
  bool follows() const { return follows_ && is_exact_ && pass_.size() <= last_pass_.size(); }
  /// Returns the number of orders that were learnt so far. While it stays the same, so does the predicted pass.
  uint64_t orders() const { return orders_; }

 private:
  std::optional<size_t> back(size_t steps) const;
  bool finds_place(size_t chunk);
  void begin_pass();

  bool resumes_;
  std::vector<size_t> last_pass_, pass_;
  std::vector<std::vector<size_t>> last_uses_, uses_;  // positions of each chunk in last_pass_ and in pass_
  bool follows_ = true;                                // the last pass predicts this one
  bool is_exact_ = true;                               // pass_ equals the beginning of last_pass_
  size_t place_ = 0;                                   // index in last_pass_ of the use that is predicted next
  size_t passed_over_ = 0;                             // consecutive uses that last_pass_ does not have there
  uint64_t before_ = 0;                                // uses before this pass
  uint64_t revision_ = 0;
  uint64_t orders_ = 0;
};

}  // namespace colossal::memory
