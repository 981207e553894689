// The tensors of a module in training, by name. The module may be written in any language: its operators are called
// through LibTorch, so training needs nothing else of it.
//
//   train::ModuleTensors tensors;
//   tensors.parameters.emplace_back("weight", at::zeros({4, 2}).requires_grad_());
//   tensors.buffers.emplace_back("mean", at::zeros({4}));
//   const auto training = colossal::initialize(world, tensors, config);
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace colossal::train {

/// The parameters and buffers of a module. Each at::Tensor must be the handle that the module itself uses, or a copy of
/// that handle, and not another view of its memory: training replaces the memory of the tensor (Tensor::set_data),
/// which the module must see. A Python Parameter and the at::Tensor that a binding makes of it are such a pair. A
/// tensor that several names share (a tied weight) is listed once.
struct ModuleTensors {
  using Named = std::vector<std::pair<std::string, at::Tensor>>;
  Named parameters{};                ///< in the order of registration
  Named buffers{};                   ///< tensors without gradient that forward reads or changes in place
  std::vector<at::Tensor> tables{};  ///< embedding tables among `parameters`, to which rules for matrices do not apply
};

/// Returns the tensors of `module`, each under its first name, without undefined ones. Tables are the weights of
/// torch::nn::Embedding.
ModuleTensors tensors_of(const torch::nn::Module& module);

}  // namespace colossal::train
