// Counts the operators of LibTorch that ran, and records their operands.
//
//   const test::CalledOperators called;
//   ops::attention(q, k, v, mask);
//   EXPECT_EQ(called("_flash_attention_forward"), 1);
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <memory>
#include <string>

namespace colossal::test {

/// A record of the operators that any thread calls while it lives, including operators called by other operators. A
/// process may have only one such object at a time.
class CalledOperators {
 public:
  CalledOperators();
  ~CalledOperators();
  CalledOperators(const CalledOperators&) = delete;
  CalledOperators& operator=(const CalledOperators&) = delete;

  /// Returns the number of calls of an operator. `name` has no "aten::".
  int operator()(const std::string& name) const;
  /// Returns true if an operator of this name had `x` or a view of it as operand.
  bool with(const std::string& name, const at::Tensor& x) const;

 private:
  struct Notes;
  static Notes& notes();
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& fn);

  at::CallbackHandle handle_;
};

}  // namespace colossal::test
