#include "colossal/comm/collectives.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/comm/group.h"
#include "colossal/tensor/read_scope.h"

namespace colossal::comm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Groups outlive the graphs that use them, so a plain address travels through the context.
int64_t address_of(Group& group) { return reinterpret_cast<int64_t>(&group); }
Group& group_at(int64_t address) { return *reinterpret_cast<Group*>(address); }

at::Tensor reduced(const at::Tensor& x, Group& group) {
  at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  group.all_reduce(sum, Reduce::Sum).wait();
  return sum;
}

/// Returns every rank's x, concatenated along dim.
at::Tensor gathered(const at::Tensor& x, int64_t dim, Group& group) {
  const tensor::ReadScope read({x});
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  at::Tensor all = at::empty(sizes, x.options());
  group.all_gather(all, x.contiguous()).wait();
  return all.movedim(0, dim).flatten(dim, dim + 1).contiguous();
}

/// Returns slice rank() along dim of the sum of every rank's x.
at::Tensor scattered(const at::Tensor& x, int64_t dim, Group& group) {
  const tensor::ReadScope read({x});
  const at::Tensor parts = x.unflatten(dim, {group.size(), x.size(dim) / group.size()}).movedim(dim, 0).contiguous();
  at::Tensor own = at::empty(parts.sizes().slice(1), x.options());
  group.reduce_scatter(own, parts, Reduce::Sum).wait();
  return own;
}

at::Tensor slice(const at::Tensor& x, int64_t dim, Group& group) {
  const int64_t size = x.size(dim) / group.size();
  return x.narrow(dim, group.rank() * size, size).contiguous();
}

int64_t checked_dim(const char* collective, const at::Tensor& x, int64_t dim, const Group& group, bool divides) {
  require(dim >= -x.dim() && dim < x.dim(), "comm", collective, " needs a dimension of its input: got ", dim,
          " for sizes ", x.sizes());
  if (dim < 0) dim += x.dim();
  require(!divides || x.size(dim) % group.size() == 0, "comm", collective, " needs a dimension divisible by the ",
          group.size(), " ranks of group \"", group.name(), "\": got size ", x.size(dim), " along dimension ", dim);
  return dim;
}

struct ReduceFrom : Function<ReduceFrom> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, int64_t group) {
    return reduced(x, group_at(group));
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], at::Tensor()}; }
};

void save(AutogradContext* context, int64_t dim, int64_t group) {
  context->saved_data["dim"] = dim;
  context->saved_data["group"] = group;
}

/// Returns the gradients of a collective along a dimension, whose backward is `Opposite`.
template <at::Tensor (*Opposite)(const at::Tensor&, int64_t, Group&)>
variable_list opposite(AutogradContext* context, const variable_list& grads) {
  Group& group = group_at(context->saved_data["group"].toInt());
  return {Opposite(grads[0], context->saved_data["dim"].toInt(), group), at::Tensor(), at::Tensor()};
}

struct GatherFrom : Function<GatherFrom> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t dim, int64_t group) {
    save(context, dim, group);
    return gathered(x, dim, group_at(group));
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return opposite<slice>(context, grads);
  }
};

struct SplitTo : Function<SplitTo> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t dim, int64_t group) {
    save(context, dim, group);
    return slice(x, dim, group_at(group));
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return opposite<gathered>(context, grads);
  }
};

struct CopyTo : Function<CopyTo> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t group) {
    context->saved_data["group"] = group;
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {reduced(grads[0], group_at(context->saved_data["group"].toInt())), at::Tensor()};
  }
};

struct AllGather : Function<AllGather> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t dim, int64_t group) {
    save(context, dim, group);
    return gathered(x, dim, group_at(group));
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return opposite<scattered>(context, grads);
  }
};

struct ReduceScatter : Function<ReduceScatter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t dim, int64_t group) {
    save(context, dim, group);
    return scattered(x, dim, group_at(group));
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return opposite<gathered>(context, grads);
  }
};

at::Tensor joined_parts(const at::Tensor& x, int64_t dim, const std::vector<int64_t>& lengths, Group& group) {
  const tensor::ReadScope read({x});
  std::vector<at::Tensor> parts;
  std::vector<int64_t> sizes = x.sizes().vec();
  for (int rank = 0; rank < group.size(); ++rank) {
    sizes[dim] = lengths[rank];
    parts.push_back(rank == group.rank() ? x.contiguous() : at::empty(sizes, x.options()));
    if (parts.back().numel() > 0) group.broadcast(parts.back(), rank).wait();
  }
  return at::cat(parts, dim);
}

at::Tensor summed_parts(const at::Tensor& x, int64_t dim, const std::vector<int64_t>& lengths, Group& group) {
  const tensor::ReadScope read({x});
  at::Tensor own;
  int rank = 0;
  for (const at::Tensor& part : x.split_with_sizes(lengths, dim)) {
    at::Tensor sum = part.clone(at::MemoryFormat::Contiguous);
    if (sum.numel() > 0) group.reduce(sum, rank, Reduce::Sum).wait();
    if (rank++ == group.rank()) own = sum;
  }
  return own;
}

/// A collective along a dimension whose parts have other lengths on each rank, and the opposite one as its backward.
template <auto Collect, auto Opposite>
struct OfParts : Function<OfParts<Collect, Opposite>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t dim,
                            const std::vector<int64_t>& lengths, int64_t group) {
    save(context, dim, group);
    context->saved_data["lengths"] = lengths;
    return Collect(x, dim, lengths, group_at(group));
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto& saved = context->saved_data;
    return {Opposite(grads[0], saved["dim"].toInt(), saved["lengths"].toIntVector(), group_at(saved["group"].toInt())),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

bool are_equal(const std::vector<int64_t>& lengths) {
  return std::adjacent_find(lengths.begin(), lengths.end(), std::not_equal_to<>()) == lengths.end();
}

at::Tensor exchanged(const at::Tensor& x, const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows,
                     Group& group) {
  const tensor::ReadScope read({x});
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.at(0) = std::accumulate(out_rows.begin(), out_rows.end(), int64_t{0});
  at::Tensor out = at::empty(sizes, x.options());
  group.all_to_all(out, x.contiguous(), out_rows, in_rows).wait();
  return out;
}

struct AllToAll : Function<AllToAll> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::vector<int64_t>& out_rows,
                            const std::vector<int64_t>& in_rows, int64_t group) {
    context->saved_data["out_rows"] = out_rows;
    context->saved_data["in_rows"] = in_rows;
    context->saved_data["group"] = group;
    return exchanged(x, out_rows, in_rows, group_at(group));
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto& saved = context->saved_data;
    return {exchanged(grads[0], saved["in_rows"].toIntVector(), saved["out_rows"].toIntVector(),
                      group_at(saved["group"].toInt())),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor reduce_from(const at::Tensor& x, Group& group) {
  return group.size() == 1 ? x : ReduceFrom::apply(x, address_of(group));
}

at::Tensor gather_from(const at::Tensor& x, int64_t dim, Group& group) {
  dim = checked_dim("gather_from", x, dim, group, false);
  return group.size() == 1 ? x : GatherFrom::apply(x, dim, address_of(group));
}

at::Tensor split_to(const at::Tensor& x, int64_t dim, Group& group) {
  dim = checked_dim("split_to", x, dim, group, true);
  return group.size() == 1 ? x : SplitTo::apply(x, dim, address_of(group));
}

at::Tensor copy_to(const at::Tensor& x, Group& group) {
  return group.size() == 1 ? x : CopyTo::apply(x, address_of(group));
}

at::Tensor all_gather(const at::Tensor& x, int64_t dim, Group& group) {
  dim = checked_dim("all_gather", x, dim, group, false);
  return group.size() == 1 ? x : AllGather::apply(x, dim, address_of(group));
}

at::Tensor gathered_parts(const at::Tensor& x, int64_t dim, const std::vector<int64_t>& lengths, Group& group) {
  if (are_equal(lengths)) return all_gather(x, dim, group);
  dim = checked_dim("gathered_parts", x, dim, group, false);
  return OfParts<joined_parts, summed_parts>::apply(x, dim, lengths, address_of(group));
}

at::Tensor scattered_parts(const at::Tensor& x, int64_t dim, const std::vector<int64_t>& lengths, Group& group) {
  if (are_equal(lengths)) return reduce_scatter(x, dim, group);
  dim = checked_dim("scattered_parts", x, dim, group, false);
  return OfParts<summed_parts, joined_parts>::apply(x, dim, lengths, address_of(group));
}

at::Tensor all_to_all(const at::Tensor& x, const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows,
                      Group& group) {
  return group.size() == 1 ? x : AllToAll::apply(x, out_rows, in_rows, address_of(group));
}

at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, Group& group) {
  dim = checked_dim("reduce_scatter", x, dim, group, true);
  return group.size() == 1 ? x : ReduceScatter::apply(x, dim, address_of(group));
}

}  // namespace colossal::comm
