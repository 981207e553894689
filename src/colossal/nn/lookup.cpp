#include "colossal/nn/lookup.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/ops/gradient_sum.h"

namespace colossal::nn {
namespace {

struct Lookup : torch::autograd::Function<Lookup> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& table, const at::Tensor& ids) {
    context->save_for_backward({table, ids});
    return at::embedding(table, ids);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &table = saved[0], &ids = saved[1];
    // On an accelerator index_add_ adds in any order: copies of a table would drift apart.
    if (at::Tensor sum = table.is_cpu() ? ops::gradient_sum(table) : at::Tensor(); sum.defined()) {
      sum.index_add_(0, ids.reshape({-1}), gradients[0].reshape({-1, table.size(1)}));
      return {at::Tensor(), at::Tensor()};
    }
    return {at::embedding_dense_backward(gradients[0].contiguous(), ids, table.size(0), /*padding_idx=*/-1, /*scale_grad_by_freq=*/false), at::Tensor()};
  }
};

}  // namespace

at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids) { return Lookup::apply(table, ids); }

}  // namespace colossal::nn
