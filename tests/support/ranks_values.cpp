#include "support/ranks_values.h"

#include <cstring>

namespace colossal::test {

at::Tensor rank_values(int rank, int64_t numel, at::ScalarType dtype) {
  const at::Tensor index = at::arange(numel, at::kLong) + 7 * rank;
  const at::Tensor values = dtype == at::kBool ? index.remainder(2) : index.remainder(5) + 1;
  return values.to(dtype);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous().cpu(), y = b.contiguous().cpu();
  return x.numel() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.numel() * x.element_size()) == 0;
}

}  // namespace colossal::test
