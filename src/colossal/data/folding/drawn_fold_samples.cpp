#include "colossal/data/folding/drawn_fold_samples.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/data/folding/drawn_folds.h"
#include "colossal/data/folding/features.h"
#include "colossal/data/folding/pass_fields.h"
#include "colossal/protein/residues.h"

namespace colossal::data {
namespace {

constexpr int64_t kFoldsOfEpoch = 1'000'000, kMostRows = 512;
constexpr uint64_t kHeldOutFoldSeed = 0xf01d;
constexpr double kResolution = 1;

/// Returns the atoms of a drawn chain.
TrueAtoms atoms_of(const DrawnFold& fold) {
  const auto residues = static_cast<int64_t>(fold.atoms.size());
  TrueAtoms atoms{.positions = at::zeros({residues, protein::kAtom37, 3}, at::kFloat),
                  .mask = at::zeros({residues, protein::kAtom37}, at::kFloat),
                  .resolution = kResolution};
  auto* position = atoms.positions.mutable_data_ptr<float>();
  auto* mask = atoms.mask.mutable_data_ptr<float>();
  for (size_t i = 0; i < fold.atoms.size(); ++i, position += protein::kAtom37 * 3, mask += protein::kAtom37)
    for (int atom = 0; atom < DrawnFold::kAtoms; ++atom) {
      const auto type = static_cast<size_t>(protein::type_of_letter(fold.sequence[i]));
      if (!protein::residue_tables().atom37_exists[type][static_cast<size_t>(atom)]) continue;
      const protein::Point& place = fold.atoms[i][static_cast<size_t>(atom)];
      float* const out = position + static_cast<ptrdiff_t>(atom) * 3;
      out[0] = static_cast<float>(place.x), out[1] = static_cast<float>(place.y), out[2] = static_cast<float>(place.z);
      mask[atom] = 1;
    }
  return atoms;
}

}  // namespace

int64_t DrawnFoldSamples::count() const { return options_.held_out ? kHeldOutFolds : kFoldsOfEpoch; }

void DrawnFoldSamples::fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const {
  const FoldingRowSizes& sizes = options_.sizes;
  const uint64_t own = options_.held_out ? derive_seed(kHeldOutFoldSeed, static_cast<uint64_t>(index)) : seed;
  const int64_t rows = sizes.has_alignments ? std::min(sizes.clusters + sizes.extra, kMostRows) : 1;
  DrawnFold fold = drawn_fold(own, {.residues = sizes.residues, .rows = rows});
  const TrueAtoms atoms = atoms_of(fold);
  const FoldingChain chain{
      .name = "drawn", .sequence = std::move(fold.sequence), .alignment = std::move(fold.alignment)};
  tensor::Batch features = make_features(chain, {.clusters = sizes.clusters,
                                                 .extra = sizes.extra,
                                                 .passes = std::max<int64_t>(sizes.passes, 1),
                                                 .masked = options_.masked,
                                                 .templates = sizes.templates,
                                                 .seed = own});
  add_true_atoms(features, atoms);
  fill_folding_row(sizes.passes > 0 ? features : batch_of_pass(features, 0), batch, row);
}

nlohmann::json DrawnFoldSamples::traits() const {
  const FoldingRowSizes& sizes = options_.sizes;
  return {{"chains", options_.held_out ? "held-out drawn folds" : "drawn folds"},
          {"residues", sizes.residues},
          {"clusters", sizes.has_alignments ? sizes.clusters : 0},
          {"extra", sizes.has_alignments ? sizes.extra : 0},
          {"passes", sizes.passes},
          {"masked", options_.masked}};
}

}  // namespace colossal::data
