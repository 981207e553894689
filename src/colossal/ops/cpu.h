// The instruction set of the CPU kernels of this folder. It is picked at run time.
#pragma once
#include <string_view>
#include <vector>

namespace colossal::ops {

enum class InstructionSet { Portable, Avx2, Avx512 };

/// Returns the best instruction set that this machine and operating system can run. It is detected once per process.
InstructionSet best_instruction_set();

/// Returns all instruction sets that this machine can run, Portable first.
std::vector<InstructionSet> runnable_instruction_sets();

/// Returns the instruction set of kernels that this thread calls: the best one, or the one of the innermost live
/// InstructionSetScope.
InstructionSet instruction_set();

/// Returns "portable", "avx2" or "avx512".
std::string_view name(InstructionSet set);

/// Makes kernels that this thread calls use `set` during the scope's lifetime: for tests and benchmarks of each
/// variant. Errors: throws if the machine cannot run `set`.
class InstructionSetScope {
 public:
  explicit InstructionSetScope(InstructionSet set);
  ~InstructionSetScope();
  InstructionSetScope(const InstructionSetScope&) = delete;
  InstructionSetScope& operator=(const InstructionSetScope&) = delete;

 private:
  InstructionSet previous_;
};

}  // namespace colossal::ops
