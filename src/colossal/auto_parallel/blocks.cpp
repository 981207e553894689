#include "colossal/auto_parallel/blocks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/base/error.h"
#include "colossal/comm/group.h"

namespace colossal::auto_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::Tensor gathered_blocks(const at::Tensor& block, int64_t dim, comm::Group& group) {
  std::vector<int64_t> sizes = block.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  at::Tensor all = at::empty(sizes, block.options());
  group.all_gather(all, block.contiguous()).wait();
  return all.movedim(0, dim).flatten(dim, dim + 1).contiguous();
}

at::Tensor sliced_block(const at::Tensor& block, int64_t dim, const comm::Group& group) {
  const int64_t size = block.size(dim) / group.size();
  return block.narrow(dim, group.rank() * size, size);
}

/// Joins dimension `joined`, of which this rank has a block, and divides dimension `divided`.
at::Tensor exchanged_blocks(const at::Tensor& block, int64_t joined, int64_t divided, comm::Group& group) {
  const int64_t ranks = group.size();
  const at::Tensor parts =
      block.unflatten(divided, {ranks, block.size(divided) / ranks}).movedim(divided, 0).contiguous();
  at::Tensor received = at::empty(parts.sizes(), parts.options());
  group.all_to_all(received, parts, {}, {}).wait();
  return received.movedim(0, joined).flatten(joined, joined + 1).contiguous();
}

/// Returns the dimension that `axis` divides, or -1.
int64_t divided_dim(const plan::Spec& spec, int axis) {
  for (size_t dim = 0; dim < spec.size(); ++dim)
    if (spec[dim] >> axis & 1) return static_cast<int64_t>(dim);
  return -1;
}

struct Converted : Function<Converted> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& block, int64_t address) {
    context->saved_data["conversion"] = address;
    const auto& c = *reinterpret_cast<const BlockConversion*>(address);
    const at::Tensor result = run_calls(block, c.from, c.forward.calls, *c.groups);
    return result.is_contiguous() && !result.is_alias_of(block) ? result : result.clone(at::MemoryFormat::Contiguous);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& c = *reinterpret_cast<const BlockConversion*>(context->saved_data["conversion"].toInt());
    return {run_calls(gradients[0], c.to, c.backward.calls, *c.groups), at::Tensor()};
  }
};

struct ScaledGradient : Function<ScaledGradient> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double factor) {
    context->saved_data["factor"] = factor;
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0] * context->saved_data["factor"].toDouble(), at::Tensor()};
  }
};

}  // namespace

MeshGroups groups_of(const plan::Mesh& plan_mesh, comm::Mesh& mesh) {
  MeshGroups groups{plan_mesh, {}};
  for (const plan::Axis& axis : plan_mesh.axes) groups.axes.push_back(&mesh.group(axis.name));
  return groups;
}

std::vector<int64_t> block_shape(const std::vector<int64_t>& shape, const plan::Spec& spec, const plan::Mesh& mesh) {
  std::vector<int64_t> sizes = shape;
  for (size_t dim = 0; dim < sizes.size(); ++dim) sizes[dim] /= plan::blocks_of(spec[dim], mesh);
  return sizes;
}

std::vector<int64_t> block_start(const std::vector<int64_t>& shape, const plan::Spec& spec, const MeshGroups& groups) {
  std::vector<int64_t> start(shape.size(), 0);
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    int64_t index = 0;
    for (size_t axis = 0; axis < groups.axes.size(); ++axis)
      if (spec[dim] >> axis & 1) index = index * groups.axes[axis]->size() + groups.axes[axis]->rank();
    start[dim] = index * (shape[dim] / plan::blocks_of(spec[dim], groups.mesh));
  }
  return start;
}

at::Tensor block_of(const at::Tensor& whole, const plan::Spec& spec, const MeshGroups& groups) {
  const std::vector<int64_t> shape = whole.sizes().vec();
  const std::vector<int64_t> start = block_start(shape, spec, groups), size = block_shape(shape, spec, groups.mesh);
  at::Tensor block = whole;
  for (int64_t dim = 0; dim < whole.dim(); ++dim) block = block.narrow(dim, start[dim], size[dim]);
  return block;
}

std::vector<std::string> axis_names(uint8_t set, const plan::Mesh& mesh) {
  std::vector<std::string> names;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis)
    if (set >> axis & 1) names.push_back(mesh.axes[axis].name);
  return names;
}

tensor::ShardSpec shard_spec(const std::vector<int64_t>& shape, const plan::Spec& spec, const plan::Mesh& mesh,
                             std::vector<std::string> gradient_axes) {
  tensor::ShardSpec made = tensor::ShardSpec::whole(shape);
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (spec[dim] == 0) continue;
    made.splits[dim].axes = axis_names(spec[dim], mesh);
    made.splits[dim].segments = {{shape[dim]}};
  }
  made.gradient_axes = std::move(gradient_axes);
  return made;
}

at::Tensor run_calls(const at::Tensor& block, const plan::Spec& from, const std::vector<plan::Call>& calls,
                     const MeshGroups& groups) {
  const at::NoGradGuard no_grad;
  at::Tensor now = block;
  plan::Spec spec = from;
  for (const plan::Call& call : calls) {
    comm::Group& group = *groups.axes[call.axis];
    const int64_t before = divided_dim(spec, call.axis), after = divided_dim(call.result, call.axis);
    if (call.movement == plan::Movement::Slice)
      now = sliced_block(now, after, group);
    else if (call.movement == plan::Movement::AllGather)
      now = gathered_blocks(now, before, group);
    else if (call.movement == plan::Movement::AllToAll)
      now = exchanged_blocks(now, before, after, group);
    else
      throw Error("auto_parallel", concat("a conversion slices, gathers or exchanges: got ", name_of(call.movement)));
    spec = call.result;
  }
  return now;
}

at::Tensor converted(const at::Tensor& block, const BlockConversion& conversion) {
  return Converted::apply(block, reinterpret_cast<int64_t>(&conversion));
}

at::Tensor with_scaled_gradient(const at::Tensor& x, double factor) {
  return factor == 1 ? x : ScaledGradient::apply(x, factor);
}

}  // namespace colossal::auto_parallel
