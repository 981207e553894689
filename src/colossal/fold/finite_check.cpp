#include "colossal/fold/finite_check.h"

#include <ATen/ATen.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::fold {
namespace {

/// What the operators of one part of the model gave so far.
struct PartNumbers {
  std::string part = "embedding", first_nan, first_infinity, found;
  bool is_looking = false;  // true: the look itself runs operators

  void begin(std::string name) {
    part = std::move(name);
    first_nan.clear(), first_infinity.clear();
  }
  void end(bool is_finite) {
    if (is_finite || !found.empty()) return;
    const std::string& one = first_nan.empty() ? first_infinity : first_nan;
    found = one.empty() ? part : concat(one, " in ", part);
  }
  bool are_finite(const at::Tensor& x) {
    if (!x.defined() || !x.is_floating_point() || x.is_meta()) return true;
    is_looking = true;
    const bool finite = x.isfinite().all().item<bool>();
    is_looking = false;
    return finite;
  }
  bool have_nan(const at::Tensor& x) {
    is_looking = true;
    const bool nan = x.isnan().any().item<bool>();
    is_looking = false;
    return nan;
  }
};

PartNumbers*& watched() {
  thread_local PartNumbers* numbers = nullptr;
  return numbers;
}

template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) visit(value.toTensor());
  if (value.isTensorList())
    for (const at::Tensor& one : value.toTensorVector()) visit(one);
}

/// Returns true if the results of the operator are new numbers: no views, no memory that nobody has written.
bool makes_numbers(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  for (const char* start : {"aten::empty", "aten::new_empty", "aten::resize", "aten::detach", "aten::alias"})
    if (name.starts_with(start)) return false;
  const auto schema = function.operator_schema();
  if (!schema) return false;
  const auto& results = schema->returns();
  return std::none_of(results.begin(), results.end(),
                      [](const c10::Argument& one) { return one.alias_info() && !one.alias_info()->isWrite(); });
}

std::unique_ptr<at::ObserverContext> no_context(const at::RecordFunction&) { return nullptr; }

void look_at(const at::RecordFunction& function, at::ObserverContext*) {
  PartNumbers* const numbers = watched();
  if (!numbers || numbers->is_looking || !numbers->first_nan.empty() || !makes_numbers(function)) return;
  for (const c10::IValue& output : function.outputs())
    for_each_tensor(output, [&](const at::Tensor& x) {
      if (numbers->are_finite(x)) return;
      if (numbers->first_nan.empty() && numbers->have_nan(x)) numbers->first_nan = function.name();
      if (numbers->first_infinity.empty()) numbers->first_infinity = function.name();
    });
}

}  // namespace

struct FiniteCheck::State {
  explicit State(models::Model& model) : model(model), embed(model.embed), blocks(model.blocks), norm(model.norm) {}

  /// Returns the function of a part, which then tells where it is.
  auto watching(const models::Block::OfStates& run, std::string part, std::string next) {
    return [this, run, part = std::move(part), next = std::move(next)](models::States& states,
                                                                       const nn::ForwardContext& step) {
      numbers.begin(part);
      run(states, step);
      look(states);
      numbers.begin(next);
    };
  }
  void look(const models::States& states) {
    numbers.end(std::all_of(states.begin(), states.end(), [&](const at::Tensor& x) { return numbers.are_finite(x); }));
  }

  models::Model& model;
  models::Embed embed;  // those of the model itself
  std::vector<models::Block> blocks;
  models::Block norm;
  PartNumbers numbers;
  at::CallbackHandle callback = 0;
};

FiniteCheck::FiniteCheck(models::Model& model) : state_(std::make_unique<State>(model)) {
  State& s = *state_;
  require(watched() == nullptr, "fold", "a thread may have one FiniteCheck: got a second one");
  if (model.embed)
    model.embed.run = [&s, run = s.embed.run](models::States& states, const tensor::Batch& batch,
                                              const nn::ForwardContext& step) {
      s.numbers.begin("embedding");
      run(states, batch, step);
      s.look(states);
    };
  for (size_t i = 0; i < model.blocks.size(); ++i)
    if (model.blocks[i]) model.blocks[i].run = s.watching(s.blocks[i].run, concat("blocks.", i), "the end");
  if (model.norm) model.norm.run = s.watching(s.norm.run, "norm", "the loss");
  watched() = &s.numbers;
  s.callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback(no_context, look_at).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
}

FiniteCheck::~FiniteCheck() {
  at::removeCallback(state_->callback);
  watched() = nullptr;
  state_->model.embed = std::move(state_->embed);
  state_->model.blocks = std::move(state_->blocks);
  state_->model.norm = std::move(state_->norm);
}

const std::string& FiniteCheck::found() const {
  PartNumbers& numbers = state_->numbers;
  const bool is_finite = numbers.first_nan.empty() && numbers.first_infinity.empty();
  if (numbers.part == "the loss" && !is_finite) numbers.end(false);
  return numbers.found;
}

}  // namespace colossal::fold
