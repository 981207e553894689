#include "colossal/distributed/row_group.h"

#include <ATen/core/Tensor.h>

#include "colossal/comm/collectives.h"

namespace colossal::distributed {

at::Tensor RowGroup::exchanged(const at::Tensor& rows, const std::vector<int64_t>& received,
                               const std::vector<int64_t>& sent) {
  return comm::all_to_all(rows, received, sent, group_);
}

}  // namespace colossal::distributed
