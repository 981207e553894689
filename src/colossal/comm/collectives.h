// Collectives with autograd: the pairs of forward and backward that tensor, sequence and data parallelism use. A group
// must outlive the autograd graphs that use it.
#pragma once
#include <cstdint>
#include <vector>

namespace at {
class Tensor;
}

namespace colossal::comm {

class Group;

/// Forward: all_reduce(x, Sum). Backward: passes dy on unchanged. Sends 2 (n-1)/n * numel(x) in forward. (Megatron's
/// g.)
at::Tensor reduce_from(const at::Tensor& x, Group& group);
/// Forward: every rank's x concatenated along `dim`. Backward: this rank's slice of dy, which must be the same on
/// every rank.
at::Tensor gather_from(const at::Tensor& x, int64_t dim, Group& group);
/// Forward: this rank's slice along `dim` of x, which must be the same on every rank; the size must divide by n. Sends
/// nothing. Backward: all_gather of dy. Sends (n-1)/n * numel(x).
at::Tensor split_to(const at::Tensor& x, int64_t dim, Group& group);
/// Forward: x. Backward: all_reduce(dy, Sum), because each rank uses x in its own way. Sends 2 (n-1)/n * numel(x) in
/// backward. (Megatron's f.)
at::Tensor copy_to(const at::Tensor& x, Group& group);
/// Forward: all_gather along `dim`. Backward: reduce_scatter, because each rank uses the gathered tensor in its own
/// way.
at::Tensor all_gather(const at::Tensor& x, int64_t dim, Group& group);
/// Forward: reduce_scatter along `dim`, which must divide by n. Backward: all_gather.
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, Group& group);

/// Forward: the parts of all ranks along `dim`, of which rank r's has lengths[r] elements, joined. Backward:
/// scattered_parts(). If the lengths are equal it is all_gather(), else n broadcasts; the ranks together send (n-1) of
/// the result.
at::Tensor gathered_parts(const at::Tensor& x, int64_t dim, const std::vector<int64_t>& lengths, Group& group);
/// Forward: this rank's part along `dim` of the sum of every rank's x. Rank r's part has lengths[r] elements. Backward:
/// gathered_parts(). If the lengths are equal it is reduce_scatter(), else n reduces; the ranks together send (n-1) of
/// x.
at::Tensor scattered_parts(const at::Tensor& x, int64_t dim, const std::vector<int64_t>& lengths, Group& group);

/// Forward: all_to_all of x [sum of in_rows, ...]. x holds, in rank order, in_rows[r] rows for each rank r. The result
/// holds, in rank order, out_rows[r] rows from each rank r. Backward: the same exchange in the opposite direction.
/// Sends the rows that leave this rank.
at::Tensor all_to_all(const at::Tensor& x, const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows,
                      Group& group);

}  // namespace colossal::comm
