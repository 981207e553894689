// Announces operators of this library as a whole to a listener that records a pass: without it, a trace would hear the
// operators of LibTorch that stand in for a kernel on shapes alone.
//
//   at::Tensor doubled(const at::Tensor& x) {
//     if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
//       return recorder->record({"doubled", "...->...", {x}, [](const auto& in) { return doubled(in[0]); }});
//     ...
//   }
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace colossal::tensor {

/// One call of an operator that has one result, a new tensor.
struct WholeOperator {
  const char* name;
  /// The dimensions of operands and result as in "biKc,bjKc->bijc": one letter for each. Equal letters have one size
  /// and run together. A small letter may be cut: blocks along it give the same numbers. A capital one must stay whole,
  /// because the operator sums or normalizes over it or counts positions. "..." at the beginning of several terms
  /// stands for the same leading dimensions, which may all be cut. "" = nothing may be cut: an operator that
  /// communicates.
  std::string dims;
  std::vector<at::Tensor> operands;  ///< undefined ones have no numbers, and their terms no meaning
  /// Runs the operator again on operands of these or of cut sizes. It owns what it needs besides, or that outlives the
  /// recorder's use.
  std::function<at::Tensor(const std::vector<at::Tensor>& operands)> run;
};

/// Hears the operators of its thread.
class OperatorRecorder {
 public:
  virtual ~OperatorRecorder() = default;
  /// Runs the operator, or makes a result of its shape, and returns it.
  virtual at::Tensor record(WholeOperator made) = 0;
};

/// Returns the recorder of this thread; null = none listens, which is the usual case and costs nothing.
OperatorRecorder* operator_recorder();

/// Makes a recorder the one of this thread during its lifetime; null = none hears what follows.
class RecorderScope {
 public:
  explicit RecorderScope(OperatorRecorder* recorder);
  ~RecorderScope();
  RecorderScope(const RecorderScope&) = delete;
  RecorderScope& operator=(const RecorderScope&) = delete;

 private:
  OperatorRecorder* before_;
};

}  // namespace colossal::tensor
