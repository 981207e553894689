// In which order the passes of a model use its chunks: learnt in one pass, foretold in the next.
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

namespace colossal::memory {

/// One pass: what lies between two end_pass(), forward and backward of a micro-batch for instance. A pass that differs from the one before is foretold no
/// further from there on; a wrong prediction costs a message, never a number.
class UseOrder {
 public:
  explicit UseOrder(size_t chunks) : chunks_(chunks) {}

  /// A chunk is used, another one than just before. `grad_mode`: of the caller; the first use of a pass says whether it trains.
  void used(size_t chunk, bool grad_mode);
  /// The one that will be used next. Of a pass that began without grad mode, which goes forward only: the next in order of first use.
  std::optional<size_t> next() const;
  void end_pass();

 private:
  size_t chunks_;
  std::vector<size_t> last_pass_, pass_;
  bool trains_ = false;
  bool follows_ = true;  // so far this pass has been like the last one
  std::optional<size_t> current_;
};

}  // namespace colossal::memory
