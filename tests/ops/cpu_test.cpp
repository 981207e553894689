#include "colossal/ops/cpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "colossal/base/error.h"
#include "colossal/ops/products/prepacked_kernels.h"
#include "support/thrown_message.h"

namespace colossal::ops::cpu_test {
namespace {

using ::testing::HasSubstr;

/// Returns the facts of an Intel processor with tiles; the system refuses them for the reason `refusal`.
CpuFacts with_tiles(const std::string& refusal) {
  return {.avx2 = true,
          .avx_vnni = true,
          .avx512 = true,
          .avx512_vnni = true,
          .avx512_bf16 = true,
          .tiles = true,
          .tile_refusal = refusal};
}

TEST(InstructionSet, RestoresOverridesAfterTheirScope) {
  const InstructionSet best = best_instruction_set();
  EXPECT_EQ(instruction_set(), best);
  {
    const InstructionSetScope outer(InstructionSet::Portable);
    EXPECT_EQ(instruction_set(), InstructionSet::Portable);
    const InstructionSetScope inner(best);
    EXPECT_EQ(instruction_set(), best);
  }
  EXPECT_EQ(instruction_set(), best);
  EXPECT_EQ(runnable_instruction_sets().back(), general_set(best));
}

TEST(InstructionSet, FollowsFromTheFacts) {
  EXPECT_EQ(best_instruction_set({}), InstructionSet::Portable);
  EXPECT_EQ(best_instruction_set({.avx2 = true}), InstructionSet::Avx2);
  EXPECT_EQ(best_instruction_set({.avx2 = true, .avx_vnni = true}), InstructionSet::AvxVnni);
  EXPECT_EQ(best_instruction_set({.avx2 = true, .avx512 = true}), InstructionSet::Avx512);
  EXPECT_EQ(best_instruction_set({.avx2 = true, .avx512 = true, .avx512_bf16 = true}), InstructionSet::Avx512);
  EXPECT_EQ(best_instruction_set({.avx2 = true, .avx512 = true, .avx512_vnni = true}), InstructionSet::Avx512Vnni);
  EXPECT_EQ(best_instruction_set({.avx2 = true, .avx512 = true, .avx512_vnni = true, .avx512_bf16 = true}),
            InstructionSet::Avx512Bf16);
  EXPECT_EQ(best_instruction_set(with_tiles("")), InstructionSet::Amx);
}

TEST(InstructionSet, FallsBackIfTheSystemRefusesTiles) {
  const CpuFacts refused = with_tiles("Operation not permitted");
  EXPECT_FALSE(can_run(InstructionSet::Amx, refused));
  EXPECT_EQ(best_instruction_set(refused), InstructionSet::Avx512Bf16);
  EXPECT_EQ(describe_best(refused), "avx512bf16 (AMX tiles are refused by the system: Operation not permitted)");
  EXPECT_EQ(describe_best(with_tiles("")), "amx");
}

TEST(InstructionSet, NamesNoRefusalWithoutTiles) {
  EXPECT_EQ(describe_best({.avx2 = true, .tile_refusal = "No such device"}), "avx2");
}

TEST(InstructionSet, NeedNotContainTheSetsBeforeIt) {
  const CpuFacts zen4{.avx2 = true, .avx512 = true, .avx512_vnni = true, .avx512_bf16 = true};
  EXPECT_FALSE(can_run(InstructionSet::AvxVnni, zen4));
  EXPECT_TRUE(can_run(InstructionSet::Avx512Bf16, zen4));
  EXPECT_FALSE(can_run(InstructionSet::Avx512, {.avx2 = true, .avx_vnni = true}));
}

TEST(InstructionSet, HasGeneralKernels) {
  EXPECT_EQ(general_set(InstructionSet::Portable), InstructionSet::Portable);
  EXPECT_EQ(general_set(InstructionSet::AvxVnni), InstructionSet::Avx2);
  EXPECT_EQ(general_set(InstructionSet::Avx512Bf16), InstructionSet::Avx512);
  EXPECT_EQ(general_set(InstructionSet::Amx), InstructionSet::Avx512);
}

TEST(InstructionSet, ReadsItsNames) {
  std::set<std::string_view> names;
  for (const InstructionSet set : kInstructionSets) {
    EXPECT_EQ(instruction_set_named(name(set)), set);
    names.insert(name(set));
  }
  EXPECT_EQ(names.size(), kInstructionSets.size());
  EXPECT_EQ(instruction_set_named("auto"), best_instruction_set());
}

TEST(InstructionSet, RefusesUnknownNames) {
  EXPECT_EQ(test::thrown_message([] { instruction_set_named("avx512fp16"); }),
            "[cpu] kernels must be one of auto, portable, avx2, avxvnni, avx512, avx512vnni, avx512bf16, amx: got "
            "`avx512fp16`, did you mean `avx512bf16`?");
  EXPECT_THAT(test::thrown_message([] { instruction_set_named("neon-of-arm"); }), HasSubstr("got `neon-of-arm`"));
}

TEST(InstructionSet, RefusesWhatTheMachineCannotRun) {
  for (const InstructionSet set : kInstructionSets)
    EXPECT_EQ(test::thrown_message([&] { const InstructionSetScope scope(set); }),
              can_run(set)
                  ? ""
                  : concat("[cpu] this machine cannot run ", name(set), ": its best kernels are ", describe_best()));
}

// Each name selects the packed products of that name and the general kernels that belong to them.
TEST(InstructionSet, SelectsPackedProductsByName) {
  std::vector<const PrepackedKernels*> selected;
  for (const InstructionSet set : kInstructionSets) {
    if (!can_run(set)) continue;
    const InstructionSetScope scope(set);
    EXPECT_EQ(prepacked_kernels().name, name(set));
    selected.push_back(&prepacked_kernels());
  }
  EXPECT_EQ(selected, runnable_prepacked_kernels());
  EXPECT_EQ(prepacked_kernels().name, name(best_instruction_set()));
}

}  // namespace
}  // namespace colossal::ops::cpu_test
