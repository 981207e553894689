#include "colossal/auto_parallel/block_class_loss.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace colossal::automatic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

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

}  // namespace colossal::automatic
