#include "colossal/ops/cpu.h"

#include <algorithm>
#include <ranges>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/suggest.h"
#include "colossal/ops/tile_permission.h"

namespace colossal::ops {
namespace {

CpuFacts detect() {
  CpuFacts facts;
#if defined(__x86_64__)
  __builtin_cpu_init();  // the builtins also check by XGETBV that the system saves the wide registers
  facts.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  facts.avx_vnni = __builtin_cpu_supports("avxvnni");
  facts.avx512 = facts.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  facts.avx512_vnni = __builtin_cpu_supports("avx512vnni");
  facts.avx512_bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  facts.tiles = tile_permission().has_tiles;
  facts.tile_refusal = tile_permission().refusal;
#endif
  return facts;
}

// Backward of CPU tensors runs in the thread that called it, and loops set this value in their threads, so one value
// per thread is enough.
thread_local InstructionSet current = best_instruction_set();

}  // namespace

const CpuFacts& cpu_facts() {
  static const CpuFacts facts = detect();
  return facts;
}

bool can_run(InstructionSet set, const CpuFacts& facts) {
  switch (set) {
    case InstructionSet::Portable:
      return true;
    case InstructionSet::Avx2:
      return facts.avx2;
    case InstructionSet::AvxVnni:
      return facts.avx2 && facts.avx_vnni;
    case InstructionSet::Avx512:
      return facts.avx512;
    case InstructionSet::Avx512Vnni:
      return facts.avx512 && facts.avx512_vnni;
    case InstructionSet::Avx512Bf16:
      return facts.avx512 && facts.avx512_vnni && facts.avx512_bf16;
    case InstructionSet::Amx:
      return can_run(InstructionSet::Avx512Bf16, facts) && facts.tiles && facts.tile_refusal.empty();
  }
  return false;
}

InstructionSet best_instruction_set(const CpuFacts& facts) {
  return *std::ranges::find_if(kInstructionSets | std::views::reverse,
                               [&](InstructionSet set) { return can_run(set, facts); });
}

std::string describe_best(const CpuFacts& facts) {
  const std::string best(name(best_instruction_set(facts)));
  CpuFacts granted = facts;
  granted.tile_refusal.clear();
  if (can_run(InstructionSet::Amx, facts) || !can_run(InstructionSet::Amx, granted)) return best;
  return concat(best, " (AMX tiles are refused by the system: ", facts.tile_refusal, ")");
}

InstructionSet general_set(InstructionSet set) {
  return set >= InstructionSet::Avx512 ? InstructionSet::Avx512
         : set >= InstructionSet::Avx2 ? InstructionSet::Avx2
                                       : InstructionSet::Portable;
}

std::vector<InstructionSet> runnable_instruction_sets() {
  std::vector<InstructionSet> sets;
  for (const InstructionSet set : kInstructionSets)
    if (general_set(set) == set && can_run(set)) sets.push_back(set);
  return sets;
}

InstructionSet instruction_set() { return current; }

std::string_view name(InstructionSet set) {
  constexpr std::array<std::string_view, kInstructionSets.size()> kNames{
      "portable", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx"};
  return kNames[static_cast<size_t>(set)];
}

InstructionSet instruction_set_named(std::string_view wanted) {
  if (wanted == "auto") return best_instruction_set();
  std::vector<std::string> names{"auto"};
  for (const InstructionSet set : kInstructionSets) {
    if (name(set) == wanted) return set;
    names.emplace_back(name(set));
  }
  throw Error("cpu", concat("kernels must be one of ", colossal::join(names), ": got `", wanted, "`",
                            did_you_mean(wanted, names)));
}

InstructionSetScope::InstructionSetScope(InstructionSet set) : previous_(current) {
  if (!can_run(set))
    throw Error("cpu", concat("this machine cannot run ", name(set), ": its best kernels are ", describe_best()));
  current = set;
}

InstructionSetScope::~InstructionSetScope() { current = previous_; }

}  // namespace colossal::ops
