// The compiler vectorises this file at -O3 because the kernels have constant trip counts.
#pragma GCC optimize("O3")
#include "colossal/comm/backends/reduction.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/comm/backends/reduction_kernels.h"

namespace colossal::comm {

void check_reducible(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
    case at::kFloat:
    case at::kBFloat16:
    case at::kHalf:
    case at::kLong:
    case at::kInt:
    case at::kByte:
    case at::kBool:
      return;
    default:
      throw Error("comm",
                  concat("reductions support the dtypes double, float, bfloat16, half, long, int, byte and bool: got ",
                         c10::toString(dtype), "; convert the tensor first"));
  }
}

void reduce_arrays(void* out, const void* const* in, int num_in, int64_t count, at::ScalarType dtype, Reduce op) {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (has_avx2) return reduce_arrays_avx2(out, in, num_in, count, dtype, op);
#endif
  reduce_any(out, in, num_in, count, dtype, op);
}

}  // namespace colossal::comm
