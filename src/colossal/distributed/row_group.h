// A group of ranks that share the rows of pictures (models/row_ranks.h).
//
//   distributed::RowGroup ranks(mesh.all());
//   models::decoded_by_rows(model, parameters, latents, {.ranks = &ranks});          // on each of these ranks
#pragma once
#include "colossal/comm/group.h"
#include "colossal/models/row_ranks.h"
#include "colossal/parallel/tensor/vocabulary.h"

namespace colossal::distributed {

/// Communication: an all_reduce for each reduction, an all_to_all for each exchange.
class RowGroup final : public models::RowRanks {
 public:
  /// `group` must outlive it.
  explicit RowGroup(comm::Group& group) : group_(group), reduction_(group) {}
  int64_t ranks() const override { return group_.size(); }
  int64_t rank() const override { return group_.rank(); }
  ops::RankReduction& reduction() override { return reduction_; }
  at::Tensor exchanged(const at::Tensor& rows, const std::vector<int64_t>& received,
                       const std::vector<int64_t>& sent) override;

 private:
  comm::Group& group_;
  parallel::GroupReduction reduction_;
};

}  // namespace colossal::distributed
