#include "colossal/nn/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/custom_class.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/nn/parameter.h"
#include "colossal/nn/recompute.h"
#include "colossal/ops/gradient_sum.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/read_scope.h"
#include "colossal/tensor/whole_operator.h"

namespace colossal::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Stores a function in the saved data of an autograd node, which holds IValues.
struct UnaryCapsule : torch::CustomClassHolder {
  explicit UnaryCapsule(Unary function) : function(std::move(function)) {}
  Unary function;
};

c10::IValue capsule_of(Unary function) {
  return c10::IValue::make_capsule(c10::make_intrusive<UnaryCapsule>(std::move(function)));
}
const Unary& unary_of(const c10::IValue& capsule) {
  return static_cast<const UnaryCapsule*>(capsule.toCapsule().get())->function;
}

/// Returns x as a matrix whose rows may have gaps between them.
at::Tensor rows_of(const at::Tensor& x) {
  const at::Tensor rows = x.dim() == 1 ? x.unsqueeze(0) : x.flatten(0, -2);
  return rows.stride(-1) == 1 || rows.size(-1) == 1 ? rows : rows.contiguous();
}

/// Returns `rows` [T', features] with the leading sizes of `x` [B, .., _]. If a product gathered or scattered tokens,
/// T' differs from the T rows of x, and dimension 0 takes the difference.
at::Tensor with_leading_sizes_of(const at::Tensor& x, const at::Tensor& rows) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = rows.size(-1);
  int64_t behind = 1;  // rows per index of dimension 0; x may have no rows on a rank that gathers the rows of others
  for (size_t dim = 1; dim + 1 < sizes.size(); ++dim) behind *= sizes[dim];
  if (sizes.size() > 1 && behind > 0) sizes.front() = rows.size(0) / behind;
  return rows.view(sizes);
}

/// Index of the first saved tensor that the product keeps for itself. The four before it are x and weight as the
/// product reads them, the weight itself, and the input of `before`.
constexpr int kOwnTensors = 4;

/// Returns true if a parameter of the product requires a gradient. forward() has set "own" and "first_own".
bool wants_own_of(AutogradContext& context) {
  const int64_t first = context.saved_data["first_own"].toInt(), count = context.saved_data["own"].toInt();
  for (int64_t i = first; i < first + count; ++i)
    if (context.needs_input_grad(static_cast<size_t>(i))) return true;
  return false;
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::TensorList own, int64_t product, int64_t out,
                            int64_t deferred, const std::optional<c10::IValue>& before, bool keeps) {
    const auto& multiply = *reinterpret_cast<const Product*>(product);
    const tensor::ReadScope read({multiply.reads_weight(keeps) ? weight : at::Tensor(), bias.value_or(at::Tensor())});
    Product::Saved saved;
    // Contiguous, because a kept view would keep the larger tensor alive that it is a part of.
    const at::Tensor input = before ? unary_of(*before)(x) : x, rows = rows_of(input).contiguous();
    const at::Tensor y = multiply.forward(rows, weight, bias.value_or(at::Tensor()), out, keeps ? &saved : nullptr);
    if (!keeps) return with_leading_sizes_of(input, y);
    // The output of `before` is computed again from x, unless the product keeps another tensor, such as gathered rows.
    const bool forgets = before && (saved.x.is_same(rows) || saved.takes_given_x);
    // For a frozen weight, without parameters of the product's own, backward makes only dx, which needs only the
    // weight.
    const bool uses_x = weight.requires_grad() || !own.empty();
    variable_list kept{forgets || !uses_x ? at::Tensor() : saved.x, saved.weight, weight, before ? x : at::Tensor()};
    kept.insert(kept.end(), saved.own.begin(), saved.own.end());
    context->save_for_backward(std::move(kept));
    if (before) context->saved_data["before"] = *before;
    context->saved_data["product"] = product;
    context->saved_data["out"] = out;
    context->saved_data["deferred"] = deferred;
    context->saved_data["bias"] = bias.has_value() && bias->requires_grad();
    context->saved_data["own"] = static_cast<int64_t>(own.size());
    context->saved_data["first_own"] = int64_t{bias.has_value() ? 3 : 2};  // index among the inputs of autograd
    return with_leading_sizes_of(input, y);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto* product = reinterpret_cast<const Product*>(context->saved_data["product"].toInt());
    auto* deferred = reinterpret_cast<DeferredGradients*>(context->saved_data["deferred"].toInt());
    const int64_t out = context->saved_data["out"].toInt();
    const Unary before = saved[3].defined() ? unary_of(context->saved_data["before"]) : Unary();
    const at::Tensor dy = rows_of(gradients[0]);
    const bool wants_x = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1);
    const bool defers = wants_weight && deferred && deferred->active(), wants_own = wants_own_of(*context);
    at::Tensor source, input;  // connected by autograd if `before` is given
    const bool uses_x = wants_weight || wants_own;
    if (before && (wants_x || (uses_x && !saved[0].defined()))) {
      const at::AutoGradMode again(wants_x);
      source = saved[3].detach().requires_grad_(wants_x);
      input = before(source);
    }
    const at::Tensor x = saved[0].defined() || !uses_x ? saved[0] : rows_of(input.detach());
    const at::Tensor sum = defers ? at::Tensor() : ops::gradient_sum(saved[2]);
    const tensor::ReadScope read({saved[1]});
    const variable_list own(saved.begin() + kOwnTensors, saved.end());
    const auto d = product->backward(dy, {x, saved[1], out, own}, {wants_x, wants_weight && !defers, sum, wants_own});
    if (defers) put_off(*deferred, product, dy, {saved[0], {}, out, own}, before, saved[3], saved[2]);
    at::Tensor dx = d.x.defined() ? with_leading_sizes_of(gradients[0], d.x) : at::Tensor();
    if (before && wants_x) {
      torch::autograd::backward({input}, {dx});
      dx = source.grad();
    }
    const at::Tensor none;
    const at::Tensor dbias = context->saved_data["bias"].toBool() ? ops::column_sums(dy) : none;
    variable_list all{dx, sum.defined() ? none : d.weight, dbias};
    all.insert(all.end(), d.own.begin(), d.own.end());
    all.resize(3 + context->saved_data["own"].toInt() + 5);  // the other arguments have no gradients
    return all;
  }

  /// Defers the weight gradient. The task passes it from the weight on as backward would have: through the operations
  /// that made the weight, to its leaf.
  static void put_off(DeferredGradients& deferred, const Product* product, const at::Tensor& dy,
                      const Product::Saved& saved, const Unary& before, const at::Tensor& source,
                      const at::Tensor& weight) {
    deferred.add([=] {
      at::Tensor gradient, sum;
      {
        const at::NoGradGuard no_grad;
        Product::Saved kept = saved;
        if (!kept.x.defined()) kept.x = rows_of(before(source));
        sum = ops::gradient_sum(weight);
        gradient = product->backward(dy, kept, {.x = false, .weight = true, .sum = sum}).weight;
      }
      if (!sum.defined()) return torch::autograd::backward({weight}, {gradient});
      if (const auto& hook = torch::autograd::impl::post_acc_grad_hooks(weight)) (*hook)(weight);
    });
  }
};

/// The state of a node besides its saved tensors. It holds the tensors of the product, which the node does not, because
/// their number depends on the product; they have no graph of their own.
struct GroupState : torch::CustomClassHolder {
  const GroupedProduct* product = nullptr;
  ops::GroupEnds ends;
  DeferredGradients* deferred = nullptr;
  Unary before;
  GroupedProduct::Saved saved;
  bool has_bias_gradient = false;
};

/// Adds the weight gradient to a queue. The task passes it on as backward would have.
void put_off_group(const c10::intrusive_ptr<GroupState>& state, const at::Tensor& dy, const at::Tensor& x,
                   const at::Tensor& source, const at::Tensor& weight) {
  state->deferred->add([=] {
    at::Tensor gradient, sum;
    {
      const at::NoGradGuard no_grad;
      GroupedProduct::Saved saved = state->saved;
      saved.x = x.defined() || !state->before ? x : state->before(source).contiguous();
      saved.weight = weight;
      sum = ops::gradient_sum(weight);
      gradient = state->product->weight_gradient(dy, saved, state->ends, sum);
    }
    if (!sum.defined()) return torch::autograd::backward({weight}, {gradient});
    if (const auto& hook = torch::autograd::impl::post_acc_grad_hooks(weight)) (*hook)(weight);
  });
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::TensorList own,
                            const c10::intrusive_ptr<GroupState>& state, bool keeps) {
    // One scope for whole stacks: the order in which chunks are read does not depend on routing.
    variable_list stacks{weight, bias.value_or(at::Tensor())};
    stacks.insert(stacks.end(), own.begin(), own.end());
    const tensor::ReadScope read{at::TensorList(stacks)};
    const Unary& before = state->before;
    const at::Tensor rows = (before ? before(x) : x).contiguous();
    GroupedProduct::Saved saved;
    const at::Tensor y =
        state->product->forward(rows, weight, bias.value_or(at::Tensor()), state->ends, keeps ? &saved : nullptr);
    if (!keeps) return y;
    // The output of `before` is computed again from x, unless the product keeps its own form of it.
    const bool forgets = before || (!weight.requires_grad() && own.empty());
    context->save_for_backward({forgets ? at::Tensor() : saved.x, weight, before ? x : at::Tensor()});
    saved.x = saved.weight = at::Tensor();
    state->saved = std::move(saved);
    state->has_bias_gradient = bias.has_value() && bias->requires_grad();
    context->saved_data["state"] = c10::IValue::make_capsule(state);
    context->saved_data["own"] = static_cast<int64_t>(own.size());
    context->saved_data["first_own"] = int64_t{bias.has_value() ? 3 : 2};  // index among the inputs of autograd
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto held = context->get_saved_variables();
    const auto state = c10::static_intrusive_pointer_cast<GroupState>(context->saved_data["state"].toCapsule());
    const at::Tensor &weight = held[1], dy = gradients[0].contiguous();
    const bool wants_x = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1);
    const bool defers = wants_weight && state->deferred && state->deferred->active();
    const bool wants_own = wants_own_of(*context);
    at::Tensor source, input;  // connected by autograd if `before` is given
    if (state->before && (wants_x || wants_weight || wants_own)) {
      const at::AutoGradMode again(wants_x);
      source = held[2].detach().requires_grad_(wants_x);
      input = state->before(source);
    }
    GroupedProduct::Saved saved = state->saved;
    saved.x = held[0].defined() || !input.defined() ? held[0] : input.detach().contiguous();
    saved.weight = weight;
    at::Tensor dx, dweight, sum;
    variable_list of_own;
    {
      variable_list stacks{weight};
      for (const Parameter* parameter : state->product->parameters()) stacks.push_back(parameter->value);
      const tensor::ReadScope read{at::TensorList(stacks)};
      if (wants_x) dx = state->product->input_gradient(dy, saved, state->ends);
      if (defers) {
        put_off_group(state, dy, held[0], held[2], weight);
      } else if (wants_weight) {
        sum = ops::gradient_sum(weight);
        dweight = state->product->weight_gradient(dy, saved, state->ends, sum);
      }
      if (wants_own) of_own = state->product->own_gradients(dy, saved, state->ends);
    }
    if (state->before && wants_x) {
      torch::autograd::backward({input}, {dx});
      dx = source.grad();
    }
    const at::Tensor none;
    const at::Tensor dbias = state->has_bias_gradient ? ops::grouped_sums(dy, state->ends) : none;
    variable_list all{dx, sum.defined() ? none : dweight, dbias};
    all.insert(all.end(), of_own.begin(), of_own.end());
    all.resize(3 + context->saved_data["own"].toInt() + 2);  // the other arguments have no gradients
    return all;
  }
};

}  // namespace

at::Tensor linear(const Product& product, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  int64_t out, DeferredGradients* deferred, const Unary& before, std::vector<at::Tensor> own) {
  if (own.empty())
    for (const Parameter* parameter : product.parameters()) own.push_back(parameter->value);
  const auto wants = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  const bool keeps = at::GradMode::is_enabled() &&
                     (wants(x) || wants(weight) || wants(bias) || std::any_of(own.begin(), own.end(), wants));
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder()) {
    // Any other product may communicate. One recorded without gradients keeps nothing for later.
    const char* dims = &product == &serial_product() && own.empty() ? "...I,OX,O->...O" : "";
    return recorder->record({"linear", dims, {x, weight, bias}, [&product, own, out, before](const auto& in) {
                               return linear(product, in[0], in[1], in[2], out, nullptr, before, own);
                             }});
  }
  // A Function does not accept an undefined tensor as an argument, but accepts an absent optional.
  return tensor::apply_function<Linear>(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt,
                                        at::TensorList(own), reinterpret_cast<int64_t>(&product), out,
                                        reinterpret_cast<int64_t>(deferred),
                                        before ? std::optional<c10::IValue>(capsule_of(before)) : std::nullopt, keeps);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, DeferredGradients* deferred,
                  const Unary& before, const Product& product) {
  require(weight.dim() == 2 && x.dim() > 0 && (before || x.size(-1) == weight.size(1)), "linear",
          "input must be [..., ", weight.dim() == 2 ? weight.size(1) : -1, "] for weight ", weight.sizes(), ": got ",
          x.sizes());
  require(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)), "linear", "bias must be [",
          weight.size(0), "]: got ", bias.defined() ? bias.sizes() : at::IntArrayRef());
  return linear(product, x, weight, bias, weight.size(0), deferred, before);
}

at::Tensor grouped_linear(const GroupedProduct& product, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias, const ops::GroupEnds& ends, DeferredGradients* deferred,
                          const Unary& before) {
  const auto wants = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  variable_list own;
  for (const Parameter* parameter : product.parameters()) own.push_back(parameter->value);
  const bool keeps = at::GradMode::is_enabled() &&
                     (wants(x) || wants(weight) || wants(bias) || std::any_of(own.begin(), own.end(), wants));
  const auto state = c10::make_intrusive<GroupState>();
  state->product = &product, state->ends = ends, state->deferred = deferred, state->before = before;
  const auto given = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  return tensor::apply_function<GroupedLinear>(x, weight, given, at::TensorList(own), state, keeps);
}

}  // namespace colossal::nn
