#include "colossal/train/module_tensors.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <set>

namespace colossal::train {
namespace {

ModuleTensors::Named listed_once(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  ModuleTensors::Named named;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& item : tensors)
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      named.emplace_back(item.key(), item.value());
  return named;
}

}  // namespace

ModuleTensors tensors_of(const torch::nn::Module& module) {
  ModuleTensors tensors{listed_once(module.named_parameters()), listed_once(module.named_buffers()), {}};
  const auto add_tables = [&](const torch::nn::Module& part) {
    if (part.name() != "torch::nn::EmbeddingImpl") return;
    for (const at::Tensor& table : part.parameters(/*recurse=*/false)) tensors.tables.push_back(table);
  };
  // The module itself is separate, because modules() would need a shared_ptr of it, and its owner may hold it by value.
  add_tables(module);
  for (const auto& part : module.modules(/*include_self=*/false)) add_tables(*part);
  return tensors;
}

}  // namespace colossal::train
