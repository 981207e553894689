#include "colossal/optim/gradient_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "colossal/base/error.h"

namespace colossal::optim {
namespace {

/// Copies do no harm to a maximum, so every rank looks at all that it has.
double largest(const std::vector<memory::Shard>& shards) {
  double most = 0;
  memory::for_leases(shards, [&](size_t, memory::Resident& shard) {
    for (const memory::Piece& piece : shard.pieces) {
      const at::Tensor part = shard.gradients.narrow(0, piece.offset, piece.part.size);
      const double here = at::linalg_vector_norm(part, std::numeric_limits<double>::infinity()).item<double>();
      // backends differ in what Max makes of NaN
      most = std::isnan(here) ? std::numeric_limits<double>::infinity() : std::max(most, here);
    }
  });
  return most;
}

double squares(const std::vector<memory::Shard>& shards, const tensor::Place& place) {
  double sum = 0;
  memory::for_leases(shards, [&](size_t, memory::Resident& shard) {
    for (const memory::Piece& piece : shard.pieces) sum += memory::counted_squares(shard.gradients, piece, place);
  });
  return sum;
}

}  // namespace

double gradient_norm(const std::vector<memory::Shard>& shards, comm::Mesh& mesh, NormOrder order) {
  const bool is_max = order == NormOrder::Infinity;
  at::Tensor total = at::full({1}, is_max ? largest(shards) : squares(shards, mesh.place()), at::kDouble);
  mesh.all().all_reduce(total, is_max ? comm::Reduce::Max : comm::Reduce::Sum).wait();
  return is_max ? total.item<double>() : std::sqrt(total.item<double>());
}

double clip_factor(double norm, double limit) { return limit > 0 && norm > limit ? limit / norm : 1; }

void clip_by_value(const std::vector<memory::Shard>& shards, double limit) {
  require(limit > 0, "optimizer", "gradients are clipped to values above 0: got ", limit);
  memory::for_leases(shards, [&](size_t, memory::Resident& shard) {
    const bool is_half = shard.gradients.scalar_type() == at::kHalf;
    // its largest number: clamp_ takes no other, and none is above
    const double most = is_half ? std::min(limit, 65504.0) : limit;
    shard.gradients.clamp_(-most, most);
  });
}

}  // namespace colossal::optim
