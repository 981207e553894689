#pragma GCC optimize("O3")
#include "colossal/comm/backends/reduction_kernels.h"

namespace colossal::comm {

void reduce_arrays_avx2(void* out, const void* const* in, int num_in, int64_t count, at::ScalarType dtype, Reduce op) {
  reduce_any(out, in, num_in, count, dtype, op);
}

}  // namespace colossal::comm
