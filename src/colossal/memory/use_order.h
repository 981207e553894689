// In which order the passes of a model use its chunks: learnt in one pass, foretold in the next.
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

namespace colossal::memory {

/// One pass: what lies between two end_pass(), forward and backward of a step for instance. A pass that differs from
///           the one before is foretold no further from there on; one that stops early, as evaluation does, changes
///           nothing. A wrong prediction costs a message, never a number.
class UseOrder {
 public:
  /// A chunk is used, another one than just before.
  void used(size_t chunk);
  /// The one that will be used next, as far as that is known.
  std::optional<size_t> next() const;
  void end_pass();

 private:
  std::vector<size_t> last_pass_, pass_;
  bool follows_ = true;  // so far this pass has been like the last one
};

}  // namespace colossal::memory
