#include "colossal/optim/gradient_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/ops/reduce.h"
#include "colossal/tensor/host_value.h"

namespace colossal::optim {
namespace {

using memory::Access;

/// Appends norms of the parts that `parts_of` selects of each piece, one 0-dim fp64 tensor per part.
template <class PartsOf>
void add_norms(const memory::Resident& shard, double order, const PartsOf& parts_of, std::vector<at::Tensor>& norms) {
  std::vector<at::Tensor> parts;
  for (const memory::Piece& piece : shard.pieces)
    for (const at::Tensor& part : parts_of(piece)) parts.push_back(part);
  for (const at::Tensor& norm : ops::norms(parts, order)) norms.push_back(norm);
}

/// Joins two 0-dim fp64 tensors: `there`, of shards on an accelerator, and `of_host`, of shards on the host. Returns
/// [2] on the accelerator and does not wait for it.
at::Tensor pair_of(const at::Tensor& there, const at::Tensor& of_host) {
  return at::stack({there, at::full({}, tensor::host_value(of_host), there.options())});
}

/// Returns the largest magnitude of all gradients; undefined = this rank has none. Every rank uses all its elements,
/// those of replicas too, because they do not change a maximum.
at::Tensor largest(const std::vector<memory::Shard>& shards) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<at::Tensor> norms, host_norms;
  memory::for_leases(shards, {.gradients = Access::Read}, [&](size_t, memory::Resident& shard) {
    if (!shard.gradients.defined()) return;
    const auto whole = [&](const memory::Piece& piece) {
      return std::vector{shard.gradients.narrow(0, piece.offset, piece.part.size)};
    };
    if (ops::sums_at_once(shard.gradients)) return add_norms(shard, kInfinity, whole, norms);
    for (const memory::Piece& piece : shard.pieces)
      host_norms.push_back(at::linalg_vector_norm(whole(piece).front(), kInfinity).to(at::kDouble));
  });
  at::Tensor most;  // a NaN propagates
  if (!host_norms.empty()) most = at::stack(host_norms).amax();
  if (norms.empty()) return most;
  const at::Tensor there = at::stack(norms).amax();
  return most.defined() ? pair_of(there, most).amax() : there;
}

/// Returns the sum of the squares that this rank counts; undefined = none. On the CPU they are summed in the order of
/// the pieces.
at::Tensor squares(const std::vector<memory::Shard>& shards, const tensor::MeshCoordinates& coordinates) {
  at::Tensor sum;
  std::vector<at::Tensor> norms;
  memory::for_leases(shards, {.gradients = Access::Read}, [&](size_t, memory::Resident& shard) {
    if (!shard.gradients.defined()) return;
    const auto counted = [&](const memory::Piece& piece) {
      return memory::counted_parts(shard.gradients, piece, coordinates);
    };
    if (ops::sums_at_once(shard.gradients)) return add_norms(shard, 2, counted, norms);
    for (const memory::Piece& piece : shard.pieces) {
      const at::Tensor here = memory::counted_squares(shard.gradients, piece, coordinates);
      sum = sum.defined() ? sum + here : here;
    }
  });
  if (norms.empty()) return sum;
  const at::Tensor there = at::stack(norms).square().sum();
  return sum.defined() ? pair_of(there, sum).sum() : there;
}

/// Returns `norm` without NaN, because backends differ in the result of Max with a NaN.
double comparable(double norm) { return std::isnan(norm) ? std::numeric_limits<double>::infinity() : norm; }

}  // namespace

at::Tensor own_norm(const std::vector<memory::Shard>& shards, const tensor::MeshCoordinates& coordinates,
                    NormOrder order) {
  return order == NormOrder::Infinity ? largest(shards) : squares(shards, coordinates);
}

double joint_norm(double own, comm::Mesh& mesh, NormOrder order) {
  const bool is_max = order == NormOrder::Infinity;
  at::Tensor total = at::full({1}, is_max ? comparable(own) : own, at::kDouble);
  mesh.all().all_reduce(total, is_max ? comm::Reduce::Max : comm::Reduce::Sum).wait();
  return is_max ? tensor::host_value(total) : std::sqrt(tensor::host_value(total));
}

NormAndSum joint_norm_and_sum(double own, double number, comm::Mesh& mesh, NormOrder order) {
  comm::Group& ranks = mesh.all();
  if (order == NormOrder::Two) {
    at::Tensor sums = at::tensor({own, number}, at::kDouble);
    ranks.all_reduce(sums, comm::Reduce::Sum).wait();
    const std::vector<double> values = tensor::host_values(sums);
    return {std::sqrt(values[0]), values[1]};
  }
  std::vector<double> mine(static_cast<size_t>(ranks.size()) + 1);  // each rank has a place, where others have 0
  mine[0] = comparable(own);
  mine[static_cast<size_t>(ranks.rank()) + 1] = number;
  at::Tensor most = at::tensor(mine, at::kDouble);
  ranks.all_reduce(most, comm::Reduce::Max).wait();
  const std::vector<double> values = tensor::host_values(most);
  return {values[0], std::accumulate(values.begin() + 1, values.end(), 0.0)};
}

double gradient_norm(const std::vector<memory::Shard>& shards, comm::Mesh& mesh, NormOrder order) {
  const at::Tensor own = own_norm(shards, mesh.coordinates(), order);
  return joint_norm(own.defined() ? tensor::host_value(own) : 0, mesh, order);
}

double clip_factor(double norm, double limit) { return limit > 0 && norm > limit ? limit / norm : 1; }

void clip_by_value(const std::vector<memory::Shard>& shards, double limit) {
  require(limit > 0, "optimizer", "the clipping limit must be above 0: got ", limit);
  memory::for_leases(shards, {.gradients = Access::Write}, [&](size_t, memory::Resident& shard) {
    const bool is_half = shard.gradients.scalar_type() == at::kHalf;
    // 65504 is the largest fp16 number: clamp_ accepts no larger limit, and no finite element exceeds it.
    const double most = is_half ? std::min(limit, 65504.0) : limit;
    shard.gradients.clamp_(-most, most);
  });
}

}  // namespace colossal::optim
