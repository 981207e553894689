#include "colossal/data/folding/drawn_fold_samples.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "colossal/data/folding/drawn_folds.h"
#include "colossal/data/folding/features.h"
#include "colossal/data/folding/pass_fields.h"
#include "support/thrown_message.h"

namespace colossal::drawn_fold_samples_test {
namespace {

constexpr int64_t kResidues = 12, kPasses = 2;

tensor::Batch row_of(bool held_out, int64_t index, uint64_t seed) {
  const data::DrawnFoldSamples samples(
      {.sizes = {.residues = kResidues, .clusters = 3, .extra = 4, .passes = kPasses}, .held_out = held_out});
  tensor::Batch batch = samples.make(1);
  samples.fill(index, seed, batch, 0);
  return batch;
}

bool are_equal(const tensor::Batch& a, const tensor::Batch& b) {
  for (const auto& [name, field] : a.fields())
    if (!field.tensor.equal(b.at(name))) return false;
  return true;
}

TEST(DrawnFoldSamples, FollowSeedOrIndex) {
  EXPECT_TRUE(are_equal(row_of(false, 3, 7), row_of(false, 3, 7)));
  EXPECT_FALSE(are_equal(row_of(false, 3, 7), row_of(false, 3, 8)));
  EXPECT_TRUE(are_equal(row_of(true, 3, 7), row_of(true, 3, 8)));
  EXPECT_FALSE(row_of(true, 3, 7).at("all_atom_positions").equal(row_of(true, 4, 7).at("all_atom_positions")));
  EXPECT_EQ(data::DrawnFoldSamples({.held_out = true}).count(), 16);
}

TEST(DrawnFoldSamples, HaveTheAtomsOfTheirLetters) {
  const tensor::Batch row = row_of(false, 0, 9);
  const data::DrawnFold fold = data::drawn_fold(9, {.residues = kResidues});
  for (int64_t i = 0; i < kResidues; ++i) {
    const bool is_glycine = fold.sequence[static_cast<size_t>(i)] == 'G';
    const at::Tensor mask = row.at("all_atom_mask")[0][i];
    EXPECT_EQ(mask.sum().item<double>(), is_glycine ? 4 : 5);
    EXPECT_EQ(mask[3].item<double>(), is_glycine ? 0 : 1);
    const protein::Point& c = fold.atoms[static_cast<size_t>(i)][2];
    EXPECT_LT((row.at("all_atom_positions")[0][i][2] - at::tensor({c.x, c.y, c.z})).abs().max().item<double>(), 1e-5);
  }
  EXPECT_EQ(row.at("seq_mask").sum().item<double>(), kResidues);
  EXPECT_EQ(data::passes_of(row), kPasses);
  EXPECT_FALSE(row.at("bert_mask")[0][0].equal(row.at("bert_mask")[0][1]));  // draws differ between passes
}

TEST(FoldingRows, PadChains) {
  const tensor::Batch row = row_of(false, 0, 9);
  tensor::Batch batch =
      data::make_folding_rows(2, {.residues = kResidues + 2, .clusters = 5, .extra = 6, .passes = kPasses});
  data::fill_folding_row(row, batch, 1);
  EXPECT_TRUE(batch.at("msa_feat")[1].narrow(1, 0, 3).narrow(2, 0, kResidues).equal(row.at("msa_feat")[0]));
  EXPECT_EQ(batch.at("msa_mask")[1].sum().item<double>(), kPasses * 3 * kResidues);
  EXPECT_EQ(batch.at("aatype")[1][kResidues].item<int64_t>(), 20);
  EXPECT_EQ(batch.at("counts")[1].item<double>(), 1);
  EXPECT_EQ(batch.at("counts")[0].item<double>(), 0);
  tensor::Batch small = data::make_folding_rows(1, {.residues = kResidues - 1, .has_alignments = false});
  EXPECT_EQ(test::thrown_message([&] { data::fill_folding_row(row, small, 0); }),
            "[data] aatype of a chain must be no larger than that of the batch, [11]: got [12]");
}

}  // namespace
}  // namespace colossal::drawn_fold_samples_test
