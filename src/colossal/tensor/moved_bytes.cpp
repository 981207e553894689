#include "colossal/tensor/moved_bytes.h"

#include <ATen/ATen.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace colossal::tensor {
namespace {

int& hidden() {
  thread_local int depth = 0;
  return depth;
}

/// An operator in progress.
struct RunningOperator : at::ObserverContext {
  RunningOperator* outer = nullptr;
  bool is_counted = false;  // it or an operator inside it was announced
  bool is_product = false;
  double read = 0, changed = 0, unchanged = 0;  // bytes of inputs
  std::vector<const c10::StorageImpl*> inputs;  // memory of the inputs
};

RunningOperator*& innermost() {
  thread_local RunningOperator* running = nullptr;
  return running;
}

bool starts_with_any(std::string_view name, std::initializer_list<const char*> starts) {
  return std::any_of(starts.begin(), starts.end(), [&](const char* start) { return name.starts_with(start); });
}

bool is_product(std::string_view name) {
  return starts_with_any(name, {"aten::mm",           "aten::addmm",       "aten::bmm",
                                "aten::baddbmm",      "aten::_addmm",      "aten::mv",
                                "aten::addmv",        "aten::dot",         "aten::_scaled_mm",
                                "aten::_int_mm",      "aten::_grouped_mm", "aten::convolution",
                                "aten::_convolution", "aten::mkldnn_",     "aten::thnn_conv",
                                "aten::slow_conv",    "aten::_flash_att",  "aten::_efficient_att",
                                "aten::_scaled_dot",  "mkldnn::_linear"});
}

/// Returns true if the operator writes the tensor that it changes without reading it.
bool only_writes(std::string_view name, std::string_view argument) {
  return name == "aten::copy_" || name == "aten::zero_" || name == "aten::fill_" || name == "aten::normal_" ||
         name == "aten::uniform_" || argument.starts_with("out");
}

/// Returns true if the operator reads only those elements of its inputs that it writes.
bool picks(std::string_view name) {
  return name == "aten::embedding" || name == "aten::index_select" || name == "aten::gather" || name == "aten::index" ||
         name == "aten::take";
}

/// Returns true if the operator changes only as many elements as its other inputs have.
bool places(std::string_view name) {
  return starts_with_any(
      name, {"aten::index_add_", "aten::index_copy_", "aten::index_put_", "aten::_index_put_impl_", "aten::scatter_"});
}

template <class Visit>
void for_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (!element.isTensor() && !element.isNone()) return;
      for_tensors(element, visit);
    }
  }
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const auto schema = hidden() == 0 ? function.operator_schema() : std::nullopt;
  if (!schema) return nullptr;
  auto running = std::make_unique<RunningOperator>();
  running->is_product = is_product(schema->name());
  const auto inputs = function.inputs();
  const auto& arguments = schema->arguments();
  for (size_t i = 0; i < std::min(inputs.size(), arguments.size()); ++i) {
    const bool is_changed = arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
    for_tensors(inputs[i], [&](const at::Tensor& x) {
      if (!is_changed || !only_writes(schema->name(), arguments[i].name())) running->read += moved_bytes(x);
      if (is_changed) running->changed += moved_bytes(x);
      if (!is_changed) running->unchanged += moved_bytes(x);
      if (x.has_storage()) running->inputs.push_back(x.storage().unsafeGetStorageImpl());
    });
  }
  running->outer = innermost();
  innermost() = running.get();
  return running;
}

double new_bytes(const at::RecordFunction& function, const std::vector<const c10::StorageImpl*>& inputs) {
  double bytes = 0;
  for (const c10::IValue& output : function.outputs())
    for_tensors(output, [&](const at::Tensor& x) {
      if (!x.has_storage()) return;
      const c10::StorageImpl* memory = x.storage().unsafeGetStorageImpl();
      if (std::find(inputs.begin(), inputs.end(), memory) == inputs.end()) bytes += moved_bytes(x);
    });
  return bytes;
}

bool only_allocates(std::string_view name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty") || name.starts_with("aten::resize");
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (!context) return;
  auto& running = *static_cast<RunningOperator*>(context);
  innermost() = running.outer;
  if (!running.is_counted && hidden() == 0) {
    const std::string_view name = function.name();
    double read = running.read, written = running.changed;
    if (written == 0) written = new_bytes(function, running.inputs);
    if (picks(name)) read = std::min(read, 2 * written);  // an element, and at most as much for its index
    if (places(name)) {
      written = std::min(written, running.unchanged);
      read = written + running.unchanged;
    }
    running.is_counted = running.is_product;
    if (!running.is_product && written > 0 && !only_allocates(name)) {
      running.is_counted = true;
      announce_flops(0, {.kind = Operation::Kind::Elementwise, .read = read, .written = written});
    }
  }
  if (running.outer && running.is_counted) running.outer->is_counted = true;
}

double sum_of(std::initializer_list<KernelBytes::Named> named) {
  double bytes = 0;
  for (const KernelBytes::Named& one : named) bytes += moved_bytes(*one.tensor);
  return bytes;
}

}  // namespace

double moved_bytes(const at::Tensor& x) {
  if (!x.defined()) return 0;
  const auto bytes = static_cast<double>(x.numel()) * static_cast<double>(x.element_size());
  return x.has_storage() ? std::min(bytes, static_cast<double>(x.storage().nbytes())) : bytes;
}

KernelBytes::KernelBytes(std::initializer_list<Named> read, std::initializer_list<Named> written)
    : hides_(are_flops_counted()) {
  if (!hides_) return;
  if (hidden() == 0) {
    announce_flops(0, {.kind = Operation::Kind::Elementwise, .read = sum_of(read), .written = sum_of(written)});
    if (innermost()) innermost()->is_counted = true;
  }
  ++hidden();
}
KernelBytes::~KernelBytes() {
  if (hides_) --hidden();
}

HiddenOperators::HiddenOperators() { ++hidden(); }
HiddenOperators::~HiddenOperators() { --hidden(); }

ObservedOperators::ObservedOperators()
    : callback_(at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {}
ObservedOperators::~ObservedOperators() { at::removeCallback(callback_); }

}  // namespace colossal::tensor
