#include "colossal/auto_parallel/block_layers.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "colossal/ops/random.h"

namespace colossal::auto_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Returns the dimensions that batch norm sums over: all but the channels.
std::vector<int64_t> summed_dims(const at::Tensor& x) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < x.dim(); ++dim) dims.push_back(dim);
  return dims;
}

/// Returns a vector of channels in a shape that broadcasts over `x`.
at::Tensor over_channels(const at::Tensor& vector, const at::Tensor& x) {
  std::vector<int64_t> sizes(static_cast<size_t>(x.dim()), 1);
  sizes[1] = vector.size(0);
  return vector.view(sizes);
}

at::ScalarType statistics_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Returns the sums of both vectors over all groups.
at::Tensor summed_pair(const at::Tensor& first, const at::Tensor& second, const std::vector<int64_t>& addresses) {
  at::Tensor sums = at::stack({first, second});
  for (const int64_t address : addresses)
    reinterpret_cast<comm::Group*>(address)->all_reduce(sums, comm::Reduce::Sum).wait();
  return sums;
}

struct BatchNorm : Function<BatchNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, const at::Tensor& shift, double epsilon,
                               const std::vector<int64_t>& groups) {
    const at::ScalarType dtype = statistics_dtype(x);
    double count = static_cast<double>(x.numel() / x.size(1));
    for (const int64_t address : groups) count *= reinterpret_cast<comm::Group*>(address)->size();
    const at::Tensor wide = x.to(dtype), about = shift.to(dtype);
    const at::Tensor apart = wide - over_channels(about, x);
    const at::Tensor sums = summed_pair(apart.sum(summed_dims(x)), apart.square().sum(summed_dims(x)), groups) / count;
    const at::Tensor mean = about + sums[0];
    const at::Tensor variance = (sums[1] - sums[0].square()).clamp_min(0);
    const at::Tensor inverse = (variance + epsilon).rsqrt();
    at::Tensor y = (wide - over_channels(mean, x)) * over_channels(inverse, x);
    if (weight.defined()) y = y * over_channels(weight.to(dtype), x);
    if (bias.defined()) y = y + over_channels(bias.to(dtype), x);
    context->save_for_backward({x, weight, mean, inverse});
    context->saved_data["groups"] = groups;
    context->saved_data["count"] = count;
    context->saved_data["has_bias"] = bias.defined();
    const at::Tensor unbiased = variance * (count / std::max(count - 1, 1.0));
    context->mark_non_differentiable({mean, unbiased});
    return {y.to(x.scalar_type()), mean, unbiased};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3];
    const double count = context->saved_data["count"].toDouble();
    const at::Tensor dy = gradients[0].to(mean.scalar_type());
    const at::Tensor normal = (x.to(mean.scalar_type()) - over_channels(mean, x)) * over_channels(inverse, x);
    const at::Tensor of_bias = dy.sum(summed_dims(x)), of_weight = (dy * normal).sum(summed_dims(x));
    const at::Tensor means = summed_pair(of_bias, of_weight, context->saved_data["groups"].toIntVector()) / count;
    at::Tensor scale = inverse;
    if (weight.defined()) scale = scale * weight.to(scale.scalar_type());
    const at::Tensor dx =
        over_channels(scale, x) * (dy - over_channels(means[0], x) - normal * over_channels(means[1], x));
    const auto of = [](const at::Tensor& gradient, at::ScalarType dtype) { return gradient.to(dtype); };
    return {of(dx, x.scalar_type()),
            weight.defined() ? of(of_weight, weight.scalar_type()) : at::Tensor(),
            context->saved_data["has_bias"].toBool() ? of(of_bias, x.scalar_type()) : at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

NormedBlock batch_norm_of_block(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                const at::Tensor& shift, double epsilon, const std::vector<comm::Group*>& groups) {
  std::vector<int64_t> addresses;
  for (comm::Group* group : groups) addresses.push_back(reinterpret_cast<int64_t>(group));
  const at::Tensor about = shift.defined() ? shift.detach() : at::zeros({x.size(1)}, x.options());
  const variable_list made = BatchNorm::apply(x, weight, bias, about, epsilon, addresses);
  return {made[0], made[1], made[2]};
}

namespace {

/// The rows of a block: all dimensions but the last.
struct BlockRows {
  const std::vector<int64_t>&shape, &start;
  std::vector<int64_t> size;  // sizes of the block

  bool is_divided(size_t dim) const { return size[dim] != shape[dim]; }
  /// Returns the last dimension of the rows that is divided, or -1.
  int last_divided() const {
    for (int dim = static_cast<int>(shape.size()) - 2; dim >= 0; --dim)
      if (is_divided(static_cast<size_t>(dim))) return dim;
    return -1;
  }
  /// Returns the first dimension with several indices in the block.
  size_t first_long() const {
    size_t dim = 0;
    while (dim + 1 < size.size() && size[dim] == 1) ++dim;
    return dim;
  }
  /// Returns true if runs of rows begin at equal distances. Between the first dimension with several indices and the
  /// last divided one, no dimension may be divided.
  bool is_regular() const {
    const int last = last_divided();
    for (int dim = static_cast<int>(first_long()) + 1; dim < last; ++dim)
      if (is_divided(static_cast<size_t>(dim))) return false;
    return true;
  }
  ops::LogicalRows logical() const {
    int64_t first = 0, run = 1, stride = 1;
    const int last = last_divided();
    for (int dim = 0; dim + 1 < static_cast<int>(shape.size()); ++dim) {
      first = first * shape[dim] + start[dim];
      if (dim < last || last < 0) continue;
      run *= size[dim];
      stride *= shape[dim];
    }
    return {first, run, stride};
  }
};

}  // namespace

at::Tensor dropout_of_block(const at::Tensor& block, double probability, uint64_t seed,
                            const std::vector<int64_t>& shape, const std::vector<int64_t>& start) {
  if (block.dim() == 0 || block.numel() == 0)
    return ops::dropout(block, probability, seed, {0}, 0, block.dim() == 0 ? 1 : shape.back());
  const BlockRows rows{shape, start, block.sizes().vec()};
  if (rows.is_regular()) return ops::dropout(block, probability, seed, rows.logical(), start.back(), shape.back());
  const auto dim = static_cast<int64_t>(rows.first_long());
  std::vector<at::Tensor> dropped;
  for (int64_t i = 0; i < block.size(dim); ++i) {
    std::vector<int64_t> from = start;
    from[dim] += i;
    dropped.push_back(dropout_of_block(block.narrow(dim, i, 1), probability, seed, shape, from));
  }
  return at::cat(dropped, dim);
}

namespace {

at::ScalarType loss_dtype(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Targets as indices of the block, with a dimension for the classes; those of other ranks are 0 and marked.
struct OwnTargets {
  at::Tensor index, is_other;

  OwnTargets(const at::Tensor& targets, int64_t first, int64_t classes) {
    const at::Tensor local = (targets.to(at::kLong) - first).unsqueeze(1);
    is_other = local.lt(0).logical_or(local.ge(classes));
    index = local.masked_fill(is_other, 0);
  }
};

struct ClassLosses : Function<ClassLosses> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& targets,
                            int64_t ignored, int64_t first, const std::vector<int64_t>& addresses) {
    const at::Tensor wide = logits.to(loss_dtype(logits));
    at::Tensor maxima = wide.amax(1).contiguous();
    for (const int64_t address : addresses)
      reinterpret_cast<comm::Group*>(address)->all_reduce(maxima, comm::Reduce::Max).wait();
    const OwnTargets own(targets, first, logits.size(1));
    const at::Tensor exponentials = (wide - maxima.unsqueeze(1)).exp_().sum(1);
    const at::Tensor chosen = wide.gather(1, own.index).masked_fill_(own.is_other, 0).squeeze(1);
    at::Tensor sums = at::stack({exponentials, chosen});
    for (const int64_t address : addresses)
      reinterpret_cast<comm::Group*>(address)->all_reduce(sums, comm::Reduce::Sum).wait();
    const at::Tensor logs = sums[0].log() + maxima;
    context->save_for_backward({logits, targets, logs});
    context->saved_data["ignored"] = ignored;
    context->saved_data["first"] = first;
    return (logs - sums[1]).masked_fill_(targets.eq(ignored), 0);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &logits = saved[0], &targets = saved[1], &logs = saved[2];
    const OwnTargets own(targets, context->saved_data["first"].toInt(), logits.size(1));
    at::Tensor made = (logits.to(logs.scalar_type()) - logs.unsqueeze(1)).exp_();
    made.scatter_add_(1, own.index, own.is_other.to(made.scalar_type()).sub(1));
    const at::Tensor rows = gradients[0].masked_fill(targets.eq(context->saved_data["ignored"].toInt()), 0);
    made.mul_(rows.unsqueeze(1));
    return {made.to(logits.scalar_type()), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor class_losses_of_block(const at::Tensor& logits, const at::Tensor& targets, int64_t ignored,
                                 const ClassBlock& block) {
  std::vector<int64_t> addresses;
  for (comm::Group* group : block.groups) addresses.push_back(reinterpret_cast<int64_t>(group));
  return ClassLosses::apply(logits, targets, ignored, block.first, addresses);
}

}  // namespace colossal::auto_parallel
