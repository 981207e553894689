// A folder of structures as samples: which chains and files it has, its index, its faults, and the labels of a window.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "colossal/base/json.h"
#include "colossal/data/folding/chain_index.h"
#include "colossal/data/folding/chain_samples.h"
#include "colossal/data/folding/template_files.h"
#include "colossal/protein/structure_reader.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::folding_chains_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Returns a chain whose residues have N, CA and C at places that follow from their numbers. Residues with a letter in
/// lower case have no atoms.
protein::StructureChain chain_of(const std::string& id, const std::string& letters) {
  protein::StructureChain chain{id, {}};
  for (size_t i = 0; i < letters.size(); ++i) {
    protein::StructureResidue residue{protein::type_of_letter(letters[i]), {}};
    const auto x = static_cast<double>(i);
    if (letters[i] >= 'A' && letters[i] <= 'Z')
      residue.atoms = {
          {protein::kAtomN, {x, 1, 0}, 0}, {protein::kAtomCa, {x, 2, 0}, 0}, {protein::kAtomC, {x, 3, 0}, 0}};
    chain.residues.push_back(residue);
  }
  return chain;
}

class FoldingChains : public testing::Test {
 protected:
  void SetUp() override {
    if (!protein::reads_structures()) GTEST_SKIP() << "built without gemmi";
    write("x.cif", {chain_of("A", "MKTAYiAKQR"), chain_of("B", "GGXG")}, "_refine.ls_d_res_high 2.5\n");
    write("deep/y.cif", {chain_of("A", "MKTAYIAKQR")}, "");
    folder_.write("deep/readme.txt", "x");
    folder_.write("x_A/a.a3m", ">q\nMKTAYIAKQR\n>b\nMKSAYIAKQR\n");
    folder_.write("x_A/b.sto", "# STOCKHOLM 1.0\nq MKTAYIAKQR\nc MRTAYI-KQR\n//\n");
    write("x_A/t.cif", {chain_of("A", "WWWWWWWW"), chain_of("B", "KTAYIA")}, "");
    write("x_A/near.pdb", {chain_of("A", "MKTAYIAK")}, "");
    folder_.write("x_B.a3m", ">q\nGGXG\n");
    folder_.write("x_Q/z.a3m", ">q\nG\n");
  }

  /// Writes a structure in mmCIF with further lines, or in the other format.
  void write(const std::string& name, std::vector<protein::StructureChain> chains, const std::string& lines) {
    const protein::Structure structure{"x", std::move(chains)};
    folder_.write(name, name.ends_with(".pdb") ? protein::pdb_text(structure) : protein::mmcif_text(structure) + lines);
    age(name);
  }
  /// Makes a file older than the two seconds in which a stamp is not trusted.
  void age(const std::string& name) {
    fs::last_write_time(folder_ / name, fs::file_time_type::clock::now() - std::chrono::seconds(60));
  }
  ChainFolder open(OnError on_error = OnError::Refuse) const {
    return ChainFolder::open(folder_.path(), {on_error, index()});
  }
  std::string index() const { return run_ / "chains.jsonl"; }
  std::string complaint() const {
    return test::thrown_message([&] { open(); });
  }

  test::TemporaryFolder folder_, run_;
};

std::vector<std::string> names_of(const ChainFolder& folder) {
  std::vector<std::string> names;
  for (const KnownChain& chain : folder.chains) names.push_back(chain.name);
  return names;
}

TEST_F(FoldingChains, HaveTheFilesOfTheirNames) {
  const ChainFolder found = open();
  EXPECT_THAT(names_of(found), ElementsAre("deep/y_A", "x_A", "x_B"));
  const KnownChain& chain = found.chains[1];
  EXPECT_EQ(chain.sequence, "MKTAYIAKQR");
  EXPECT_EQ(chain.resolution, 2.5);
  EXPECT_THAT(chain.alignments, ElementsAre("x_A/a.a3m", "x_A/b.sto"));
  EXPECT_THAT(chain.templates, ElementsAre("x_A/near.pdb", "x_A/t.cif"));
  EXPECT_THAT(found.chains[0].alignments, IsEmpty());
  EXPECT_THAT(found.chains[2].alignments, ElementsAre("x_B.a3m"));
  EXPECT_THAT(found.notices, Contains(HasSubstr("1 file is not read: 1 .txt")));
  EXPECT_THAT(found.notices, Contains(HasSubstr("that belong to no chain: x_Q")));
  EXPECT_THAT(found.notices, Contains(AllOf(HasSubstr("without a resolution, which the losses of pLDDT, PAE and"),
                                            HasSubstr(": deep/y.cif"))));
  EXPECT_TRUE(is_chain_folder(folder_.path()));
  EXPECT_FALSE(is_chain_folder(run_.path()));

  const ChainContents contents = found.read(1, true, true);
  EXPECT_THAT(contents.known.alignment.rows, ElementsAre("MKTAYIAKQR", "MKSAYIAKQR", "MRTAYI-KQR"));
  ASSERT_EQ(contents.known.templates.size(), 2u);
  EXPECT_EQ(contents.known.templates[0].name, folder_ / "x_A/near.pdb_A") << "it has the most equal residues";
  EXPECT_EQ(contents.known.templates[1].name, folder_ / "x_A/t.cif_B") << "its other chain does not align";
  EXPECT_THAT(found.read(1, false, false).known.templates, IsEmpty());
}

TEST_F(FoldingChains, ReadChangedFilesAgain) {
  open();
  std::string stored = test::read_all(index());
  EXPECT_THAT(stored, HasSubstr(R"("sequence":"GGXG")"));
  stored.replace(stored.find("GGXG"), 4, "GGGG");
  folder_.write("../" + fs::path(run_.path()).filename().string() + "/chains.jsonl", stored);
  EXPECT_EQ(open().chains[2].sequence, "GGGG") << "the file was read again";
  write("x.cif", {chain_of("A", "MKTAYIAKQR"), chain_of("B", "GGWG")}, "");
  EXPECT_EQ(open().chains[2].sequence, "GGWG");
  EXPECT_THAT(test::read_all(index()), HasSubstr("GGWG"));
  fs::remove(folder_ / "deep/y.cif");
  EXPECT_THAT(names_of(open()), ElementsAre("x_A", "x_B"));
  EXPECT_THAT(test::read_all(index()), testing::Not(HasSubstr("deep/y.cif")));
  folder_.write("../" + fs::path(run_.path()).filename().string() + "/chains.jsonl", "{\n[1]\n");
  EXPECT_THAT(names_of(open()), ElementsAre("x_A", "x_B")) << "a damaged index counts as none";
}

TEST_F(FoldingChains, FollowOnErrorIfAStructureCannotBeRead) {
  folder_.write("broken.cif", "data_X\n_a 'b\n");
  age("broken.cif");
  write("x.pdb", {chain_of("A", "MKT")}, "");
  for (int i = 0; i < 2; ++i) {  // from the file, then from the index
    EXPECT_THAT(complaint(), AllOf(HasSubstr("broken.cif:2:"), HasSubstr("(and 1 further structures have faults)"),
                                   HasSubstr(R"(set data.on_error = "skip")")));
    const ChainFolder found = open(OnError::Skip);
    EXPECT_THAT(names_of(found), ElementsAre("deep/y_A", "x_A", "x_B"));
    EXPECT_THAT(found.notices, Contains(HasSubstr("skipped: a file of mmCIF must be readable: got ")));
    EXPECT_THAT(found.notices, Contains(HasSubstr("x.pdb has the name of x.cif")));
  }
}

TEST_F(FoldingChains, RefuseFoldersWithoutChains) {
  EXPECT_THAT(test::thrown_message([&] { ChainFolder::open(run_.path(), {}); }), HasSubstr("must have structures"));
  EXPECT_THAT(test::thrown_message([&] { ChainFolder::open(folder_ / "none", {}); }),
              HasSubstr("data.path must be a folder of structures"));
  const test::TemporaryFolder other;
  other.write("x.cif", protein::mmcif_text({"x", {{"A", {{0, {{protein::kAtomCa, {1, 2, 3}, 0}}}}}}}));
  EXPECT_THAT(test::thrown_message([&] { ChainFolder::open(other.path(), {}); }),
              HasSubstr("must have a protein chain with known places: got none"));
}

TEST_F(FoldingChains, KeepEqualSequencesOnOneSide) {
  for (int i = 0; i < 12; ++i)
    write(concat("z", i, ".cif"), {chain_of("A", std::string(static_cast<size_t>(3 + i / 2), 'A'))}, "");
  const ChainFolder found = open();
  const auto [training, held_out] = found.split(.4);
  EXPECT_EQ(training.size() + held_out.size(), found.chains.size());
  EXPECT_GT(held_out.size(), 0u);
  for (int64_t a : training)
    for (int64_t b : held_out)
      EXPECT_NE(found.chains[static_cast<size_t>(a)].sequence, found.chains[static_cast<size_t>(b)].sequence);
  EXPECT_EQ(found.split(0).first.size(), found.chains.size());
}

TEST_F(FoldingChains, ShowAWindowWithItsLabels) {
  ChainDataOptions options{
      .features = {.clusters = 2, .extra = 3, .passes = 2, .templates = 1}, .crop = 4, .held_out = 0};
  const ChainData opened = open_chains(folder_.path(), options);
  EXPECT_EQ(opened.held_out, nullptr);
  EXPECT_THAT(opened.facts, ElementsAre(HasSubstr(": 3 chains, of which 0 are held out")));
  tensor::Batch batch = opened.training->make(2);
  std::set<int64_t> firsts;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    opened.training->fill(1, seed, batch, 1);
    const int64_t first = batch.at("residue_index")[1][0].item<int64_t>();
    firsts.insert(first);
    const at::Tensor mask = batch.at("all_atom_mask")[1], places = batch.at("all_atom_positions")[1];
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(mask[i].sum().item<float>(), first + i == 5 ? 0 : 3) << "residue 5 has no atoms";
      EXPECT_EQ(places[i][protein::kAtomCa][0].item<float>(), first + i == 5 ? 0 : first + i);
    }
  }
  EXPECT_EQ(firsts.size(), 7u) << "each window of 4 of 10 residues is drawn";
  EXPECT_EQ(batch.at("msa_feat").sizes(), at::IntArrayRef({2, 2, 2, 4, 49}));
  EXPECT_EQ(batch.at("extra_msa").sizes(), at::IntArrayRef({2, 2, 3, 4}));
  EXPECT_EQ(batch.at("template_aatype").sizes(), at::IntArrayRef({2, 1, 4}));
  EXPECT_EQ(batch.at("template_mask")[1][0].item<float>(), 1);
  EXPECT_EQ(batch.at("resolution")[1].item<float>(), 2.5);

  options.crop = 6;
  const auto padded = open_chains(folder_.path(), options).training;
  batch = padded->make(1);
  padded->fill(2, 0, batch, 0);
  EXPECT_TRUE(at::equal(batch.at("seq_mask")[0], at::tensor({1, 1, 1, 1, 0, 0}, at::kFloat)));
  EXPECT_TRUE(at::equal(batch.at("aatype")[0], at::tensor({7, 7, 20, 7, 20, 20}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.at("all_atom_mask")[0].sum(-1), at::tensor({3, 3, 0, 3, 0, 0}, at::kFloat)))
      << "an unknown residue has no labels";
}

TEST_F(FoldingChains, DrawFromTheSeedAloneAndHeldOutOnesFromTheChain) {
  ChainDataOptions options{.features = {.clusters = 2, .extra = 1, .passes = 1, .deleted = {1, .3}}, .crop = 4};
  const auto folder = std::make_shared<ChainFolder>(open());
  const auto bits = [&](bool is_held_out, uint64_t seed) {
    const ChainSamples samples(folder, {1}, {options.features, 4, true, is_held_out});
    tensor::Batch batch = samples.make(1);
    samples.fill(0, seed, batch, 0);
    std::string all;
    for (const auto& [name, field] : batch.fields())
      all.append(static_cast<const char*>(field.tensor.data_ptr()), field.tensor.nbytes());
    return all;
  };
  EXPECT_EQ(bits(false, 3), bits(false, 3));
  EXPECT_NE(bits(false, 3), bits(false, 4));
  EXPECT_EQ(bits(true, 3), bits(true, 4));
}

TEST_F(FoldingChains, LeaveOutAlignmentsAndTemplatesThatAModelDoesNotRead) {
  folder_.write("x_A/a.a3m", "damaged");
  const auto samples = open_chains(folder_.path(), {.crop = 5, .reads_alignments = false, .held_out = 0}).training;
  tensor::Batch batch = samples->make(1);
  samples->fill(1, 0, batch, 0);
  std::vector<std::string> names;
  for (const auto& [name, field] : batch.fields()) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("aatype", "residue_index", "seq_mask", "all_atom_positions", "all_atom_mask",
                                 "resolution", "counts"));
}

TEST_F(FoldingChains, FollowOnErrorIfAnAlignmentCannotBeRead) {
  folder_.write("x_A/a.a3m", ">q\nMKTAYIAKQR\n>b\nMKS\n");
  folder_.write("x_B.a3m", std::string(">q\nGGX\0G\n", 9));
  const auto samples = [&](OnError on_error) {
    return open_chains(folder_.path(), {.crop = 4, .held_out = 0, .folder = {.on_error = on_error}}).training;
  };
  const auto refusing = samples(OnError::Refuse), skipping = samples(OnError::Skip);
  tensor::Batch batch = refusing->make(1);
  EXPECT_THAT(test::thrown_message([&] { refusing->fill(1, 0, batch, 0); }),
              AllOf(HasSubstr("x_A/a.a3m:3"), HasSubstr(R"(set data.on_error = "skip")")));
  skipping->fill(1, 0, batch, 0);
  EXPECT_EQ(batch.at("aatype")[0][0].item<int64_t>(), 7) << "the next chain stands in";
  EXPECT_THAT(skipping->take_notices(), ElementsAre(HasSubstr("1 NUL byte"), HasSubstr("skipped: ")));
  skipping->fill(2, 0, batch, 0);
  EXPECT_THAT(skipping->take_notices(), IsEmpty()) << "the notice was told";
}

TEST_F(FoldingChains, NeedChainsOnBothSides) {
  const auto complaint_of = [&](double held_out) {
    return test::thrown_message([&] { open_chains(folder_.path(), {.held_out = held_out}); });
  };
  EXPECT_THAT(complaint_of(1), HasSubstr("all 3 chains of "));
  EXPECT_THAT(complaint_of(1e-9), HasSubstr("none of the 3 chains of "));
}

}  // namespace
}  // namespace colossal::data::folding_chains_test
