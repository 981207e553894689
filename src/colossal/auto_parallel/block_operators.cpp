#include "colossal/auto_parallel/block_operators.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <map>
#include <string>

#include "colossal/auto_parallel/block_layers.h"
#include "colossal/base/error.h"
#include "colossal/comm/collectives.h"

namespace colossal::auto_parallel {
namespace {

/// The arguments of one call of an operator, with this rank's blocks in their places.
class OperatorCall {
 public:
  OperatorCall(const BlockRun& run, const std::vector<at::Tensor>& operands)
      : run_(run), arguments_(run.traced.arguments) {
    const std::vector<plan::Source>& sources = run.graph.operands[run.node];
    std::vector<bool> is_placed(sources.size(), false);
    for (const trace::TracedOperator::Place& place : run.traced.places) {
      size_t operand = 0;  // the first operand of this source that has no place yet
      while (operand < sources.size() && (is_placed[operand] || sources[operand] != place.source)) ++operand;
      require(operand < sources.size(), "auto_parallel", "each tensor argument must be an operand of its node: got ",
              run.graph.nodes[run.node].name);
      is_placed[operand] = true;
      put(place, operands[operand]);
    }
  }

  bool has(const std::string& name) const { return schema().argumentIndexWithName(name).has_value(); }
  const c10::IValue& get(const std::string& name) const { return arguments_[index_of(name)]; }
  void set(const std::string& name, c10::IValue value) { arguments_[index_of(name)] = std::move(value); }
  /// Returns a tensor argument; undefined if there is none.
  at::Tensor tensor(const std::string& name) const {
    return has(name) && get(name).isTensor() ? get(name).toTensor() : at::Tensor();
  }
  /// Returns a number; `missing` if the operator has no such argument.
  int64_t integer(const std::string& name, int64_t missing) const {
    return has(name) && get(name).isInt() ? get(name).toInt() : missing;
  }
  const at::Tensor& first() const { return arguments_[0].toTensor(); }

  /// Runs the operator and returns the result that the node is.
  at::Tensor run() const {
    std::vector<c10::IValue> stack = arguments_;
    run_.traced.handle->callBoxed(&stack);
    const auto result = static_cast<size_t>(run_.traced.result);
    if (stack.size() == 1 && stack[0].isTensorList()) return stack[0].toTensorVector().at(result);
    return stack.at(result).toTensor();
  }

 private:
  const c10::FunctionSchema& schema() const { return run_.traced.handle->schema(); }
  size_t index_of(const std::string& name) const {
    const auto index = schema().argumentIndexWithName(name);
    require(index.has_value(), "auto_parallel", "operator ", schema().name(), " must have the argument ", name,
            ": node ", run_.graph.nodes[run_.node].name);
    return static_cast<size_t>(*index);
  }
  void put(const trace::TracedOperator::Place& place, const at::Tensor& value) {
    c10::IValue& argument = arguments_.at(static_cast<size_t>(place.argument));
    if (place.element < 0) {
      argument = value;
      return;
    }
    const auto element = static_cast<size_t>(place.element);
    if (argument.isOptionalTensorList()) {
      auto list = argument.toOptionalTensorList().copy();
      list.set(element, value);
      argument = list;
      return;
    }
    std::vector<at::Tensor> list = argument.isTensorList() ? argument.toTensorVector() : std::vector<at::Tensor>{};
    if (list.size() <= element) list.resize(element + 1);
    list[element] = value;
    argument = list;
  }

  const BlockRun& run_;
  std::vector<c10::IValue> arguments_;
};

using Operands = std::vector<at::Tensor>;

/// Adds the partial sums of the ranks, and keeps this rank's part of sums that are scattered.
at::Tensor complete(const BlockRun& run, at::Tensor partial) {
  const NodeShare::Variant& scattered = run.share.scattered;
  for (const int axis : run.share.summed) {
    comm::Group& group = *run.groups.axes[axis];
    partial = axis == scattered.axis ? comm::reduce_scatter(partial, scattered.dim, group)
                                     : comm::reduce_from(partial, group);
  }
  return partial;
}

/// Forward: the bias on one of the ranks that have partial sums, zeros on the others. Backward: the gradient, which
/// each rank has whole.
struct BiasOnce : torch::autograd::Function<BiasOnce> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& bias, bool is_first) {
    return is_first ? bias.clone() : at::zeros_like(bias);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0], at::Tensor()};
  }
};

std::vector<int64_t> output_shape(const BlockRun& run) {
  return block_shape(run.graph.nodes[run.node].output.shape, run.strategy.output, run.groups.mesh);
}

at::Tensor run_plain(const BlockRun& run, const Operands& operands) {
  return complete(run, OperatorCall(run, operands).run());
}

at::Tensor run_reshape(const BlockRun& run, const Operands& operands) { return operands[0].reshape(output_shape(run)); }

at::Tensor run_expand(const BlockRun& run, const Operands& operands) { return operands[0].expand(output_shape(run)); }

at::Tensor run_dropout(const BlockRun& run, const Operands& operands) {
  const OperatorCall call(run, operands);
  if (call.has("train") && !call.get("train").toBool()) return operands[0];
  const std::vector<int64_t>& shape = run.graph.nodes[run.node].output.shape;
  return dropout_of_block(operands[0], call.get("p").toDouble(), run.seed, shape,
                          block_start(shape, run.strategy.output, run.groups));
}

/// Moves the running statistics of this rank's channels towards those of the step.
void update_running(const BlockRun& run, const NormedBlock& made) {
  const at::NoGradGuard no_grad;
  const plan::Spec channels{run.strategy.output[1]};
  const double momentum = run.statistics->momentum;
  const auto move = [&](const at::Tensor& whole, const at::Tensor& now) {
    if (!whole.defined()) return;
    at::Tensor block = block_of(whole, channels, run.groups);
    block.mul_(1 - momentum).add_(now.to(block.scalar_type()), momentum);
  };
  move(run.statistics->mean, made.mean);
  move(run.statistics->variance, made.variance);
}

at::Tensor run_batch_norm(const BlockRun& run, const Operands& operands) {
  const OperatorCall call(run, operands);
  std::vector<comm::Group*> groups;
  for (const int axis : run.share.statistics) groups.push_back(run.groups.axes[axis]);
  at::Tensor shift;
  if (run.statistics && run.statistics->mean.defined())
    shift = block_of(run.statistics->mean, {run.strategy.output[1]}, run.groups).clone();
  const NormedBlock made = batch_norm_of_block(call.first(), call.tensor("weight"), call.tensor("bias"), shift,
                                               call.get("eps").toDouble(), groups);
  if (run.statistics) update_running(run, made);
  return made.output;
}

/// Looks ids up in this rank's rows of the table. Other ids give zeros, which the other ranks' rows are added to.
at::Tensor run_embedding(const BlockRun& run, const Operands& operands) {
  if (run.share.summed.empty()) return run_plain(run, operands);
  OperatorCall call(run, operands);
  const at::Tensor &ids = operands[0], &table = operands[1];
  const std::vector<int64_t>& shape = run.graph.type_of(run.graph.operands[run.node][1]).shape;
  const int64_t first = block_start(shape, run.strategy.operands[1], run.groups)[0];
  const at::Tensor local = ids - first, is_other = local.lt(0).logical_or(local.ge(table.size(0)));
  const int64_t padding = call.integer("padding_idx", -1) - first;
  if (call.has("padding_idx")) call.set("padding_idx", padding >= 0 && padding < table.size(0) ? padding : int64_t{-1});
  call.set("indices", local.masked_fill(is_other, 0));
  return complete(run, call.run().masked_fill(is_other.unsqueeze(-1), 0));
}

/// Linear layers and convolutions. Where ranks have partial sums, one of them adds the bias. Scattered sums need it
/// before they are scattered: only then has every rank the whole gradient of the bias.
at::Tensor run_with_bias(const BlockRun& run, const Operands& operands) {
  OperatorCall call(run, operands);
  const bool is_convolution = run.graph.nodes[run.node].op != "linear";
  if (is_convolution)
    call.set("groups", call.get("groups").toInt() / (run.graph.nodes[run.node].groups > 1
                                                         ? plan::blocks_of(run.strategy.operands[1][0], run.groups.mesh)
                                                         : 1));
  const at::Tensor bias = call.tensor("bias");
  if (bias.defined() && !run.share.summed.empty()) {
    bool is_first = true;
    for (const int axis : run.share.summed) is_first = is_first && run.groups.axes[axis]->rank() == 0;
    call.set("bias", BiasOnce::apply(bias, is_first));
  }
  return complete(run, call.run());
}

at::Tensor run_mean(const BlockRun& run, const Operands& operands) {
  const at::Tensor own = OperatorCall(run, operands).run();
  if (run.share.summed.empty()) return own;
  return complete(run, own / static_cast<double>(run.share.parts));  // blocks are equally large
}

/// Returns this rank's block of weights that broadcast over the predictions. The plan leaves them whole.
at::Tensor weights_block(const BlockRun& run, const at::Tensor& weights) {
  const std::vector<int64_t>& shape = run.graph.type_of(run.graph.operands[run.node][0]).shape;
  const plan::Spec& spec = run.strategy.operands[0];
  plan::Spec own(static_cast<size_t>(weights.dim()), 0);
  for (size_t dim = 0; dim < own.size(); ++dim)
    if (weights.size(static_cast<int64_t>(dim)) > 1) own[dim] = spec[dim + shape.size() - own.size()];
  return block_of(weights, own, run.groups);
}

at::Tensor run_pointwise_loss(const BlockRun& run, const Operands& given) {
  Operands operands = given;
  for (size_t i = 2; i < operands.size(); ++i) operands[i] = weights_block(run, operands[i]);
  const OperatorCall call(run, operands);
  if (run.share.summed.empty()) return call.run();
  const bool is_mean = call.integer("reduction", at::Reduction::Mean) == at::Reduction::Mean;
  return complete(run, is_mean ? call.run() / static_cast<double>(run.share.parts) : call.run());
}

/// Returns the sum of the weights of the rows that count: those that ignore_index does not leave out.
at::Tensor weight_of_rows(const OperatorCall& call, const at::TensorOptions& options) {
  const at::NoGradGuard no_grad;
  const at::Tensor targets = call.tensor("target"), weight = call.tensor("weight");
  const at::Tensor counts = targets.ne(call.integer("ignore_index", -100));
  if (!weight.defined()) return counts.sum().to(options);
  const at::Tensor classes = targets.masked_fill(counts.logical_not(), 0).flatten();
  return (weight.index_select(0, classes) * counts.flatten()).sum().to(options);
}

/// Returns the sum of the losses of this rank's rows, whose classes are divided.
at::Tensor sum_over_divided_classes(const BlockRun& run, const OperatorCall& call) {
  const std::vector<int64_t>& shape = run.graph.type_of(run.graph.operands[run.node][0]).shape;
  ClassBlock block{block_start(shape, run.strategy.operands[0], run.groups)[1], {}};
  for (const int axis : run.share.classes) block.groups.push_back(run.groups.axes[axis]);
  return class_losses_of_block(call.first(), call.tensor("target"), call.integer("ignore_index", -100), block).sum();
}

/// A loss over classes divides by the weights of the rows that count, and ranks may have other numbers of them. So one
/// all_reduce adds the losses and the weights.
at::Tensor run_class_loss(const BlockRun& run, const Operands& operands) {
  OperatorCall call(run, operands);
  const bool divides_classes = !run.share.classes.empty();
  if (run.share.summed.empty() && !divides_classes) return call.run();
  const bool is_mean = call.integer("reduction", at::Reduction::Mean) == at::Reduction::Mean;
  const bool is_weighted = is_mean && !call.tensor("target").is_floating_point();  // else targets are probabilities
  if (is_weighted) call.set("reduction", static_cast<int64_t>(at::Reduction::Sum));
  const at::Tensor own = divides_classes ? sum_over_divided_classes(run, call) : call.run();
  at::Tensor sum = own.to(own.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  if (is_mean && !is_weighted) sum = sum / static_cast<double>(run.share.parts);
  const at::Tensor weight = is_weighted ? weight_of_rows(call, sum.options()) : at::zeros({}, sum.options());
  const at::Tensor both = complete(run, at::stack({sum, weight}));
  return (is_weighted ? both[0] / both[1] : both[0]).to(call.first().scalar_type());
}

using RunFunction = at::Tensor (*)(const BlockRun&, const Operands&);

struct OperatorRun {
  RunFunction run;
  std::vector<const char*> operators;
};

/// The operators of plan::operator_names() that do not run on blocks as they are.
const std::vector<OperatorRun>& operator_runs() {
  static const std::vector<OperatorRun> rows{
      {run_reshape, {"view", "reshape", "flatten", "squeeze", "unsqueeze"}},
      {run_expand, {"expand"}},
      {run_dropout, {"dropout"}},
      {run_batch_norm, {"batch_norm"}},
      {run_embedding, {"embedding"}},
      {run_with_bias, {"linear", "conv1d", "conv2d", "conv3d"}},
      {run_mean, {"mean"}},
      {run_class_loss, {"cross_entropy", "nll_loss"}},
      {run_pointwise_loss, {"mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits"}},
  };
  return rows;
}

}  // namespace

at::Tensor read_block(const NodeShare& share, size_t operand, at::Tensor block, const MeshGroups& groups) {
  const std::vector<int>& sums = share.gradients[operand];
  for (int axis = static_cast<int>(groups.axes.size()) - 1; axis >= 0; --axis) {
    comm::Group& group = *groups.axes[axis];
    if (operand == 0 && axis == share.gathered.axis)
      block = comm::all_gather(block, share.gathered.dim, group);
    else if (std::find(sums.begin(), sums.end(), axis) != sums.end())
      block = comm::copy_to(block, group);
  }
  return block;
}

at::Tensor run_on_blocks(const BlockRun& run, const std::vector<at::Tensor>& operands) {
  static const std::map<std::string, RunFunction> functions = [] {
    std::map<std::string, RunFunction> all;
    for (const OperatorRun& row : operator_runs())
      for (const char* name : row.operators) all.emplace(name, row.run);
    return all;
  }();
  const auto found = functions.find(run.graph.nodes[run.node].op);
  return (found == functions.end() ? run_plain : found->second)(run, operands);
}

}  // namespace colossal::auto_parallel
