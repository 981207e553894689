// The ranks that share the rows of pictures, for models, which have no collectives.
//
//   distributed::RowGroup ranks(mesh.all());                                        // distributed/row_group.h
//   const at::Tensor pixels = models::decoded_by_rows(model, parameters, latents, {.ranks = &ranks});
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/ops/rank_reduction.h"

namespace colossal::models {

/// The ranks that each have some neighbouring rows of a picture, in rank order. All of them make the same calls. The
/// base class is one process, which has all rows.
class RowRanks {
 public:
  virtual ~RowRanks() = default;
  virtual int64_t ranks() const { return 1; }
  virtual int64_t rank() const { return 0; }
  /// Returns the reductions over these ranks.
  virtual ops::RankReduction& reduction() { return none_; }
  /// Sends the next sent[r] rows of `rows` [sum of sent, ...] to each rank r. Returns received[r] rows of each rank r,
  /// in rank order.
  virtual at::Tensor exchanged(const at::Tensor& rows, const std::vector<int64_t>& /*received*/,
                               const std::vector<int64_t>& /*sent*/) {
    return rows;
  }

 private:
  ops::RankReduction none_;
};

}  // namespace colossal::models
