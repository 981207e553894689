#include "colossal/ops/products/prepacked_kernels.h"

#include "colossal/ops/cpu.h"

namespace colossal::ops {

// Each is defined in the translation unit of its name.
extern const PrepackedKernels prepacked_portable;
#if defined(__x86_64__)
extern const PrepackedKernels prepacked_avx2, prepacked_avxvnni, prepacked_avx512, prepacked_avx512vnni,
    prepacked_avx512bf16, prepacked_amx;
#endif

namespace {

const PrepackedKernels& table_of(InstructionSet set) {
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::Avx2:
      return prepacked_avx2;
    case InstructionSet::AvxVnni:
      return prepacked_avxvnni;
    case InstructionSet::Avx512:
      return prepacked_avx512;
    case InstructionSet::Avx512Vnni:
      return prepacked_avx512vnni;
    case InstructionSet::Avx512Bf16:
      return prepacked_avx512bf16;
    case InstructionSet::Amx:
      return prepacked_amx;
#endif
    default:
      return prepacked_portable;
  }
}

}  // namespace

const PrepackedKernels& prepacked_kernels() { return table_of(instruction_set()); }

std::vector<const PrepackedKernels*> runnable_prepacked_kernels() {
  std::vector<const PrepackedKernels*> tables;
  for (const InstructionSet set : kInstructionSets)
    if (can_run(set)) tables.push_back(&table_of(set));
  return tables;
}

}  // namespace colossal::ops
