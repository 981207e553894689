#include "colossal/optim/gradient_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/ops/reduce.h"
#include "colossal/tensor/host_value.h"

namespace colossal::optim {
namespace {

using memory::Access;

/// Norms of what `parts_of` takes of each piece, a 0-dim fp64 tensor each.
template <class PartsOf>
void add_norms(const memory::Resident& shard, double order, const PartsOf& parts_of, std::vector<at::Tensor>& norms) {
  std::vector<at::Tensor> parts;
  for (const memory::Piece& piece : shard.pieces)
    for (const at::Tensor& part : parts_of(piece)) parts.push_back(part);
  for (const at::Tensor& norm : ops::norms(parts, order)) norms.push_back(norm);
}

/// Largest magnitude of all gradients on their device; undefined: this rank has none. Copies do no harm to a maximum,
/// so every rank looks at all that it has.
at::Tensor largest(const std::vector<memory::Shard>& shards) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<at::Tensor> norms;
  memory::for_leases(shards, {.gradients = Access::Read}, [&](size_t, memory::Resident& shard) {
    const auto whole = [&](const memory::Piece& piece) {
      return std::vector{shard.gradients.narrow(0, piece.offset, piece.part.size)};
    };
    if (ops::sums_at_once(shard.gradients)) return add_norms(shard, kInfinity, whole, norms);
    for (const memory::Piece& piece : shard.pieces)
      norms.push_back(at::linalg_vector_norm(whole(piece).front(), kInfinity).to(at::kDouble));
  });
  return norms.empty() ? at::Tensor() : at::stack(norms).amax();  // NaN wins
}

/// Sum of the squares that this rank counts, on their device; undefined: none. On the CPU added up in the order of the
/// pieces.
at::Tensor squares(const std::vector<memory::Shard>& shards, const tensor::Place& place) {
  at::Tensor sum;
  std::vector<at::Tensor> norms;
  memory::for_leases(shards, {.gradients = Access::Read}, [&](size_t, memory::Resident& shard) {
    const auto counted = [&](const memory::Piece& piece) {
      return memory::counted_parts(shard.gradients, piece, place);
    };
    if (ops::sums_at_once(shard.gradients)) return add_norms(shard, 2, counted, norms);
    for (const memory::Piece& piece : shard.pieces) {
      const at::Tensor here = memory::counted_squares(shard.gradients, piece, place);
      sum = sum.defined() ? sum + here : here;
    }
  });
  return norms.empty() ? sum : at::stack(norms).square().sum();
}

}  // namespace

at::Tensor own_norm(const std::vector<memory::Shard>& shards, const tensor::Place& place, NormOrder order) {
  return order == NormOrder::Infinity ? largest(shards) : squares(shards, place);
}

double joint_norm(double own, comm::Mesh& mesh, NormOrder order) {
  const bool is_max = order == NormOrder::Infinity;
  // backends differ in what Max makes of NaN
  if (is_max && std::isnan(own)) own = std::numeric_limits<double>::infinity();
  at::Tensor total = at::full({1}, own, at::kDouble);
  mesh.all().all_reduce(total, is_max ? comm::Reduce::Max : comm::Reduce::Sum).wait();
  return is_max ? tensor::host_value(total) : std::sqrt(tensor::host_value(total));
}

double gradient_norm(const std::vector<memory::Shard>& shards, comm::Mesh& mesh, NormOrder order) {
  const at::Tensor own = own_norm(shards, mesh.place(), order);
  return joint_norm(own.defined() ? tensor::host_value(own) : 0, mesh, order);
}

double clip_factor(double norm, double limit) { return limit > 0 && norm > limit ? limit / norm : 1; }

void clip_by_value(const std::vector<memory::Shard>& shards, double limit) {
  require(limit > 0, "optimizer", "gradients are clipped to values above 0: got ", limit);
  memory::for_leases(shards, {.gradients = Access::Write}, [&](size_t, memory::Resident& shard) {
    const bool is_half = shard.gradients.scalar_type() == at::kHalf;
    // its largest number: clamp_ takes no other, and none is above
    const double most = is_half ? std::min(limit, 65504.0) : limit;
    shard.gradients.clamp_(-most, most);
  });
}

}  // namespace colossal::optim
