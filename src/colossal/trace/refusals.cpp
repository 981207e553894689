// Operators that a graph cannot hold: those whose shapes depend on values, and those that draw random numbers.
#include <ATen/ATen.h>
#include <ATen/core/enum_tag.h>

#include <unordered_set>

#include "colossal/base/error.h"
#include "colossal/trace/tracer.h"

namespace colossal::trace {

void Tracer::refuse(const HeardCall& call, const std::string& rule, const std::string& remedy) const {
  throw Error("trace", concat(rule, ": got ", call.name(), " after ", recorder_.last_module(), "; ", remedy));
}

void Tracer::check_values(const HeardCall& call) const {
  static const std::unordered_set<std::string> named{"aten::item",     "aten::is_nonzero", "aten::equal",
                                                     "aten::allclose", "aten::nonzero",    "aten::masked_select"};
  const std::string name = call.name(), base = call.handle.operator_name().name;
  bool depends = named.count(base) > 0 || call.handle.hasTag(at::Tag::data_dependent_output) ||
                 call.handle.hasTag(at::Tag::dynamic_output_shape);
  if (base == "aten::index" || base == "aten::index_put" || base == "aten::index_put_") {
    depends = false;  // only masks have results of unknown shape
    each_tensor(call.arguments, [&](int, int element, const at::Tensor& index) {
      depends = depends || (base == "aten::index" && element >= 0 &&
                            (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte));
    });
  }
  if (base == "aten::one_hot") depends = call.argument("num_classes").toInt() < 0;
  if (depends)
    refuse(call, "operators must not depend on the values of tensors",
           "use where or masked_fill, or do it outside "
           "of the loss and pass the result as an input");
}

void Tracer::check_random(const HeardCall& call) const {
  const std::string base = call.handle.operator_name().name;
  static const std::unordered_set<std::string> allowed{"aten::dropout", "aten::dropout_",
                                                       "aten::scaled_dot_product_attention",
                                                       "aten::_scaled_dot_product_attention_math"};
  if (allowed.count(base) > 0) return;
  bool draws = call.handle.hasTag(at::Tag::nondeterministic_seeded);
  for (const c10::Argument& argument : call.handle.schema().arguments())
    draws = draws || argument.name() == "generator";
  for (const char* mode : {"train", "training"})
    if (call.index_of(mode) >= 0 && !call.flag(mode)) draws = false;
  for (const char* share : {"p", "dropout"}) {  // of elements that the operator drops, for instance between layers
    const int index = call.index_of(share);
    if (index >= 0 && call.arguments[index].isDouble() && call.arguments[index].toDouble() == 0) draws = false;
  }
  if (draws)
    refuse(call, "dropout must be the only random operator",
           "draw outside of the loss and pass the result as an input");
}

void Tracer::check_gradient(const HeardCall& call, const at::Tensor& tensor) const {
  if (!gradients_) return;
  if (tensor.grad_fn())
    refuse(call,
           "gradients must come from operators of LibTorch: an operand comes from a torch::autograd::Function or "
           "from a computation before the loss",
           "write it with operators, inside of the loss");
  if (tensor.requires_grad() && !tensor.is_meta())
    refuse(call, "tensors that train must be parameters of the module", "register it, or detach it");
}

}  // namespace colossal::trace
