// Application of an autograd function, without a node where no gradient can be asked for.
//
//   struct Gelu : torch::autograd::Function<Gelu> {
//     static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {   // null = nothing is saved
//       if (context) context->save_for_backward({x});
//       return gelu_elements(x);
//     }
//     ...
//   };
//   const at::Tensor y = tensor::apply_function<Gelu>(x);
#pragma once
#include <ATen/core/grad_mode.h>

#include <utility>

namespace colossal::tensor {

/// Returns Function::apply(arguments...). If gradients are disabled, it calls Function::forward with a null context
/// instead: a node takes about two microseconds to make, which is longer than most operators of a decoded token.
/// Requires: forward() returns a new tensor, not one of its arguments.
template <class Function, class... Arguments>
auto apply_function(Arguments&&... arguments) {
  if (!at::GradMode::is_enabled()) return Function::forward(nullptr, std::forward<Arguments>(arguments)...);
  return Function::apply(std::forward<Arguments>(arguments)...);
}

}  // namespace colossal::tensor
