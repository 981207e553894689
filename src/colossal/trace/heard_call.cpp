#include "colossal/trace/heard_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>

#include "colossal/base/error.h"

namespace colossal::trace {

std::string full_name(const c10::OperatorHandle& handle) {
  const c10::OperatorName& name = handle.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

std::optional<c10::OperatorHandle> find_operator(const std::string& name) {
  const size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({name.substr(0, dot), overload});
}

c10::OperatorHandle operator_named(const std::string& name) {
  const std::optional<c10::OperatorHandle> found = find_operator(name);
  require(found.has_value(), "trace", "this version of LibTorch must have the operator ", name);
  return *found;
}

int HeardCall::index_of(const char* argument) const {
  const auto& schema = handle.schema().arguments();
  for (size_t i = 0; i < schema.size(); ++i)
    if (schema[i].name() == argument) return static_cast<int>(i);
  return -1;
}

const c10::IValue& HeardCall::argument(const char* name) const {
  const int index = index_of(name);
  require(index >= 0, "trace", full_name(handle), " must have an argument `", name, "`: got its schema ",
          handle.schema());
  return arguments[index];
}

bool HeardCall::flag(const char* name) const {
  const int index = index_of(name);
  return index >= 0 && arguments[index].isBool() && arguments[index].toBool();
}

at::Tensor HeardCall::tensor(const char* name) const {
  const int index = index_of(name);
  return index >= 0 && arguments[index].isTensor() ? arguments[index].toTensor() : at::Tensor();
}

void each_tensor(const std::vector<c10::IValue>& arguments,
                 const std::function<void(int argument, int element, const at::Tensor& tensor)>& visit) {
  for (int i = 0; i < static_cast<int>(arguments.size()); ++i) {
    if (arguments[i].isTensor()) {
      if (arguments[i].toTensor().defined()) visit(i, -1, arguments[i].toTensor());
    } else if (arguments[i].isList()) {
      const c10::List<c10::IValue> list = arguments[i].toList();
      for (int e = 0; e < static_cast<int>(list.size()); ++e) {
        const c10::IValue item = list.get(e);
        if (item.isTensor() && item.toTensor().defined()) visit(i, e, item.toTensor());
      }
    }
  }
}

void put_tensor(std::vector<c10::IValue>& arguments, int argument, int element, const at::Tensor& tensor) {
  if (element < 0) {
    arguments[argument] = tensor.defined() ? c10::IValue(tensor) : c10::IValue();
    return;
  }
  c10::List<c10::IValue> list = arguments[argument].toList().copy();
  list.set(element, c10::IValue(tensor));
  arguments[argument] = c10::IValue(std::move(list));
}

std::vector<c10::IValue> run_unheard(const HeardCall& call) {
  const c10::impl::ExcludeDispatchKeyGuard unheard(kTraceKey);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  torch::jit::Stack stack(call.arguments.begin(), call.arguments.end());
  call.handle.callBoxed(stack);
  return std::vector<c10::IValue>(stack.begin(), stack.end());
}

std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& results) {
  std::vector<at::Tensor> tensors;
  each_tensor(results, [&](int, int, const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

}  // namespace colossal::trace
