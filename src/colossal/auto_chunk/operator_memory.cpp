#include "colossal/auto_chunk/operator_memory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>

#include "colossal/memory/account.h"
#include "colossal/trace/graph_recorder.h"
#include "colossal/trace/heard_call.h"

namespace colossal::auto_chunk {
namespace {

at::Tensor shape_of(const at::Tensor& x) {
  return x.is_meta() ? x
                     : at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kMeta).requires_grad(false));
}

at::ScalarType type_named(const std::string& name) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kShort,
                                    at::kChar, at::kByte, at::kBool})
    if (trace::dtype_name(type) == name) return type;
  return at::kFloat;
}

}  // namespace

trace::TracedOperator sized(const trace::TracedOperator& run, const std::vector<int64_t>& whole, int cut,
                            int64_t count) {
  if (!run.handle) return run;
  trace::TracedOperator made = run;
  const std::string name = trace::full_name(*run.handle);
  if (name != "aten::reshape" && name != "aten::expand") return made;
  std::vector<int64_t> shape = whole;
  shape[cut] = count;
  made.arguments[1] = shape;
  return made;
}

OperatorMemory::OperatorMemory(const trace::TracedModule& traced) : traced_(traced) {
  for (const at::Tensor& parameter : traced.parameters) parameters_.push_back(shape_of(parameter));
  for (int node = 0; node < static_cast<int>(traced.operators.size()); ++node) {
    const trace::TracedOperator& run = traced.operators[node];
    const plan::TensorType& type = traced.graph.nodes[node].output;
    values_.push_back(run.constant.defined() ? shape_of(run.constant) : at::Tensor());
    if (!values_[node].defined() && (run.handle || run.whole))
      known_[{node, -1, 0, 0}] = measured(run, operands_of(node), run.shares >= 0 ? 0 : type.bytes(), &values_[node]);
    if (!values_[node].defined())
      values_[node] = at::empty(type.shape, at::TensorOptions(at::kMeta).dtype(type_named(type.dtype)));
  }
}

std::vector<at::Tensor> OperatorMemory::operands_of(int node) const {
  std::vector<at::Tensor> operands;
  for (const plan::Source source : traced_.graph.operands[node])
    operands.push_back(source.is_parameter ? parameters_[source.index] : values_[source.index]);
  return operands;
}

int64_t OperatorMemory::measured(const trace::TracedOperator& run, const std::vector<at::Tensor>& operands,
                                 int64_t bytes, at::Tensor* result) const {
  const at::NoGradGuard no_grad;
  trace::TracedOperator on_meta = run;
  for (c10::IValue& argument : on_meta.arguments)
    if (argument.isDevice()) argument = at::Device(at::kMeta);
  const memory::Account account(memory::Counted::MemoryAndShapes);
  try {
    const std::vector<at::Tensor> made = trace::run_operator(on_meta, operands);
    if (result != nullptr) *result = made.at(run.result);
  } catch (const std::exception&) {
    return 0;
  }
  return std::max<int64_t>(account.usage().peak_total - bytes, 0);
}

int64_t OperatorMemory::beside(const NodeDims& dims, int node, int cut, int64_t count, uint64_t dense) const {
  const auto [found, is_new] = known_.try_emplace({node, cut, cut < 0 ? 0 : count, dense}, 0);
  if (!is_new || cut < 0) return found->second;
  const trace::TracedOperator& run = traced_.operators[node];
  const plan::TensorType& type = traced_.graph.nodes[node].output;
  std::vector<at::Tensor> operands = operands_of(node);
  for (size_t k = 0; k < operands.size(); ++k) {
    const auto place = std::find(dims.operands[k].begin(), dims.operands[k].end(), dims.output[cut]);
    if (place != dims.operands[k].end()) operands[k] = operands[k].narrow(place - dims.operands[k].begin(), 0, count);
    if (k < 64 && (dense >> k & 1) != 0) operands[k] = at::empty_like(operands[k]);
  }
  const int64_t bytes = run.shares >= 0 ? 0 : type.bytes() / std::max<int64_t>(type.shape[cut], 1) * count;
  return found->second = measured(sized(run, type.shape, cut, count), operands, bytes, nullptr);
}

}  // namespace colossal::auto_chunk
