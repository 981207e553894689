#include "colossal/trace/module_on_meta.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <set>

namespace colossal::trace {
namespace {

at::Tensor shape_on_meta(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

}  // namespace

ModuleOnMeta::ModuleOnMeta(torch::nn::Module& module) {
  std::set<c10::TensorImpl*> seen;
  const auto collect = [&](const auto& named, auto& into) {
    for (const auto& item : named) {
      if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      if (device_.is_cpu() && !item.value().is_meta()) device_ = item.value().device();
      into.emplace_back(item.key(), item.value());
    }
  };
  collect(module.named_parameters(), parameters_);
  collect(module.named_buffers(), buffers_);
  try {
    for (const auto& [name, parameter] : parameters_) give(parameter);
    for (const auto& [name, buffer] : buffers_)
      if (!buffer.is_meta()) replace(buffer, buffer.detach().clone());
  } catch (...) {
    restore();
    throw;
  }
}

ModuleOnMeta::~ModuleOnMeta() { restore(); }

void ModuleOnMeta::give(const at::Tensor& tensor) {
  if (!tensor.is_meta()) replace(tensor, shape_on_meta(tensor));
}

void ModuleOnMeta::replace(const at::Tensor& tensor, const at::Tensor& by) {
  replaced_.emplace_back(tensor, tensor.variable_data());
  tensor.unsafeGetTensorImpl()->shallow_copy_from(by.getIntrusivePtr());
}

void ModuleOnMeta::restore() {
  for (size_t i = replaced_.size(); i-- > 0;)
    replaced_[i].first.unsafeGetTensorImpl()->shallow_copy_from(replaced_[i].second.getIntrusivePtr());
  replaced_.clear();
}

}  // namespace colossal::trace
