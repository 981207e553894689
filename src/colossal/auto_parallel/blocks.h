// Blocks of tensors that the axes of a mesh divide, and the data movement between two ways to divide a tensor.
//
//   const MeshGroups groups = groups_of(plan.mesh, mesh);
//   const at::Tensor own = block_of(whole, plan::parse_spec("[data, R]", plan.mesh), groups);
//   const at::Tensor gathered = run_calls(own, from, plan::convert(type, from, to, plan.mesh, links).calls, groups);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/plan/conversions.h"
#include "colossal/plan/specs.h"
#include "colossal/tensor/shard_spec.h"

namespace colossal::auto_parallel {

/// The axes of a plan's mesh, with the group of this rank along each of them.
struct MeshGroups {
  plan::Mesh mesh;
  std::vector<comm::Group*> axes;  ///< one for each axis; rank() is this rank's index along it
};

/// Makes the groups. `mesh` must have the axes of `plan_mesh` and outlive the result. Collective among all ranks.
MeshGroups groups_of(const plan::Mesh& plan_mesh, comm::Mesh& mesh);

/// Returns the sizes of a block of a tensor.
std::vector<int64_t> block_shape(const std::vector<int64_t>& shape, const plan::Spec& spec, const plan::Mesh& mesh);
/// Returns the index of the first element of this rank's block in each dimension.
std::vector<int64_t> block_start(const std::vector<int64_t>& shape, const plan::Spec& spec, const MeshGroups& groups);
/// Returns this rank's block of a whole tensor, as a view.
at::Tensor block_of(const at::Tensor& whole, const plan::Spec& spec, const MeshGroups& groups);

/// Returns the names of the axes in a set, in the order of the mesh.
std::vector<std::string> axis_names(uint8_t set, const plan::Mesh& mesh);
/// Returns the spec of a parameter or buffer that is divided so. `gradient_axes` are the axes over which gradients of
/// the blocks are partial sums.
tensor::ShardSpec shard_spec(const std::vector<int64_t>& shape, const plan::Spec& spec, const plan::Mesh& mesh,
                             std::vector<std::string> gradient_axes = {});

/// Runs the calls of a plan::Conversion on this rank's block under `from`, and returns the block that they lead to.
///
/// Communication: those calls, each with the bytes that it names.
/// Memory: a copy of the block for each call but a slice.
at::Tensor run_calls(const at::Tensor& block, const plan::Spec& from, const std::vector<plan::Call>& calls,
                     const MeshGroups& groups);

/// A conversion of one operand, with its gradient's. Autograd keeps its address, so it must outlive the backward pass.
struct BlockConversion {
  plan::Spec from, to;
  plan::Conversion forward, backward;
  const MeshGroups* groups = nullptr;
};
/// Returns the block under `to` of a tensor whose block under `from` is given. Gradients, which are complete, take the
/// backward path. Communication: the calls of `forward`, and in the backward pass those of `backward`.
at::Tensor converted(const at::Tensor& block, const BlockConversion& conversion);

/// Returns `x`; its gradient is multiplied by `factor`.
at::Tensor with_scaled_gradient(const at::Tensor& x, double factor);

}  // namespace colossal::auto_parallel
