#include "colossal/ops/counted_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/projection.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/tensor/graph.h"

namespace colossal::ops {
namespace {

bool can_be_read(const at::Tensor& labels) {
  return labels.is_cpu() || (tensor::is_accelerator(labels) && !tensor::is_capturing());
}

}  // namespace

at::Tensor counts_of(const at::Tensor& labels) {
  return can_be_read(labels) ? labels.ne(kIgnoredLabel).sum(-1).cpu() : at::Tensor();
}

CountedRows::CountedRows(const at::Tensor& labels, int64_t rank, int64_t rows)
    : size_(labels.size(-1)), sizes_(labels.sizes().vec()), labels_(labels) {
  if (labels.numel() == 0 || !can_be_read(labels)) return;
  const at::Tensor counted = labels.cpu().reshape({-1, size_}).ne(kIgnoredLabel), counts = counted.sum(-1);
  const int64_t ranks = counted.size(0);
  const int64_t* const of_rank = counts.const_data_ptr<int64_t>();  // host memory, so nothing waits for a device
  const int64_t most = *std::max_element(of_rank, of_rank + ranks);
  taken_ = rows < 0 ? most : rows;
  require(most <= taken_, "cross_entropy", "each rank must take all rows that count: got ", most, " of at most ",
          taken_);
  if (*std::min_element(of_rank, of_rank + ranks) == size_) return;
  const at::Tensor all = counted.flatten().nonzero().flatten(), rank_of = all.div(size_, "floor");
  const at::Tensor first = counts.cumsum(0) - counts;  // number of rows that earlier ranks count
  const at::Tensor places = at::arange(all.size(0), all.options()) - first.index_select(0, rank_of) + rank_of * taken_;
  const int64_t own = of_rank[rank], before = std::accumulate(of_rank, of_rank + rank, int64_t{0});
  indices_ = all.to(labels.device());
  places_ = places.to(labels.device());
  own_ = (all.narrow(0, before, own) - rank * size_).to(labels.device());
  std::vector<int64_t> sizes = sizes_;
  sizes.back() = taken_;
  labels_ = at::full({ranks * taken_}, kIgnoredLabel, labels.options())
                .index_copy_(0, places_, labels.flatten().index_select(0, indices_))
                .view(sizes);
}

at::Tensor CountedRows::of(const at::Tensor& x) const {
  if (!chooses()) return x;
  const at::Tensor own = x.index_select(0, own_);
  const int64_t padding = taken_ - own.size(0);
  return padding == 0 ? own : at::cat({own, at::zeros({padding, x.size(1)}, own.options().requires_grad(false))});
}

at::Tensor CountedRows::put_back(const at::Tensor& values) const {
  if (!chooses()) return values;
  return at::zeros(sizes_, values.options().requires_grad(false))
      .flatten()
      .index_copy(0, indices_, values.flatten().index_select(0, places_))
      .view(sizes_);
}

}  // namespace colossal::ops
