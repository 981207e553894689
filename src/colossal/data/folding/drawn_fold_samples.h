// Samples of drawn folds: the chains of data.path = "builtin-folds".
#pragma once
#include <cstdint>

#include "colossal/data/batches.h"
#include "colossal/data/folding/folding_rows.h"

namespace colossal::data {

/// Number of held-out drawn folds.
inline constexpr int64_t kHeldOutFolds = 16;

/// Options of DrawnFoldSamples.
struct DrawnFoldOptions {
  FoldingRowSizes sizes{};  ///< of rows; each chain has all residues, and its alignment as many rows as both together
  double masked = .15;      ///< share of masked letters
  bool held_out = false;    ///< true = the held-out chains, which do not depend on the seed of a sample
};

/// Samples of drawn folds (data/folding/drawn_folds.h) with their features. A training chain is a pure function of
/// (seed, epoch, sample), so each sample of each epoch is another chain. A held-out chain is a function of its index
/// alone. Their resolution is 1 Angstrom.
class DrawnFoldSamples final : public Samples {
 public:
  explicit DrawnFoldSamples(const DrawnFoldOptions& options) : options_(options) {}
  int64_t count() const override;
  tensor::Batch make(int64_t rows) const override { return make_folding_rows(rows, options_.sizes); }
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  /// Returns the options.
  nlohmann::json traits() const override;

 private:
  DrawnFoldOptions options_;
};

}  // namespace colossal::data
