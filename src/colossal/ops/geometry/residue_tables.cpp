#include "colossal/ops/geometry/residue_tables.h"

#include <ATen/ATen.h>

#include <vector>

namespace colossal::ops {

ResidueTables ResidueTables::to(const at::TensorOptions& options) const {
  ResidueTables all = *this;
  for (at::Tensor* values : {&all.group_frames, &all.positions14, &all.mask14, &all.mask37, &all.chi_mask,
                             &all.chi_period, &all.radii14, &all.shortest14, &all.longest14})
    *values = values->to(options);
  for (at::Tensor* indices : {&all.group14, &all.names14, &all.slots37, &all.chi_atoms, &all.renamed14})
    *indices = indices->to(options.device());
  return all;
}

at::Tensor residue_rows(const at::Tensor& table, const at::Tensor& types) {
  std::vector<int64_t> sizes = types.sizes().vec();
  sizes.insert(sizes.end(), table.sizes().begin() + 1, table.sizes().end());
  const at::Tensor rows = table.flatten(1), which = types.reshape({-1, 1});  // meta has gather(), not index_select()
  return rows.gather(0, which.expand({-1, rows.size(1)})).view(sizes);
}

at::Tensor picked(const at::Tensor& x, const at::Tensor& slots, int64_t rest) {
  at::Tensor index = slots;
  std::vector<int64_t> sizes = slots.sizes().vec();
  for (int64_t d = rest; d > 0; --d) index = index.unsqueeze(-1), sizes.push_back(x.size(-d));
  return x.gather(-1 - rest, index.expand(sizes));
}

}  // namespace colossal::ops
