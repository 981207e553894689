// Announces reads that bypass the operators of LibTorch: kernels and collectives that take a tensor's address.
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

/// Declares that the memory of `tensors` is read by address during this scope. Observers of operators
/// (at::RecordFunction) see it as one operator "colossal::read" with these inputs. An observer that stores data
/// elsewhere (memory::ChunkStore) loads it before the constructor returns, and keeps it loaded until the destructor.
/// Required wherever a parameter may be read without an operator; undefined tensors are allowed.
/// Cost: almost none if there is no observer.
class ReadScope {
 public:
  ReadScope(std::initializer_list<at::Tensor> tensors) : ReadScope(at::ArrayRef<at::Tensor>(tensors)) {}
  explicit ReadScope(at::ArrayRef<at::Tensor> tensors) {
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
