// Files of features.
#include "colossal/run/feature_file.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/checkpoint/safetensors.h"
#include "colossal/data/folding/features.h"
#include "colossal/protein/residues.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::feature_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Returns the features of five residues with four rows and a template, in three passes.
tensor::Batch features() {
  data::FoldingChain chain{.name = "x", .sequence = "MKGAY"};
  chain.alignment.rows = {"MKGAY", "M-GAY", "RKGAV", "MKTCY"};
  chain.alignment.deletions.resize(20);
  chain.alignment.deletions[7] = 2;
  protein::StructureChain known{.id = "A"};
  for (const char letter : chain.sequence) {
    protein::StructureResidue residue{.type = protein::type_of_letter(letter)};
    for (const int slot : {protein::kAtomCa, protein::kAtomCb}) residue.atoms.push_back({slot, {1, double(slot), 2}});
    known.residues.push_back(residue);
  }
  chain.templates = {{.name = "known", .chain = known}};
  return data::make_features(chain, {.clusters = 2, .passes = 3, .masked = .5, .templates = 1, .seed = 4});
}

class FeatureFiles : public ::testing::Test {
 protected:
  /// Returns the tensors of a file with features().
  std::map<std::string, at::Tensor> written() {
    write_features(path_, features());
    const checkpoint::SafetensorsReader file(path_);
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [name, entry] : file.entries()) tensors[name] = file.tensor(name).clone();
    return tensors;
  }
  tensor::Batch read(const std::map<std::string, at::Tensor>& tensors) {
    checkpoint::write_safetensors(path_, tensors);
    return read_features(path_);
  }
  /// Returns the message, without the folder, of a file in which one tensor is another, or is missing.
  std::string complaint(const std::string& name, const at::Tensor& values = {}) {
    auto tensors = written();
    tensors.erase(name);
    if (values.defined()) tensors[name] = values;
    const std::string message = test::thrown_message([&] { read(tensors); });
    const size_t folder = message.find(path_);
    return folder == std::string::npos ? message : message.substr(folder + path_.size() - 1);
  }

  test::TemporaryFolder folder_;
  const std::string path_ = folder_ / "x";
};

void expect_equal(const tensor::Batch& found, const tensor::Batch& wanted) {
  EXPECT_EQ(found.fields().size(), wanted.fields().size());
  for (const auto& [name, field] : wanted.fields()) EXPECT_TRUE(at::equal(found.at(name), field.tensor)) << name;
}

TEST_F(FeatureFiles, KeepAllFields) {
  const auto tensors = written();
  EXPECT_THAT(tensors.at("aatype").sizes().vec(), ElementsAre(3, 5)) << "passes first";
  EXPECT_THAT(tensors.at("msa_feat").sizes().vec(), ElementsAre(3, 2, 5, 49));
  EXPECT_THAT(tensors.at("template_mask").sizes().vec(), ElementsAre(3, 1));
  EXPECT_EQ(tensors.at("extra_msa").scalar_type(), at::kInt);
  expect_equal(read_features(path_), features());
}

TEST_F(FeatureFiles, MayLackWhatFollows) {
  auto tensors = written();
  for (const char* name : {"aatype", "seq_mask", "residue_index", "msa_mask", "extra_msa_mask", "extra_has_deletion",
                           "template_mask", "template_pseudo_beta", "template_pseudo_beta_mask"})
    tensors.erase(name);
  tensors["further"] = at::ones({2, 2});
  expect_equal(read(tensors), features());
  tensors = written();
  tensors.erase("target_feat");
  for (auto& [name, values] : tensors)
    if (values.scalar_type() == at::kFloat) values = values.to(at::kDouble);
  expect_equal(read(tensors), features());
}

TEST_F(FeatureFiles, MayLackTemplatesAndLabels) {
  auto tensors = written();
  std::erase_if(tensors, [](const auto& named) { return named.first.starts_with("template_"); });
  tensors.erase("true_msa");
  tensors.erase("bert_mask");
  const tensor::Batch row = read(tensors);
  EXPECT_FALSE(row.find("template_mask").defined());
  EXPECT_FALSE(row.find("true_msa").defined());
}

TEST_F(FeatureFiles, RefuseWhatModelsCannotRead) {
  EXPECT_EQ(complaint("msa_feat"),
            "x must have `msa_feat`: got no tensor of that name; `colossal features` writes such a file");
  EXPECT_THAT(complaint("template_all_atom_masks"), HasSubstr("x must have `template_all_atom_masks`"));
  EXPECT_EQ(complaint("msa_mask", at::ones({3, 2, 4})),
            "x: `msa_mask` must have the sizes [3, 2, 5], passes first: got [3, 2, 4]; `colossal features` writes such "
            "a file");
  EXPECT_THAT(complaint("aatype", at::zeros({5}, at::kInt)), HasSubstr("`aatype` must have the sizes [P, N]"));
  EXPECT_THAT(complaint("msa_feat", at::zeros({3, 2, 5, 48})), HasSubstr("must have the sizes [3, 2, 5, 49]"));
  EXPECT_THAT(complaint("msa_mask", at::ones({2, 2, 5})), HasSubstr("must have the sizes [3, 2, 5]"));
  EXPECT_EQ(complaint("extra_msa", at::full({3, 2, 5}, 23, at::kLong)),
            "x: `extra_msa` must have values from 0 to 22: got 23; write types in the order of AlphaFold");
  EXPECT_THAT(complaint("aatype", at::full({3, 5}, -1, at::kInt)), HasSubstr("values from 0 to 20: got -1"));
  EXPECT_THAT(complaint("aatype", at::ones({3, 5})), HasSubstr("`aatype` must have integers: got Float"));
  EXPECT_THAT(complaint("extra_msa_mask", at::full({3, 2, 5}, NAN)), HasSubstr("must have finite numbers"));
  EXPECT_THAT(complaint("seq_mask", at::arange(15, at::kFloat).view({3, 5})),
              HasSubstr("`seq_mask` must be the same in all passes"));
}

TEST_F(FeatureFiles, HoldOneChain) {
  const tensor::Batch two = tensor::joined_rows({features(), features()});
  EXPECT_THAT(test::thrown_message([&] { write_features(path_, two); }),
              HasSubstr("a file of features must have one chain: got 2 rows"));
}

}  // namespace
}  // namespace colossal::run::feature_file_test
