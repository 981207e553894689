// Features of chains, alignments and templates.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numbers>

#include "colossal/data/folding/feature_fields.h"
#include "colossal/data/folding/features.h"
#include "colossal/protein/residues.h"
#include "support/thrown_message.h"

namespace colossal::data::folding_features_test {
namespace {

using ::testing::HasSubstr;

/// Returns the chain of golden value G34 with its alignment.
FoldingChain golden_chain() {
  FoldingChain chain{.name = "x", .sequence = "MKTAYIA", .place = "x.fasta:1"};
  chain.alignment.rows = {"MKTAYIA", "MKSAY-A", "M-TAYVA", "LKTGWLA", "MKTAYV-"};
  chain.alignment.place = "x.a3m:1";
  chain.alignment.deletions.resize(35);
  chain.alignment.deletions[1 * 7 + 5] = 1;
  chain.alignment.deletions[2 * 7 + 4] = 10;
  return chain;
}

/// Returns a chain of atoms N, CA, C, O and, but for glycines, CB, whose places follow from their numbers.
protein::StructureChain structure_of(const std::string& sequence) {
  protein::StructureChain chain{.id = "A"};
  for (size_t i = 0; i < sequence.size(); ++i) {
    protein::StructureResidue residue{.type = protein::type_of_letter(sequence[i])};
    for (const int slot : {protein::kAtomN, protein::kAtomCa, protein::kAtomC, protein::kAtomCb, protein::kAtomO})
      if (slot != protein::kAtomCb || sequence[i] != 'G')
        residue.atoms.push_back({.atom = slot, .position = {double(i), double(slot), .5}});
    chain.residues.push_back(residue);
  }
  return chain;
}

std::string bits_of(const tensor::Batch& batch) {
  std::string bits;
  for (const auto& [name, field] : batch.fields()) {
    const at::Tensor values = field.tensor.contiguous();
    bits.append(static_cast<const char*>(values.data_ptr()), values.nbytes());
  }
  return bits;
}

TEST(FoldingFeatures, DescribeTheSequence) {
  FoldingChain chain{.name = "x", .sequence = "AVUBG"};
  const tensor::Batch row = make_features(chain, {.passes = 2});
  EXPECT_TRUE(at::equal(row.at("aatype"), at::tensor({0, 19, 20, 20, 7}, at::kLong).view({1, 5})));
  EXPECT_TRUE(at::equal(row.at("residue_index"), at::arange(5).view({1, 5})));
  EXPECT_TRUE(at::equal(row.at("seq_mask"), at::ones({1, 5})));
  EXPECT_EQ(row.at("target_feat").sizes(), at::IntArrayRef({1, 5, 22}));
  EXPECT_TRUE(at::equal(row.at("target_feat").argmax(-1), row.at("aatype") + 1)) << "the first is the chain's break";
  EXPECT_TRUE(at::equal(row.at("true_msa")[0][1][0], at::tensor({0, 19, 4, 3, 7}, at::kLong))) << "U is C, B is D";
  EXPECT_EQ(row.at("extra_msa_mask").sizes(), at::IntArrayRef({1, 2, 1, 5}));
  EXPECT_EQ(row.at("extra_msa_mask").sum().item<float>(), 0) << "one row, which is masked";
  EXPECT_TRUE(row.find("template_aatype").numel() == 0);
}

TEST(FoldingFeatures, DescribeRowsAsAlphaFold) {
  // All rows are clusters, and none is masked, so that each profile is the row itself.
  const tensor::Batch row = make_features(golden_chain(), {.passes = 1, .masked = 0, .seed = 1});
  const at::Tensor letters = row.at("true_msa")[0][0], features = row.at("msa_feat")[0][0];
  ASSERT_EQ(features.sizes(), at::IntArrayRef({5, 7, 49}));
  EXPECT_TRUE(at::equal(features.narrow(-1, 0, 23), at::one_hot(letters, 23).to(at::kFloat)));
  EXPECT_TRUE(at::equal(features.narrow(-1, 25, 23), features.narrow(-1, 0, 23)));
  EXPECT_TRUE(at::equal(letters[0], at::tensor({12, 11, 16, 0, 18, 9, 0}, at::kLong))) << "the query first";
  EXPECT_EQ(row.at("bert_mask").sum().item<float>(), 0);
  EXPECT_EQ(row.at("msa_mask").sum().item<float>(), 35);
  const at::Tensor has = features.select(-1, 23), value = features.select(-1, 24);
  EXPECT_EQ(has.sum().item<float>(), 2);
  EXPECT_NEAR(value.max().item<double>(), .8144528418445, 1e-7) << "golden value G29 of 10 deletions";
  EXPECT_NEAR(value.sum().item<double>(), .2048327646991 + .8144528418445, 1e-7);
  EXPECT_TRUE(at::equal(features.select(-1, 48), value));
}

TEST(FoldingFeatures, JoinRowsToTheirCluster) {
  const tensor::Batch row = make_features(golden_chain(), {.clusters = 1, .extra = 3, .passes = 2, .masked = 0});
  const at::Tensor features = row.at("msa_feat")[0][0][0];  // [7, 49] of the query
  const at::Tensor profile = features.narrow(-1, 25, 23);
  EXPECT_NEAR(profile[1][protein::kGapType].item<double>(), .2, 1e-7);
  EXPECT_NEAR(profile[2][protein::type_of_letter('S')].item<double>(), .2, 1e-7);
  EXPECT_TRUE(at::allclose(profile.sum(-1), at::ones(7)));
  EXPECT_NEAR(features[4][48].item<double>(), 2 / std::numbers::pi * std::atan(10. / 5 / 3), 1e-7);
  EXPECT_EQ(features[4][24].item<float>(), 0) << "deletions of the query itself";
  EXPECT_EQ(row.at("extra_msa").sizes(), at::IntArrayRef({1, 2, 3, 7})) << "3 of 4 further rows";
  EXPECT_EQ(row.at("extra_msa_mask").sum().item<float>(), 42);
  const at::Tensor values = row.at("extra_deletion_value"), has = row.at("extra_has_deletion");
  EXPECT_TRUE(at::equal(values > 0, has == 1));
  EXPECT_GT(has.sum().item<float>(), 0);
}

TEST(FoldingFeatures, FollowFromSeedChainAndPass) {
  const FeatureOptions options{.clusters = 2, .extra = 2, .passes = 3, .masked = .3, .seed = 5};
  const tensor::Batch row = make_features(golden_chain(), options);
  EXPECT_EQ(bits_of(row), bits_of(make_features(golden_chain(), options)));
  FeatureOptions one = options;
  one.passes = 1;
  EXPECT_TRUE(at::equal(make_features(golden_chain(), one).at("msa_feat")[0][0], row.at("msa_feat")[0][0]));
  EXPECT_FALSE(at::equal(row.at("msa_feat")[0][0], row.at("msa_feat")[0][1]));
  FoldingChain renamed = golden_chain();
  renamed.name = "y";
  one.seed = 6;
  EXPECT_NE(bits_of(row), bits_of(make_features(renamed, options)));
  EXPECT_FALSE(at::equal(make_features(golden_chain(), one).at("msa_feat")[0][0], row.at("msa_feat")[0][0]));
}

TEST(FoldingFeatures, ShowAPartOfTheChainInACrop) {
  FoldingChain chain = golden_chain();
  chain.templates = {{.name = "known", .chain = structure_of("MKTAYIA")}};
  FeatureOptions options{.clusters = 2, .passes = 2, .masked = .3, .templates = 1, .seed = 5};
  const tensor::Batch whole = make_features(chain, options);
  options.crop = {.first = 2, .size = 4};
  const tensor::Batch part = make_features(chain, options);
  for (const FeatureField& field : feature_fields()) {
    const at::Tensor values = whole.find(field.name);
    if (!values.defined()) continue;
    const size_t residues = field.dims.find('N');
    const at::Tensor wanted = residues == std::string::npos ? values : values.narrow(int64_t(residues) + 1, 2, 4);
    EXPECT_TRUE(at::equal(part.at(field.name), wanted)) << field.name;
  }
}

TEST(FoldingFeatures, MaskRowsThatAPassDeletes) {
  FoldingChain chain = golden_chain();
  const tensor::Batch row =
      make_features(chain, {.clusters = 3, .extra = 9, .passes = 8, .deleted = {.blocks = 2, .share = .6}, .seed = 2});
  const at::Tensor rows = row.at("msa_mask").select(-1, 0).sum(-1) + row.at("extra_msa_mask").select(-1, 0).sum(-1);
  EXPECT_LT(rows.min().item<float>(), 4);
  EXPECT_GE(rows.min().item<float>(), 1);
  EXPECT_TRUE(at::equal(row.at("msa_mask").select(2, 0), at::ones({1, 8, 7}))) << "the query remains";
  const at::Tensor is_absent = row.at("msa_mask") == 0;
  EXPECT_EQ(row.at("msa_feat").index({is_absent}).abs().sum().item<float>(), 0);
}

TEST(FoldingFeatures, PadToFixedSizes) {
  FoldingChain chain = golden_chain();
  chain.templates = {{.name = "known", .chain = structure_of("MKTAYIA")}};
  const tensor::Batch row = make_features(chain, {.clusters = 2, .passes = 2, .templates = 4});
  const tensor::Batch padded = padded_features(row, {.residues = 9, .clusters = 4, .extra = 5, .templates = 3});
  EXPECT_EQ(padded.at("msa_feat").sizes(), at::IntArrayRef({1, 2, 4, 9, 49}));
  EXPECT_EQ(padded.at("extra_msa").sizes(), at::IntArrayRef({1, 2, 5, 9}));
  EXPECT_EQ(padded.at("template_all_atom_positions").sizes(), at::IntArrayRef({1, 3, 9, 37, 3}));
  EXPECT_EQ(padded.at("template_mask").sizes(), at::IntArrayRef({1, 3}));
  EXPECT_EQ(padded.at("aatype")[0][8].item<int64_t>(), protein::kUnknownType);
  for (const auto& [name, field] : row.fields()) {
    at::Tensor values = padded.at(name);
    for (int64_t dim = 1; dim < values.dim(); ++dim) values = values.narrow(dim, 0, field.tensor.size(dim));
    EXPECT_TRUE(at::equal(values, field.tensor)) << name;
    const bool is_mask = name.find("mask") != std::string::npos;
    EXPECT_TRUE(!is_mask || at::equal(padded.at(name).sum(), field.tensor.sum())) << name;
  }
  EXPECT_THAT(test::thrown_message([&] { padded_features(row, {.residues = 6}); }),
              HasSubstr("`aatype` must have at most 6 elements to be padded to that: got 7"));
}

TEST(FoldingTemplates, StandAtTheResiduesOfTheQuery) {
  const FoldingTemplate known{.name = "known", .chain = structure_of("MKGIAW")};
  const AlignedTemplate aligned = aligned_template("MKTAYGIA", known);
  EXPECT_EQ(aligned.equal, 5);
  tensor::Batch batch;
  add_templates(batch, std::vector{aligned}, {0, 8});
  const at::Tensor types = batch.at("template_aatype")[0][0], beta = batch.at("template_pseudo_beta")[0][0];
  EXPECT_EQ(types[0].item<int64_t>(), 12);
  EXPECT_EQ(types[5].item<int64_t>(), 7);
  EXPECT_EQ(types[2].item<int64_t>(), protein::kGapType);
  EXPECT_EQ(beta[0][1].item<float>(), protein::kAtomCb);
  EXPECT_EQ(beta[5][0].item<float>(), 2) << "of residue 2 of the template";
  EXPECT_EQ(beta[5][1].item<float>(), protein::kAtomCa) << "CA of glycine";
  EXPECT_EQ(batch.at("template_pseudo_beta_mask")[0][0][2].item<float>(), 0);
  EXPECT_EQ(batch.at("template_all_atom_masks")[0][0][5].sum().item<float>(), 4);
  EXPECT_EQ(batch.at("template_mask").item<float>(), 1);
  tensor::Batch none;
  add_templates(none, {}, {0, 8});
  EXPECT_EQ(none.at("template_mask").item<float>(), 0);
}

TEST(FoldingTemplates, ExchangeNitrogensOfArginines) {
  protein::StructureChain chain = structure_of("RKR");
  const int cd = protein::atom37_of_name("CD"), nh1 = protein::atom37_of_name("NH1"),
            nh2 = protein::atom37_of_name("NH2");
  chain.residues[0].atoms.insert(chain.residues[0].atoms.end(), {{cd, {0, 0, 0}}, {nh1, {4, 0, 0}}, {nh2, {3, 0, 0}}});
  chain.residues[2].atoms.insert(chain.residues[2].atoms.end(), {{cd, {0, 0, 0}}, {nh1, {3, 0, 0}}, {nh2, {4, 0, 0}}});
  const AlignedTemplate aligned = aligned_template("RKR", {.name = "known", .chain = chain});
  for (const int residue : {0, 2}) {
    EXPECT_EQ(aligned.positions[size_t((residue * 37 + nh1) * 3)], 3);
    EXPECT_EQ(aligned.positions[size_t((residue * 37 + nh2) * 3)], 4);
  }
}

TEST(FoldingTemplates, DrawTheirNumberInTraining) {
  FoldingChain chain = golden_chain();
  for (const char* name : {"a", "b", "c"}) chain.templates.push_back({.name = name, .chain = structure_of("MKTAYIA")});
  std::vector<int> times(3);
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const tensor::Batch row =
        make_features(chain, {.passes = 1, .templates = 2, .draws_templates = true, .seed = seed});
    ++times[size_t(row.at("template_mask").sum().item<int64_t>())];
  }
  EXPECT_GT(times[0], 2);
  EXPECT_GT(times[1], 2);
  EXPECT_GT(times[2], times[0]) << "2 or 3 drawn give 2";
}

TEST(FoldingTemplates, RefuseStrangers) {
  const std::string query(100, 'M');
  const auto complaint = [&](const std::string& letters, bool has_atoms) {
    FoldingTemplate known{.name = "known/1abc.cif", .chain = structure_of(letters)};
    if (!has_atoms)
      for (auto& residue : known.chain.residues) residue.atoms.clear();
    return test::thrown_message([&] { aligned_template(query, known); });
  };
  EXPECT_EQ(complaint(std::string(9, 'M'), true),
            "[template] known/1abc.cif must align with at least a tenth of the query: got 9 of 100 residues; remove "
            "this template");
  EXPECT_EQ(complaint(std::string(10, 'M'), true), "");
  EXPECT_EQ(complaint(std::string(10, 'M'), false),
            "[template] known/1abc.cif must have at least 5 atoms where it aligns with the query: got 0; remove this "
            "template");
}

TEST(FoldingFeatures, RefuseWhatTheyCannotDescribe) {
  const auto complaint = [](FoldingChain chain, const FeatureOptions& options) {
    return test::thrown_message([&] { make_features(chain, options); });
  };
  FoldingChain other = golden_chain();
  other.sequence = "MKTRYIA";
  EXPECT_EQ(complaint(other, {}),
            "[alignment] x.a3m:1: the query of an alignment must be the sequence of x.fasta:1: got residue 4 is A in "
            "the alignment and R in the sequence; give the alignment of this chain");
  EXPECT_THAT(complaint({.name = "x"}, {}), HasSubstr("a chain must have a residue: got none in x"));
  EXPECT_THAT(complaint(golden_chain(), {.clusters = 0}), HasSubstr("at least 1 cluster and 1 pass"));
  EXPECT_THAT(complaint(golden_chain(), {.masked = 1.5}), HasSubstr("shares must be from 0 to 1: got masked 1.5"));
  EXPECT_THAT(complaint(golden_chain(), {.crop = {3, 5}}),
              HasSubstr("a crop must be within the 7 residues of x: got 5 from 3 on"));
}

}  // namespace
}  // namespace colossal::data::folding_features_test
