// Collectives with autograd: the pairs that tensor, sequence and data parallelism are made of.
#pragma once
#include <cstdint>

namespace at {
class Tensor;
}

namespace colossal::comm {

class Group;

/// Forward: all_reduce(x, Sum). Backward: dy as it is. Sends 2 (n-1)/n * numel(x) in forward. (Megatron's g.)
at::Tensor reduce_from(const at::Tensor& x, Group& group);
/// Forward: every rank's x concatenated along `dim`. Backward: this rank's slice of dy (every rank must hold the same
/// dy).
at::Tensor gather_from(const at::Tensor& x, int64_t dim, Group& group);
/// Forward: all_gather along `dim`. Backward: reduce_scatter: each rank uses the whole in its own way.
at::Tensor all_gather(const at::Tensor& x, int64_t dim, Group& group);
/// Forward: reduce_scatter along `dim`, which must divide by n. Backward: all_gather.
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, Group& group);

}  // namespace colossal::comm
