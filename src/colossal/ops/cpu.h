// The instruction set of the CPU kernels of this folder. It is picked at run time.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::ops {

/// Instruction sets that kernels are compiled for, the slowest first. All kernels exist for Portable, Avx2 and Avx512.
/// The other sets have packed products of their own (products/prepacked_kernels.h), and use general_set() otherwise.
/// A processor that has a set need not have all sets before it: Zen 4 has Avx512Bf16 but not AvxVnni.
enum class InstructionSet { Portable, Avx2, AvxVnni, Avx512, Avx512Vnni, Avx512Bf16, Amx };

inline constexpr std::array kInstructionSets{
    InstructionSet::Portable,   InstructionSet::Avx2,       InstructionSet::AvxVnni, InstructionSet::Avx512,
    InstructionSet::Avx512Vnni, InstructionSet::Avx512Bf16, InstructionSet::Amx};

/// Facts of a machine that decide which instruction sets it can run. Those of registers include that the system saves
/// them.
struct CpuFacts {
  bool avx2 = false;  ///< AVX2, FMA and F16C
  bool avx_vnni = false;
  bool avx512 = false;  ///< AVX-512 F, BW, VL and DQ
  bool avx512_vnni = false;
  bool avx512_bf16 = false;    ///< AVX-512 BF16 and VBMI
  bool tiles = false;          ///< the processor has AMX tiles, with products of bf16 and of int8
  std::string tile_refusal{};  ///< why the system refuses tiles; "" = it grants them
};

/// Returns the facts of this machine. They are detected once per process.
const CpuFacts& cpu_facts();

/// Returns true if a machine with these facts can run `set`.
bool can_run(InstructionSet set, const CpuFacts& facts = cpu_facts());

/// Returns the fastest instruction set that a machine with these facts can run.
InstructionSet best_instruction_set(const CpuFacts& facts = cpu_facts());

/// Returns the name of the best instruction set. If only the system's refusal of tiles rules out a better one, the
/// reason follows: "avx512bf16 (AMX tiles are refused by the system: Operation not permitted)".
std::string describe_best(const CpuFacts& facts = cpu_facts());

/// Returns the set whose general kernels `set` uses: Portable, Avx2 or Avx512.
InstructionSet general_set(InstructionSet set);

/// Returns the sets with general kernels that this machine can run, Portable first.
std::vector<InstructionSet> runnable_instruction_sets();

/// Returns the instruction set of kernels that this thread calls: the best one, or the one of the innermost live
/// InstructionSetScope. Bodies of loops (parallel.h, thread_team.h) run with the set of the thread that started the
/// loop.
InstructionSet instruction_set();

/// Returns "portable", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16" or "amx".
std::string_view name(InstructionSet set);

/// Returns the set of this name; "auto" is the best one of this machine. It may be a set that this machine cannot run.
/// Errors ("cpu"): an unknown name.
InstructionSet instruction_set_named(std::string_view name);

/// Makes kernels that this thread calls use `set` during the scope's lifetime: for tests and benchmarks of each
/// variant. Operators of LibTorch are not affected. Errors ("cpu"): this machine cannot run `set`.
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
