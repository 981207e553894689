// Announces reads that no operator of LibTorch makes: kernels and collectives that take a tensor's address.
//
//   const tensor::ReadScope read({weight, bias});
//   kernel(weight.const_data_ptr(), bias.const_data_ptr(), ...);
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <initializer_list>
#include <optional>
#include <vector>

namespace colossal::tensor {

/// While it lives, the memory of `tensors` is read by address. Observers of operators (at::RecordFunction) see it as
/// one operator "colossal::read" with these inputs: whoever keeps data elsewhere (memory::ChunkStore) brings it before
/// the constructor returns, and keeps it until the destructor. Needed wherever a parameter may be read without an
/// operator; undefined tensors are allowed. Cost: next to nothing where nobody observes.
class ReadScope {
 public:
  ReadScope(std::initializer_list<at::Tensor> tensors) {
    auto observers = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
    if (!observers) return;
    for (const at::Tensor& t : tensors)
      if (t.defined()) inputs_.emplace_back(t);
    record_.emplace(std::move(*observers));
    record_->before("colossal::read", c10::ArrayRef<const c10::IValue>(inputs_.data(), inputs_.size()));
  }
  ReadScope(const ReadScope&) = delete;
  ReadScope& operator=(const ReadScope&) = delete;

 private:
  std::vector<c10::IValue> inputs_;
  std::optional<at::RecordFunction> record_;
};

}  // namespace colossal::tensor
