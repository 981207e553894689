// One call of an operator of LibTorch, with its arguments in the order of its schema.
//
//   const HeardCall call{operator_named("aten::cat"), {tensors, 1}};
//   const int64_t dim = call.argument("dim").toInt();
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKey.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace colossal::trace {

/// The dispatch key at which the tracer hears operators: above autograd and autocast. LibTorch registers nothing on it.
inline constexpr c10::DispatchKey kTraceKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// Returns the full name of an operator: "aten::add.Tensor".
std::string full_name(const c10::OperatorHandle& handle);

/// Returns the operator of a full name, or none.
std::optional<c10::OperatorHandle> find_operator(const std::string& name);

/// Returns the operator of a full name. Errors ("trace"): LibTorch does not have it.
c10::OperatorHandle operator_named(const std::string& name);

struct HeardCall {
  c10::OperatorHandle handle;
  std::vector<c10::IValue> arguments;

  std::string name() const { return full_name(handle); }
  /// Returns the index of an argument, or -1 if the operator has none of that name.
  int index_of(const char* argument) const;
  /// Returns an argument. Errors ("trace"): the operator has none of that name.
  const c10::IValue& argument(const char* name) const;
  bool flag(const char* name) const;          ///< false if the operator has no such argument
  at::Tensor tensor(const char* name) const;  ///< undefined if there is none
  const at::Tensor& self() const { return arguments.at(0).toTensor(); }
};

/// Calls `visit(argument, element, tensor)` for each defined tensor; `element` is -1 outside of lists.
void each_tensor(const std::vector<c10::IValue>& arguments,
                 const std::function<void(int argument, int element, const at::Tensor& tensor)>& visit);

/// Sets the tensor of an argument, or of an element of an argument that is a list. The list is copied.
void put_tensor(std::vector<c10::IValue>& arguments, int argument, int element, const at::Tensor& tensor);

/// Runs an operator below autograd, unheard by the tracer, and returns its results.
std::vector<c10::IValue> run_unheard(const HeardCall& call);

/// Returns the tensors of results, those of lists one by one.
std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& results);

}  // namespace colossal::trace
