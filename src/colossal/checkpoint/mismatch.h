// The table that a refused load shows: wanted and found tensors.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace colossal::checkpoint {

class MismatchTable {
 public:
  void add(const std::string& name, const std::string& wanted, const std::string& found);
  /// Throws Error(component, what and the table, at most 40 rows of it) if any row was added.
  void require_empty(const char* component, const std::string& what) const;

 private:
  struct Row {
    std::string name, wanted, found;
  };
  std::vector<Row> rows_;
};

/// Returns e.g. "Float [768, 2304]".
std::string describe(at::ScalarType dtype, const std::vector<int64_t>& shape);
/// Returns e.g. "[768, 2304]".
std::string describe(const std::vector<int64_t>& shape);

}  // namespace colossal::checkpoint
