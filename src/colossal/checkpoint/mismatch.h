// The table that a refused load shows: wanted and found tensors.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace colossal::checkpoint {

class WeightSource;

class MismatchTable {
 public:
  void add(const std::string& name, const std::string& wanted, const std::string& found);
  static constexpr size_t kMaxRows = 40;
  /// Throws Error(component, what and the table, at most `max_rows` of it) if any row was added.
  void require_empty(const char* component, const std::string& what, size_t max_rows = kMaxRows) const;

 private:
  struct Row {
    std::string name, wanted, found;
  };
  std::vector<Row> rows_;
};

/// Returns a text for require_empty() if all names of a source have the prefix that torch.compile() or
/// DistributedDataParallel puts before the names of a module. Otherwise empty.
std::string wrapper_note(const WeightSource& source);

/// Returns e.g. "Float [768, 2304]".
std::string describe(at::ScalarType dtype, const std::vector<int64_t>& shape);
/// Returns e.g. "[768, 2304]".
std::string describe(const std::vector<int64_t>& shape);

}  // namespace colossal::checkpoint
