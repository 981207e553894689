// Hears the operators of one pass and records them as nodes.
//
//   Tracer tracer(module_on_meta, inputs);
//   tracer.run(loss)   // calls loss with the trace key on; see hear()
#pragma once
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "colossal/tensor/whole_operator.h"
#include "colossal/trace/graph_recorder.h"
#include "colossal/trace/heard_call.h"
#include "colossal/trace/module_on_meta.h"

namespace colossal::trace {

/// A pass hears three kinds of tensors. Tensors on meta stand for parameters, inputs and what follows from them: they
/// are tracked. All other tensors are constants: operators that read only those run on their values. A constant that a
/// tracked operator reads becomes a node.
///
/// In-place operators give a tensor another value: a later node. A view knows the operator that made it. After a change
/// of its base, or of another view of the base, the next reader makes the view again; a change of a view makes its base
/// again, of the parts that did not change and the one that did.
///
/// The tracer holds every tensor that it tracks, because LibTorch uses addresses again.
class Tracer : public tensor::OperatorRecorder {
 public:
  Tracer(ModuleOnMeta& module, const std::vector<at::Tensor>& inputs);

  /// Traces a function that reads `captured` beside its inputs. `none` is an empty module.
  Tracer(ModuleOnMeta& none, const std::vector<at::Tensor>& inputs, const std::vector<Captured>& captured);

  /// Calls `loss` on stand-ins of the inputs, and returns the graph.
  TracedModule run(const Loss& loss);
  TracedModule run(const Function& function);

  /// Handles one operator, whose arguments are the last values of the stack, and puts its results there.
  void hear(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  /// Handles one operator of this library.
  at::Tensor record(tensor::WholeOperator made) override;

 private:
  /// A tensor on meta and the value that it has now.
  struct Tracked {
    at::Tensor held;
    plan::Source source;
    std::shared_ptr<Tracked> base;  ///< tensor of which this is a view; null = none
    std::optional<HeardCall> made;  ///< operator that makes the view
    int version = 0;                ///< without base: number of changes; of a view: changes that `source` knows of
  };
  using Results = std::vector<c10::IValue>;

  // Sources (tracer.cpp)
  void add_input(size_t index, const at::Tensor& input, const at::Tensor& first);
  bool is_heard(const at::Tensor& tensor) const;  ///< true for a tensor that the graph has
  std::shared_ptr<Tracked> find(const at::Tensor& tensor) const;
  std::shared_ptr<Tracked> track(const at::Tensor& tensor, plan::Source source);
  plan::Source source_of(const at::Tensor& tensor);
  plan::Source refresh(Tracked& tracked);
  at::Tensor on_meta(const at::Tensor& tensor);  ///< tracked stand-in of a tensor that may be a constant
  at::Tensor constant_node(const at::Tensor& value);

  // Operators (tracer.cpp)
  Results hear_constants(HeardCall call);
  Results hear_tracked(HeardCall call);
  Results record(HeardCall call);
  Results split(const HeardCall& call, const Results& results);
  void note(const HeardCall& call, const Results& results);
  plan::Source emit(const HeardCall& call, const at::Tensor& result, int index, int number);
  plan::Source detached(plan::Source source, const plan::TensorType& type);
  at::Tensor record_one(const char* name, std::vector<c10::IValue> arguments);
  bool note_statistics(HeardCall& call);  ///< true if there are some; it takes them out of the call
  HeardCall joined_linear(HeardCall call) const;

  // Changes (tensor_changes.cpp)
  Results change(const HeardCall& call, int written);
  at::Tensor changed_value(const HeardCall& call, const at::Tensor& self);
  void assign(const std::shared_ptr<Tracked>& target, const at::Tensor& value);
  at::Tensor base_with(const Tracked& view, const at::Tensor& value);
  at::Tensor joined(const at::Tensor& base, const at::Tensor& value, int64_t dim, int64_t start, int64_t end);
  void give_constant(const HeardCall& call, const at::Tensor& constant);

  // Refusals (refusals.cpp)
  [[noreturn]] void refuse(const HeardCall& call, const std::string& rule, const std::string& remedy) const;
  void check_values(const HeardCall& call) const;  ///< shapes that depend on values
  void check_random(const HeardCall& call) const;
  void check_gradient(const HeardCall& call, const at::Tensor& tensor) const;

  ModuleOnMeta& module_;
  at::Device home_;                 ///< device on which the graph will run
  bool gradients_ = true;           ///< false = a function is traced, without gradients
  std::vector<at::Tensor> inputs_;  ///< stand-ins
  GraphRecorder recorder_;
  std::unordered_map<c10::TensorImpl*, std::shared_ptr<Tracked>> tracked_;
  struct Constant {
    at::Tensor held, stand_in;
    int64_t version = 0;
  };
  std::unordered_map<c10::TensorImpl*, Constant> constants_;
  std::unordered_set<c10::TensorImpl*> captured_;
  /// Memory of constants that a function made and did not fill: an operator that does not announce itself may return
  /// such a tensor in place of its result on meta
  std::unordered_map<c10::StorageImpl*, at::Tensor> unset_;
  std::unordered_map<c10::TensorImpl*, at::Tensor> changed_constants_;  ///< buffers that the pass changes, and results
  std::vector<TracedModule::Statistics> statistics_;
  int calls_ = 0;
};

}  // namespace colossal::trace
