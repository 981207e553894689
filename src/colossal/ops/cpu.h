// Which instruction set the CPU kernels of this folder use, picked at run time.
#pragma once
#include <string_view>
#include <vector>

namespace colossal::ops {

enum class InstructionSet { Portable, Avx2, Avx512 };

/// The best one that this machine and operating system can run (asked once).
InstructionSet best_instruction_set();

/// All that this machine can run, Portable first.
std::vector<InstructionSet> runnable_instruction_sets();

/// What kernels called by this thread use: the best, or the innermost live InstructionSetScope's.
InstructionSet instruction_set();

/// "portable", "avx2" or "avx512".
std::string_view name(InstructionSet set);

/// Makes kernels called by this thread use `set` while it lives: for tests and benchmarks of each variant.
/// Errors: throws if the machine cannot run `set`.
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
