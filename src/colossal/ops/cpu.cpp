#include "colossal/ops/cpu.h"

#include "colossal/base/error.h"

namespace colossal::ops {
namespace {

InstructionSet detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // the builtins also check by XGETBV that the system saves the wide registers
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return avx512 ? InstructionSet::Avx512 : avx2 ? InstructionSet::Avx2 : InstructionSet::Portable;
#else
  return InstructionSet::Portable;
#endif
}

// One value per thread is enough: backward of CPU tensors runs in the thread that called it, and an operator picks its
// kernels before it starts other threads.
thread_local InstructionSet current = best_instruction_set();

}  // namespace

InstructionSet best_instruction_set() {
  static const InstructionSet best = detect();
  return best;
}

std::vector<InstructionSet> runnable_instruction_sets() {
  std::vector<InstructionSet> sets{InstructionSet::Portable};
  if (best_instruction_set() >= InstructionSet::Avx2) sets.push_back(InstructionSet::Avx2);
  if (best_instruction_set() >= InstructionSet::Avx512) sets.push_back(InstructionSet::Avx512);
  return sets;
}

InstructionSet instruction_set() { return current; }

std::string_view name(InstructionSet set) {
  switch (set) {
    case InstructionSet::Avx512:
      return "avx512";
    case InstructionSet::Avx2:
      return "avx2";
    default:
      return "portable";
  }
}

InstructionSetScope::InstructionSetScope(InstructionSet set) : previous_(current) {
  require(set <= best_instruction_set(), "cpu", "this machine cannot run ", name(set), ": its best instruction set is ",
          name(best_instruction_set()));
  current = set;
}

InstructionSetScope::~InstructionSetScope() { current = previous_; }

}  // namespace colossal::ops
