#include "colossal/trace/tracer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/trace/heard_call.h"
#include "colossal/trace/meta_results.h"
#include "colossal/trace/operator_nodes.h"

namespace colossal::trace {
namespace {

/// Numbers of C++ that became tensors do not decide the dtype of results.
void keep_promotion(const at::Tensor& from, const at::Tensor& to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) to.unsafeGetTensorImpl()->set_wrapped_number(true);
}

at::Tensor stand_in_of(const at::Tensor& tensor) {
  at::Tensor made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  keep_promotion(tensor, made);
  return made;
}

void set_devices(std::vector<c10::IValue>& arguments, bool only_meta, at::Device device) {
  for (c10::IValue& argument : arguments)
    if (argument.isDevice() && (!only_meta || argument.toDevice().is_meta())) argument = device;
}

int written_argument(const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema().arguments();
  for (size_t i = 0; i < schema.size(); ++i)
    if (schema[i].alias_info() != nullptr && schema[i].alias_info()->isWrite()) return static_cast<int>(i);
  return -1;
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() && a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

const std::unordered_set<std::string>& splitting_names() {
  static const std::unordered_set<std::string> names{"aten::split.Tensor", "aten::split_with_sizes",
                                                     "aten::unbind.int"};
  return names;
}

bool draws_dropout(const HeardCall& call) {
  const std::string name = call.name();
  return (name == "aten::dropout" || name == "aten::dropout_") && call.flag("train") &&
         call.argument("p").toDouble() > 0;
}

bool is_composite(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

}  // namespace

Tracer::Tracer(ModuleOnMeta& module, const std::vector<at::Tensor>& inputs) : module_(module), home_(module.device()) {
  for (const auto& [name, parameter] : module.parameters())
    track(parameter, recorder_.add_parameter(name, parameter, parameter.requires_grad()));
  for (const auto& [name, buffer] : module.buffers())
    if (buffer.is_meta()) constant_node(buffer);
  for (size_t i = 0; i < inputs.size(); ++i) add_input(i, inputs[i], inputs[0]);
}

Tracer::Tracer(ModuleOnMeta& none, const std::vector<at::Tensor>& inputs, const std::vector<Captured>& captured)
    : module_(none), home_(at::kCPU), gradients_(false) {
  std::vector<at::Tensor> placed = inputs;
  for (const auto& [name, value] : captured) placed.push_back(value);
  const auto found = std::find_if(placed.begin(), placed.end(), [](const at::Tensor& t) { return !t.is_meta(); });
  if (found != placed.end()) home_ = found->device();
  for (const auto& [name, value] : captured) {
    c10::TensorImpl* own = value.unsafeGetTensorImpl();
    if (!captured_.insert(own).second) continue;  // shared by two layers
    const plan::Source source = recorder_.add_parameter(name, value, false);
    const at::Tensor made = value.is_meta() ? value : stand_in_of(value);
    track(made, source);
    if (!value.is_meta()) constants_[own] = {value, made, static_cast<int64_t>(value._version())};
  }
  for (size_t i = 0; i < inputs.size(); ++i) add_input(i, inputs[i], inputs[0]);
}

void Tracer::add_input(size_t index, const at::Tensor& input, const at::Tensor& first) {
  const at::Tensor made = stand_in_of(input);
  plan::Node node{.name = "input_" + std::to_string(index), .op = "input", .output = type_of(made)};
  node.whole = made.dim() == 0 || first.dim() == 0 || made.size(0) != first.size(0);
  TracedOperator run;
  run.input = static_cast<int>(index);
  track(made, recorder_.add(std::move(node), std::move(run), {}, false));
  inputs_.push_back(made);
}

bool Tracer::is_heard(const at::Tensor& tensor) const {
  return tensor.is_meta() || find(tensor) || captured_.count(tensor.unsafeGetTensorImpl()) > 0;
}

std::shared_ptr<Tracer::Tracked> Tracer::find(const at::Tensor& tensor) const {
  const auto found = tracked_.find(tensor.unsafeGetTensorImpl());
  return found == tracked_.end() ? nullptr : found->second;
}

std::shared_ptr<Tracer::Tracked> Tracer::track(const at::Tensor& tensor, plan::Source source) {
  auto tracked = std::make_shared<Tracked>();
  tracked->held = tensor;
  tracked->source = source;
  tracked_[tensor.unsafeGetTensorImpl()] = tracked;
  return tracked;
}

plan::Source Tracer::refresh(Tracked& tracked) {
  const Tracked* root = &tracked;
  while (root->base) root = root->base.get();
  if (tracked.base && tracked.version != root->version) {
    tracked.source = emit(*tracked.made, tracked.held, 0, calls_++);
    tracked.version = root->version;
  }
  return tracked.source;
}

plan::Source Tracer::source_of(const at::Tensor& tensor) { return refresh(*find(on_meta(tensor))); }

at::Tensor Tracer::constant_node(const at::Tensor& value) {
  plan::Node node{.op = "constant", .output = type_of(value)};
  TracedOperator run;
  for (const auto& [name, buffer] : module_.buffers()) {
    if (buffer.unsafeGetTensorImpl() != value.unsafeGetTensorImpl()) continue;
    node.name = name;
    run.constant = buffer;
  }
  if (!run.constant.defined()) {
    run.constant = value.detach().clone();
    keep_promotion(value, run.constant);
  }
  const plan::Source source = recorder_.add(std::move(node), std::move(run), {}, false);
  at::Tensor made = value.is_meta() ? value : stand_in_of(value);
  track(made, source);
  return made;
}

at::Tensor Tracer::on_meta(const at::Tensor& tensor) {
  if (find(tensor)) return tensor;
  require(!tensor.is_meta(), "trace", "every tensor of the pass must come from an operator: got one of shape ",
          plan::print_shape(tensor.sizes().vec()), " after ", recorder_.last_module(),
          " that none returned; use detach() in place of data(), and capture what a function reads beside its inputs");
  require(changed_constants_.count(tensor.unsafeGetTensorImpl()) == 0, "trace",
          "the pass must not read a buffer that it changes: got one of shape ", plan::print_shape(tensor.sizes().vec()),
          " after ", recorder_.last_module(), "; change it outside of the loss");
  require(!tensor.has_storage() || unset_.count(tensor.storage().unsafeGetStorageImpl()) == 0, "trace",
          "a function must not read memory that it did not fill: got a tensor of shape ",
          plan::print_shape(tensor.sizes().vec()), " after ", recorder_.last_module(),
          "; an operator with a result of its own on meta must announce itself (tensor/whole_operator.h)");
  const int64_t version = tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
  const auto found = constants_.find(tensor.unsafeGetTensorImpl());
  if (found != constants_.end() && found->second.version == version) return found->second.stand_in;
  at::Tensor made = constant_node(tensor);
  constants_[tensor.unsafeGetTensorImpl()] = {tensor, made, version};
  return made;
}

void Tracer::hear(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t count = handle.schema().arguments().size();
  HeardCall call{handle, Results(stack->end() - static_cast<int64_t>(count), stack->end())};
  std::optional<Results> results;
  {
    const c10::impl::ExcludeDispatchKeyGuard unheard(kTraceKey);
    bool any_tracked = false;
    each_tensor(call.arguments, [&](int, int, const at::Tensor& tensor) {
      check_gradient(call, tensor);
      any_tracked = any_tracked || is_heard(tensor);
    });
    if (draws_dropout(call)) any_tracked = true;  // of constants too: each step draws again
    if (!any_tracked) {
      results = hear_constants(call);
    } else {
      check_values(call);
      if (call.name() == "aten::scaled_dot_product_attention" && call.argument("dropout_p").toDouble() > 0) {
        call = {operator_named("aten::_scaled_dot_product_attention_math"), call.arguments};
        call.arguments.insert(call.arguments.begin() + 6, c10::IValue());  // the mask of the dropout
      } else {
        check_random(call);
      }
      const std::string base = handle.operator_name().name;
      const bool changes = written_argument(handle) >= 0;
      const bool known = find_row(changes ? base.substr(0, base.size() - 1) : call.name()) != nullptr;
      if (known || !is_composite(call.handle)) results = hear_tracked(call);
    }
  }
  torch::jit::drop(*stack, count);
  if (!results) {  // its parts are heard one by one
    torch::jit::Stack inner(call.arguments.begin(), call.arguments.end());
    if (call.name() == full_name(handle))
      handle.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kTraceKey), &inner);
    else
      call.handle.callBoxed(inner);
    results = Results(inner.begin(), inner.end());
    bool all_heard = true;
    for (const at::Tensor& tensor : tensors_of(*results)) all_heard = all_heard && (!tensor.is_meta() || find(tensor));
    const c10::impl::ExcludeDispatchKeyGuard unheard(kTraceKey);
    if (!all_heard) note(call, *results);
  }
  const size_t returned = handle.schema().returns().size();
  stack->insert(stack->end(), results->begin(), results->begin() + static_cast<int64_t>(returned));
}

Tracer::Results Tracer::hear_constants(HeardCall call) {
  check_random(call);
  bool reads_changed = false;
  each_tensor(call.arguments, [&](int, int, const at::Tensor& tensor) {
    reads_changed = reads_changed || changed_constants_.count(tensor.unsafeGetTensorImpl()) > 0;
  });
  if (reads_changed) check_values(call);
  set_devices(call.arguments, /*only_meta=*/true, home_);
  const int written = written_argument(call.handle);
  if (written >= 0 && call.arguments[written].isTensor()) {
    const at::Tensor& self = call.arguments[written].toTensor();
    if (self.has_storage()) unset_.erase(self.storage().unsafeGetStorageImpl());
    for (const auto& [name, buffer] : module_.buffers())
      if (share_memory(buffer, self)) changed_constants_[buffer.unsafeGetTensorImpl()] = buffer;
  }
  torch::jit::Stack stack(call.arguments.begin(), call.arguments.end());
  call.handle.callBoxed(stack);
  Results results(stack.begin(), stack.end());
  static const std::unordered_set<std::string> unfilled{"aten::empty", "aten::empty_like", "aten::empty_strided",
                                                        "aten::new_empty"};
  if (!gradients_ && unfilled.count(call.handle.operator_name().name) > 0)
    for (const at::Tensor& tensor : tensors_of(results))
      if (tensor.has_storage() && tensor.numel() > 0) unset_[tensor.storage().unsafeGetStorageImpl()] = tensor;
  if (reads_changed)
    for (const at::Tensor& tensor : tensors_of(results)) changed_constants_[tensor.unsafeGetTensorImpl()] = tensor;
  return results;
}

Tracer::Results Tracer::hear_tracked(HeardCall call) {
  const std::string name = call.name();
  if ((name == "aten::dropout" || name == "aten::dropout_") && !draws_dropout(call)) return {call.self()};
  const int written = written_argument(call.handle);
  if (written >= 0) return change(call, written);
  const bool has_statistics = name == "aten::batch_norm" && note_statistics(call);
  Results results = record(std::move(call));
  if (has_statistics) statistics_.back().node = find(results[0].toTensor())->source.index;
  return results;
}

Tracer::Results Tracer::record(HeardCall call) {
  each_tensor(HeardCall(call).arguments, [&](int argument, int element, const at::Tensor& tensor) {
    put_tensor(call.arguments, argument, element, on_meta(tensor));
  });
  set_devices(call.arguments, /*only_meta=*/false, at::kMeta);
  call = joined_linear(std::move(call));
  const std::string name = call.name();
  if (name == "aten::view" || name == "aten::_unsafe_view") call.handle = operator_named("aten::reshape");
  const OperatorRow* row = find_row(call.name());
  Results results;
  if (row != nullptr && row->result != nullptr) {
    results = {row->result(call)};
  } else {
    try {
      results = run_unheard(call);
    } catch (const c10::NotImplementedError&) {
      results = results_of_zeros(call);
    }
  }
  if (splitting_names().count(name) > 0) return split(call, results);
  note(call, results);
  return results;
}

Tracer::Results Tracer::split(const HeardCall& call, const Results& results) {
  const int64_t dim = positive_dim(call.argument("dim").toInt(), call.self().dim());
  const bool removes = call.name() == "aten::unbind.int";
  int64_t start = 0;
  for (const at::Tensor& part : tensors_of(results)) {
    const int64_t end = start + (removes ? 1 : part.size(dim));
    HeardCall one = removes
                        ? HeardCall{operator_named("aten::select.int"), {call.self(), dim, start}}
                        : HeardCall{operator_named("aten::slice.Tensor"), {call.self(), dim, start, end, int64_t{1}}};
    note(one, {part});
    start = end;
  }
  return results;
}

void Tracer::note(const HeardCall& call, const Results& results) {
  const int number = calls_++;
  int index = -1;
  for (const at::Tensor& result : tensors_of(results)) {
    ++index;
    std::shared_ptr<Tracked> base;
    bool is_argument = false;
    each_tensor(call.arguments, [&](int, int, const at::Tensor& tensor) {
      is_argument = is_argument || tensor.is_same(result);
      if (!base && share_memory(tensor, result)) base = find(tensor);
    });
    if (is_argument) continue;
    const auto tracked = track(result, emit(call, result, index, number));
    if (base) {
      const Tracked* root = base.get();
      while (root->base) root = root->base.get();
      tracked->base = base;
      tracked->made = call;
      tracked->version = root->version;
    }
    if (recorder_.trains(tracked->source)) result.set_requires_grad(true);
  }
}

plan::Source Tracer::emit(const HeardCall& call, const at::Tensor& result, int index, int number) {
  const OperatorRow* row = find_row(call.name());
  plan::Node node{.op = row != nullptr ? row->op : call.name(), .output = type_of(result)};
  if (row != nullptr && row->describe != nullptr) row->describe(call, node);
  TracedOperator run;
  run.handle = call.handle;
  run.arguments = call.arguments;
  run.result = index;
  run.call = number;
  set_devices(run.arguments, /*only_meta=*/true, home_);
  std::vector<plan::Source> operands;
  bool trains = false;
  each_tensor(call.arguments, [&](int argument, int element, const at::Tensor& tensor) {
    TracedOperator::Place place{argument, element, static_cast<int>(operands.size()), source_of(tensor)};
    if (share_memory(tensor, result)) run.shares = place.operand;
    put_tensor(run.arguments, argument, element, {});
    trains = trains || recorder_.trains(place.source);
    operands.push_back(place.source);
    run.places.push_back(place);
  });
  if (node.op == "embedding") {  // the plan has the ids first
    std::swap(operands[0], operands[1]);
    std::swap(run.places[0].operand, run.places[1].operand);  // neither has the result's memory
  }
  const bool stops = node.op == "detach" || (node.op == "fill" && call.name() != "aten::fill.Tensor");
  trains = trains && at::isFloatingType(result.scalar_type()) && !stops;
  const plan::TensorType type = node.output;
  const plan::Source source = recorder_.add(std::move(node), std::move(run), std::move(operands), trains);
  return trains && !c10::GradMode::is_enabled() ? detached(source, type) : source;
}

plan::Source Tracer::detached(plan::Source source, const plan::TensorType& type) {
  TracedOperator run;
  run.handle = operator_named("aten::detach");
  run.arguments = {c10::IValue()};
  run.places = {{0, -1, 0, source}};
  run.call = calls_++;
  return recorder_.add({.op = "detach", .output = type}, std::move(run), {source}, false);
}

at::Tensor Tracer::record_one(const char* name, std::vector<c10::IValue> arguments) {
  return record({operator_named(name), std::move(arguments)}).at(0).toTensor();
}

bool Tracer::note_statistics(HeardCall& call) {
  const at::Tensor mean = call.tensor("running_mean"), variance = call.tensor("running_var");
  if (!call.flag("training") || !mean.defined()) return false;
  TracedModule::Statistics made{.mean = mean, .variance = variance};
  made.momentum = call.argument("momentum").toDouble();
  std::string path;
  for (const auto& [name, buffer] : module_.buffers())
    if (buffer.is_same(mean)) path = name;
  if (path.empty()) refuse(call, "statistics of batch norm must be buffers of the module", "register running_mean");
  path = path.substr(0, path.rfind('.') == std::string::npos ? 0 : path.rfind('.') + 1) + "num_batches_tracked";
  for (const auto& [name, buffer] : module_.buffers())
    if (name == path) made.batches = buffer;
  for (const char* argument : {"running_mean", "running_var"}) call.arguments[call.index_of(argument)] = c10::IValue();
  statistics_.push_back(std::move(made));
  return true;
}

HeardCall Tracer::joined_linear(HeardCall call) const {
  const std::string name = call.name();
  const bool adds = name == "aten::addmm";
  if (!adds && name != "aten::mm" && name != "aten::matmul") return call;
  const size_t first = adds ? 1 : 0;
  const auto weight = find(call.arguments[first + 1].toTensor());
  if (!weight || !weight->base || weight->held.dim() != 2 || weight->base->held.dim() != 2) return call;
  const std::string made = weight->made->name();
  if (made != "aten::t" && made != "aten::transpose.int") return call;
  if (made == "aten::transpose.int" && weight->made->argument("dim0").toInt() == weight->made->argument("dim1").toInt())
    return call;
  c10::IValue bias;
  if (adds) {
    if (call.self().dim() != 1 || call.argument("beta").toScalar().toDouble() != 1 ||
        call.argument("alpha").toScalar().toDouble() != 1 || call.self().size(0) != weight->held.size(1))
      return call;
    bias = call.arguments[0];
  }
  return {operator_named("aten::linear"), {call.arguments[first], weight->base->held, bias}};
}

at::Tensor Tracer::record(tensor::WholeOperator made) {
  const c10::impl::ExcludeDispatchKeyGuard unheard(kTraceKey);
  const tensor::RecorderScope alone(nullptr);
  bool any_heard = false;
  for (const at::Tensor& operand : made.operands) any_heard = any_heard || (operand.defined() && is_heard(operand));
  if (!any_heard) return made.run(made.operands);
  plan::Node node{.op = std::string("colossal::") + made.name};
  TracedOperator run;
  run.arguments.resize(made.operands.size());
  run.call = calls_++;
  std::vector<plan::Source> operands;
  for (size_t i = 0; i < made.operands.size(); ++i) {
    at::Tensor& operand = made.operands[i];
    if (!operand.defined()) continue;
    operand = on_meta(operand);
    operands.push_back(source_of(operand));
    run.places.push_back({static_cast<int>(i), -1, static_cast<int>(operands.size()) - 1, operands.back()});
  }
  const at::Tensor result = made.run(made.operands);
  node.output = type_of(result);
  run.whole = std::move(made.run);
  run.dims = std::move(made.dims);
  track(result, recorder_.add(std::move(node), std::move(run), std::move(operands), false));
  return result;
}

TracedModule Tracer::run(const Function& function) {
  const c10::AutoGradMode gradients(false);
  std::vector<at::Tensor> made;
  {
    const c10::impl::IncludeDispatchKeyGuard heard(kTraceKey);
    const tensor::RecorderScope recorder(this);
    made = function(inputs_);
  }
  std::vector<plan::Source> results;
  for (const at::Tensor& result : made) {
    plan::Source source = source_of(result);
    if (source.is_parameter) source = source_of(record_one("aten::clone", {result, c10::IValue()}));
    results.push_back(source);
  }
  require(!results.empty(), "trace", "the function must return a tensor: got none; return its results");
  return recorder_.finish(results, {});
}

TracedModule Tracer::run(const Loss& loss) {
  const c10::AutoGradMode gradients(true);
  at::Tensor made;
  {
    const c10::impl::IncludeDispatchKeyGuard heard(kTraceKey);
    made = loss(inputs_);
  }
  require(made.defined() && made.dim() == 0, "trace", "the loss must be a scalar: got ",
          made.defined() ? plan::print_shape(made.sizes().vec()) : "no tensor", "; take its mean or its sum");
  const auto found = find(made);
  plan::Source source = found ? refresh(*found) : plan::Source{};
  require(found && recorder_.trains(source), "trace",
          "the loss must depend on a parameter that trains: got one that reads ",
          found ? "none with requires_grad" : "constants only");
  if (source.is_parameter) source = source_of(record_one("aten::clone", {made, c10::IValue()}));
  return recorder_.finish({source}, std::move(statistics_));
}

}  // namespace colossal::trace
