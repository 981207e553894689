#include "colossal/ops/products/prepacked_kernels.h"

#include "colossal/ops/cpu.h"

namespace colossal::ops {

// Each is defined in the translation unit of its name.
extern const PrepackedKernels prepacked_portable;
#if defined(__x86_64__)
extern const PrepackedKernels prepacked_avx2, prepacked_avxvnni;
extern const PrepackedKernels prepacked_avx512, prepacked_avx512vnni, prepacked_avx512bf16;
#endif

std::vector<const PrepackedKernels*> runnable_prepacked_kernels() {
  std::vector<const PrepackedKernels*> found{&prepacked_portable};
#if defined(__x86_64__)
  const InstructionSet best = instruction_set();
  if (best >= InstructionSet::Avx2) found.push_back(&prepacked_avx2);
  if (best >= InstructionSet::Avx2 && __builtin_cpu_supports("avxvnni")) found.push_back(&prepacked_avxvnni);
  if (best < InstructionSet::Avx512) return found;
  found.push_back(&prepacked_avx512);
  if (!__builtin_cpu_supports("avx512vnni")) return found;
  found.push_back(&prepacked_avx512vnni);
  if (__builtin_cpu_supports("avx512bf16")) found.push_back(&prepacked_avx512bf16);
#endif
  return found;
}

const PrepackedKernels& prepacked_kernels() { return *runnable_prepacked_kernels().back(); }

}  // namespace colossal::ops
