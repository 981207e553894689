#include "colossal/optim/gradient_norm.h"

#include <ATen/ATen.h>

#include <cmath>

namespace colossal::optim {

double gradient_norm(const std::vector<memory::Shard>& shards, comm::Mesh& mesh) {
  double sum = 0;
  for (const memory::Shard& shard : shards)
    for (const memory::Piece& piece : shard.pieces) sum += memory::counted_squares(shard.gradients, piece, mesh.place());
  at::Tensor total = at::full({1}, sum, at::kDouble);
  mesh.all().all_reduce(total, comm::Reduce::Sum).wait();
  return std::sqrt(total.item<double>());
}

}  // namespace colossal::optim
