// In-place operators: each gives a tensor another value, and its base and other views of the base follow.
#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/trace/operator_nodes.h"
#include "colossal/trace/tracer.h"

namespace colossal::trace {
namespace {

/// Returns the operator out of place: "aten::add.Tensor" for "aten::add_.Tensor".
std::optional<c10::OperatorHandle> out_of_place(const c10::OperatorHandle& handle) {
  const c10::OperatorName& name = handle.operator_name();
  if (name.name.empty() || name.name.back() != '_') return std::nullopt;
  return c10::Dispatcher::singleton().findSchema({name.name.substr(0, name.name.size() - 1), name.overload_name});
}

bool reshapes(const std::string& op) {
  return op == "reshape" || op == "flatten" || op == "squeeze" || op == "unsqueeze" || op == "view" || op == "expand";
}

}  // namespace

Tracer::Results Tracer::change(const HeardCall& call, int written) {
  if (!call.arguments[written].isTensor())
    refuse(call, "an operator must change one tensor", "use the operator that returns its result");
  const at::Tensor self = call.arguments[written].toTensor();
  if (!out_of_place(call.handle))
    refuse(call, "an operator that writes its result to an argument must have a form that returns it",
           "use the operator that returns its result");
  if (!find(self)) give_constant(call, self);
  const std::shared_ptr<Tracked> target = find(self);
  const Tracked* root = target.get();
  while (root->base) root = root->base.get();
  if (root->source.is_parameter)
    refuse(call, "the loss must not change a parameter", "change it between steps, or change a clone");
  at::Tensor value = changed_value(call, self);
  if (value.sizes() != self.sizes())
    refuse(call, "an in-place operator must keep the shape", "use the operator that returns its result");
  if (value.scalar_type() != self.scalar_type())
    value = record_one("aten::to.dtype", {value, self.scalar_type(), false, false, c10::IValue()});
  assign(target, value);
  for (const auto& [name, buffer] : module_.buffers())
    if (buffer.is_same(self) && recorder_.trains(target->source))
      refuse(call, "the loss must not write results of the pass to the buffer " + name,
             "change it outside of the loss");
  if (recorder_.trains(target->source)) self.set_requires_grad(true);
  return {self};
}

at::Tensor Tracer::changed_value(const HeardCall& call, const at::Tensor& self) {
  if (call.name() != "aten::copy_") return record({*out_of_place(call.handle), call.arguments}).at(0).toTensor();
  at::Tensor value = on_meta(call.arguments[1].toTensor());
  if (value.scalar_type() != self.scalar_type())
    value = record_one("aten::to.dtype", {value, self.scalar_type(), false, false, c10::IValue()});
  if (value.sizes() != self.sizes()) value = record_one("aten::expand", {value, self.sizes().vec(), false});
  return value;
}

void Tracer::assign(const std::shared_ptr<Tracked>& target, const at::Tensor& value) {
  const plan::Source own = source_of(value);
  at::Tensor made = value;
  std::shared_ptr<Tracked> at = target;
  for (; at->base; at = at->base) made = base_with(*at, made);
  at->source = source_of(made);
  ++at->version;
  target->source = own;
  target->version = at->version;
}

at::Tensor Tracer::base_with(const Tracked& view, const at::Tensor& value) {
  const at::Tensor& base = view.base->held;
  const HeardCall& made = *view.made;
  const std::string name = made.name();
  const OperatorRow* row = find_row(name);
  const std::string op = row == nullptr ? "" : row->op;
  const auto dim_of = [&](const char* argument) { return positive_dim(made.argument(argument).toInt(), base.dim()); };
  if (name == "aten::slice.Tensor" && made.argument("step").toInt() == 1) {
    const int64_t dim = dim_of("dim"), size = base.size(dim);
    const c10::IValue& from = made.argument("start");
    int64_t start = from.isInt() ? from.toInt() : 0;
    start = std::clamp<int64_t>(start < 0 ? start + size : start, 0, size);
    return joined(base, value, dim, start, start + value.size(dim));
  }
  if (name == "aten::select.int") {
    const int64_t dim = dim_of("dim"), index = positive_dim(made.argument("index").toInt(), base.size(dim));
    return joined(base, record_one("aten::unsqueeze", {value, dim}), dim, index, index + 1);
  }
  if (name == "aten::transpose.int") return record_one("aten::transpose.int", {value, dim_of("dim0"), dim_of("dim1")});
  if (name == "aten::t") return record_one("aten::t", {value});
  if (op == "permute") {
    std::vector<int64_t> dims = made.argument("dims").toIntVector(), inverse(dims.size());
    for (size_t i = 0; i < dims.size(); ++i) inverse[positive_dim(dims[i], base.dim())] = static_cast<int64_t>(i);
    return record_one("aten::permute", {value, inverse});
  }
  if (reshapes(op) && base.numel() == value.numel()) return record_one("aten::reshape", {value, base.sizes().vec()});
  if (base.sizes() == value.sizes() && base.strides() == view.held.strides()) return value;  // detach, contiguous, to
  refuse(made, "a view that is changed in place must be a slice, a transposed or a reshaped tensor",
         "build the result with cat, stack or where");
}

at::Tensor Tracer::joined(const at::Tensor& base, const at::Tensor& value, int64_t dim, int64_t start, int64_t end) {
  std::vector<at::Tensor> parts;
  const int64_t size = base.size(dim), step = 1;
  if (start > 0) parts.push_back(record_one("aten::slice.Tensor", {base, dim, int64_t{0}, start, step}));
  parts.push_back(value);
  if (end < size) parts.push_back(record_one("aten::slice.Tensor", {base, dim, end, size, step}));
  return parts.size() == 1 ? value : record_one("aten::cat", {parts, dim});
}

void Tracer::give_constant(const HeardCall& call, const at::Tensor& constant) {
  for (const auto& [name, buffer] : module_.buffers())
    if (buffer.is_same(constant))
      refuse(call, "the loss must not write results of the pass to the buffer " + name,
             "change it outside of the loss");
  if (constant.storage().use_count() > 1)
    refuse(call, "a tensor that the loss fills must not be a view, or have views", "build it with cat or stack");
  if (constant.has_storage()) unset_.erase(constant.storage().unsafeGetStorageImpl());
  const plan::Source source = source_of(constant);
  constants_.erase(constant.unsafeGetTensorImpl());
  module_.give(constant);
  track(constant, source);
}

}  // namespace colossal::trace
