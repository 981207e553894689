// Runs that learn from a folder of structures, which the test writes.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "colossal/protein/structure_reader.h"
#include "fold/folding_runs.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::fold::real_chains_runs_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class RealChainRuns : public testing::Test {
 protected:
  void SetUp() override {
    if (!protein::reads_structures()) GTEST_SKIP() << "built without gemmi";
    const std::string sequences[] = {"MKTAYIAKQRQISF", "GAV", "AELKWR", "VIYFTWNGDK"};
    for (const std::string& sequence : sequences) {
      // A curve of N, CA and C, with O; the third residue has no atoms.
      protein::StructureChain chain{"A", {}};
      for (size_t i = 0; i < sequence.size(); ++i) {
        protein::StructureResidue residue{protein::type_of_letter(sequence[i]), {}};
        const auto x = 3. * static_cast<double>(i), turn = std::sin(x);
        if (i != 2)
          residue.atoms = {{protein::kAtomN, {x, turn, 0}, 0},
                           {protein::kAtomCa, {x + 1.4, turn, .5}, 0},
                           {protein::kAtomC, {x + 2, turn + 1.3, .4}, 0},
                           {protein::kAtomO, {x + 2, turn + 2.4, 1}, 0}};
        chain.residues.push_back(residue);
      }
      protein::write_structure({"x", {chain}}, folder_ / (sequence + ".cif"));
    }
  }
  run::Config config(const std::vector<std::string>& flags = {}) const {
    return folding_run(test::joined({"--data.path=" + folder_.path(), "--run.folder=" + run_.path(),
                                     "--data.held_out=0.4", "--folding.passes=2", "--training.batch_size=2"},
                                    flags));
  }

  test::TemporaryFolder folder_, run_;
};

TEST_F(RealChainRuns, GiveTheSameOnTwoRanks) {
  const run::Program program = folding_program();
  const std::vector<double> want = test::run_course(config(), program, 2);
  ASSERT_EQ(want.size(), 2 * 4 + 3u);
  EXPECT_GT(want[0], 0);
  EXPECT_TRUE(std::filesystem::exists(run_ / "chains.jsonl"));
  const std::vector<double> have = test::run_course(config({"--parallel.data=2"}), program, 2);
  ASSERT_EQ(have.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(have[i], want[i], 1e-10 * (1 + std::abs(want[i]))) << i;
}

TEST_F(RealChainRuns, TellOfFaultsAsOnErrorSays) {
  folder_.write("broken.cif", "HEADER\n");
  const auto open = [&](const std::vector<std::string>& flags) {
    return run::open_data(config(flags), folding_program(), "", 0, at::kCPU);
  };
  EXPECT_THAT(test::thrown_message([&] { open({}); }), HasSubstr("broken.cif:1:"));
  const run::RunData opened = open({"--data.on_error=skip"});
  EXPECT_THAT(opened.training->take_notices(), Contains(HasSubstr("broken.cif:1:")));
}

}  // namespace
}  // namespace colossal::fold::real_chains_runs_test
