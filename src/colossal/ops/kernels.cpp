#include "colossal/ops/kernels.h"

#include "colossal/ops/cpu.h"

namespace colossal::ops {

template <class T>
const Kernels<T>& kernels() {
  switch (general_set(instruction_set())) {
#if defined(__x86_64__)
    case InstructionSet::Avx512:
      return avx512_kernels<T>();
    case InstructionSet::Avx2:
      return avx2_kernels<T>();
#endif
    default:
      return portable_kernels<T>();
  }
}

template const Kernels<double>& kernels<double>();
template const Kernels<float>& kernels<float>();
template const Kernels<Bf16>& kernels<Bf16>();

}  // namespace colossal::ops
