// `colossal features` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/outcome.h"
#include "colossal/protein/structure.h"
#include "colossal/protein/structure_reader.h"
#include "colossal/run/feature_file.h"
#include "support/temporary_folder.h"

namespace colossal::cli::features_test {
namespace {

using ::testing::HasSubstr;

class Features : public ::testing::Test {
 protected:
  Features() {
    folder_.write("x.fasta", ">one chain\nMKTAYIA\n");
    folder_.write("x.a3m", ">one\nMKTAYIA\n>a\nMKSAYa-A\n>b\nM-TAyYVA\n>c\nLKTGWLAq\n");
  }
  Outcome run(const std::vector<std::string>& words, const std::string& input = "x.fasta") {
    std::vector<std::string> all{"--input", folder_ / input, "--to", folder_ / "x.safetensors"};
    all.insert(all.end(), words.begin(), words.end());
    return run_command("features", all);
  }
  std::string refusal(const std::vector<std::string>& words, const std::string& input = "x.fasta") {
    const Outcome outcome = run(words, input);
    EXPECT_NE(outcome.status, 0);
    return outcome.err;
  }
  tensor::Batch written() { return run::read_features(folder_ / "x.safetensors"); }
  /// Writes a structure of alanines with CA and CB.
  void write_structure(const std::string& name, size_t residues) {
    protein::Structure structure{.name = "known"};
    structure.chains.resize(1);
    structure.chains[0].id = "A";
    for (size_t i = 0; i < residues; ++i)
      structure.chains[0].residues.push_back({0, {{1, {double(i), 0, 0}}, {3, {double(i), 1, 0}}}});
    folder_.write(name, name.ends_with(".pdb") ? protein::pdb_text(structure) : protein::mmcif_text(structure));
  }

  test::TemporaryFolder folder_;
};

TEST_F(Features, WriteAFile) {
  folder_.write("y.sto", "# STOCKHOLM 1.0\none MKTAYIA\nd MKTAYV-\n//\n");
  const Outcome outcome =
      run({"--msa", folder_ / "x.a3m", "--msa", folder_ / "y.sto", "--clusters", "3", "--passes", "2", "--seed", "7"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, (folder_ / "x.safetensors") + "\n");
  EXPECT_EQ(written().at("msa_feat").sizes(), at::IntArrayRef({1, 2, 3, 7, 49}));
  EXPECT_EQ(written().at("extra_msa").sizes(), at::IntArrayRef({1, 2, 2, 7}));
  const std::string first = test::read_all(folder_ / "x.safetensors");
  EXPECT_EQ(run({"--msa", folder_ / "x.a3m", "--msa", folder_ / "y.sto", "--folding.clusters=3", "--folding.passes=2",
                 "--seed=7"})
                .status,
            0);
  EXPECT_EQ(test::read_all(folder_ / "x.safetensors"), first) << "equal bytes";
}

TEST_F(Features, TakeTheTemplatesMostLikeTheChain) {
  if (!protein::reads_structures()) GTEST_SKIP() << "this build reads no structures";
  folder_.write("long.fasta", ">long\n" + std::string(30, 'A') + "\n");
  for (size_t i = 0; i < 5; ++i) write_structure("known/" + std::string(1, char('a' + i)) + ".cif", 10 + i);
  const Outcome outcome = run({"--templates", folder_ / "known", "--passes", "1"}, "long.fasta");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the 4 templates most like long are taken of 5 in "));
  const at::Tensor beta = written().at("template_pseudo_beta_mask");
  ASSERT_EQ(beta.sizes(), at::IntArrayRef({1, 4, 30}));
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(beta[0][i].sum().item<int64_t>(), 14 - i);
}

TEST_F(Features, RefuseOtherChains) {
  folder_.write("two.fasta", ">a\nMK\n>b\nMT\n");
  EXPECT_THAT(refusal({}, "two.fasta"),
              HasSubstr("two.fasta must have one record, because a file of features has one chain: got 2; write each "
                        "record to a file of its own, or give them all to `colossal fold`"));
  folder_.write("complex.fasta", ">a\nMK:MT\n");
  EXPECT_THAT(refusal({}, "complex.fasta"),
              HasSubstr("complex.fasta:1: a record must be one chain: got a complex of 2"));
  folder_.write("other.a3m", ">q\nMKTRYIA\n");
  EXPECT_THAT(refusal({"--msa", folder_ / "x.a3m", "--msa", folder_ / "other.a3m"}),
              HasSubstr("other.a3m:1: the query of an alignment must be the sequence of " + (folder_ / "x.fasta") +
                        ":1: got residue 4 is R in the alignment and A in the sequence"));
  folder_.write("several.a3m", "#7,5\t1,1\n>q\nMKTAYIA\n");
  EXPECT_THAT(refusal({"--msa", folder_ / "several.a3m"}),
              HasSubstr("several.a3m:1: the alignment of a monomer must list one chain"));
  folder_.write("ragged.a3m", ">q\nMKTAYIA\n>a\nMKT\n");
  EXPECT_THAT(refusal({"--msa", folder_ / "ragged.a3m"}), HasSubstr("ragged.a3m:3: row `a` must have 7 columns"));
}

TEST_F(Features, RefuseTemplatesOfStrangers) {
  folder_.write("none/readme.txt", "");
  EXPECT_THAT(refusal({"--templates", folder_ / "none"}),
              HasSubstr("a folder of templates must have .cif or .pdb files: got none in "));
  if (!protein::reads_structures()) GTEST_SKIP() << "this build reads no structures";
  folder_.write("long.fasta", ">long\n" + std::string(60, 'A') + "\n");
  write_structure("known/short.pdb", 5);
  EXPECT_THAT(refusal({"--templates", folder_ / "known"}, "long.fasta"),
              HasSubstr("short.pdb_A must align with at least a tenth of the query: got 5 of 60 residues"));
}

TEST_F(Features, SayWhatTheyLeaveOut) {
  folder_.write("nul.a3m", std::string(">q\nMKTAYIA\n\0>a\nMKSAYIA\n", 23));
  const Outcome outcome = run({"--msa", folder_ / "nul.a3m"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("left 1 NUL byte of "));
}

TEST_F(Features, RefuseFlagsOutOfRange) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"--passes", "0"}, {"--clusters", "0"}, {"--extra", "-1"}, {"--masked", "1.5"}, {"--seed", "x"}})
    EXPECT_EQ(run(words).status, 2) << words[0];
  const Outcome outcome = run_command("features", {"--input", folder_ / "x.fasta", "--to", folder_ / "x.npz"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--to must end in .safetensors: got "));
}

}  // namespace
}  // namespace colossal::cli::features_test
