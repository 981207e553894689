// In which order the passes of a model use its chunks: learnt in one pass, foretold in the next.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace colossal::memory {

/// A pass is what lies between two end_pass(), forward and backward of a step for instance. One that differs from the
/// pass before is foretold no further from there on; one that stops early, as evaluation does, changes nothing. A wrong
/// prediction costs a message, never a number.
class Timeline {
 public:
  enum class Resumes { No, Yes };
  /// Resumes::Yes: predictions survive small differences from the pass before. If a use comes up to 16 uses early,
  /// those in between are skipped; a use that is not among the next 16 is passed over, up to 32 of them in a row. The
  /// order of the pass is learnt all the same.
  explicit Timeline(Resumes resumes = Resumes::No) : resumes_(resumes == Resumes::Yes) {}

  /// A chunk is used, another one than just before.
  void used(size_t chunk);
  void end_pass();

  /// The one in use, and the one before it in this pass.
  std::optional<size_t> current() const { return back(1); }
  std::optional<size_t> previous() const { return back(2); }
  /// The one that will be used next in this pass, as far as that is known.
  std::optional<size_t> next() const;
  /// The one of the `steps`-th use from now on, as far as that is known: in this pass or in one like it behind it.
  std::optional<size_t> ahead(size_t steps) const;
  /// After how many changes `chunk` will be used again, as far as that is known: in this pass or in one like it behind
  /// it. None: it is not known, or not at all. Cost: the logarithm of its uses in a pass.
  std::optional<size_t> until(size_t chunk) const;
  /// The same, counted from the first use ever: that of the next use is known by the same number until it comes, or
  /// until revision() changes.
  std::optional<uint64_t> next_use(size_t chunk) const;
  /// Changes when something else comes than was foretold, with all that next_use() says.
  uint64_t revision() const { return revision_; }
  /// How many changes ago `chunk` was used last, in this pass.
  std::optional<size_t> since(size_t chunk) const;
  /// Uses of this pass so far.
  size_t position() const { return pass_.size(); }
  /// Whether this pass has been like the one before so far: position() is a place of that one, too.
  bool follows() const { return follows_ && is_exact_ && pass_.size() <= last_pass_.size(); }
  /// Orders that were learnt so far: as long as it stays the same, so does the pass that is foretold.
  uint64_t orders() const { return orders_; }

 private:
  std::optional<size_t> back(size_t steps) const;
  bool finds_place(size_t chunk);

  bool resumes_;
  std::vector<size_t> last_pass_, pass_;
  std::vector<std::vector<size_t>> last_uses_, uses_;  // of each chunk, its places in them
  bool follows_ = true;                                // the last pass predicts this one
  bool is_exact_ = true;                               // so far they are equal
  size_t place_ = 0;                                   // index in last_pass_ of the use that is predicted next
  size_t passed_over_ = 0;                             // uses in a row that last_pass_ does not have there
  uint64_t before_ = 0;                                // uses before this pass
  uint64_t revision_ = 0;
  uint64_t orders_ = 0;
};

}  // namespace colossal::memory
