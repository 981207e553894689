// Finds the operator from which numbers that are not finite come, by a pass that looks at the results of each.
//
//   FiniteCheck check(engine.model());
//   engine.forward(batch, result);
//   if (!check.found().empty()) ...                     // "aten::exp in blocks.3"
#pragma once
#include <memory>
#include <string>

#include "colossal/models/model.h"

namespace colossal::fold {

/// A look at each operator of LibTorch that passes through `model` run on this thread during its lifetime. The model
/// must outlive it, and no other thread may use the model. Only one may exist on a thread.
///
/// Finds the first part (embedding, block, norm, or what follows) that leaves numbers that are not finite, and in it
/// the first operator with a NaN, else the first with an infinity. Kernels of ours are no such operators: the one that
/// reads their results is found.
/// Cost: the host waits for the device after each operator.
class FiniteCheck {
 public:
  explicit FiniteCheck(models::Model& model);
  ~FiniteCheck();
  FiniteCheck(const FiniteCheck&) = delete;
  FiniteCheck& operator=(const FiniteCheck&) = delete;

  /// Returns the operator and its part; empty = all was finite so far. Call it after a pass.
  const std::string& found() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace colossal::fold
