// Which operators of LibTorch ran, and on what.
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

/// What is called while it lives, by any thread; those inside of other operators, too. One at a time in a process.
class CalledOperators {
 public:
  CalledOperators();
  ~CalledOperators();
  CalledOperators(const CalledOperators&) = delete;
  CalledOperators& operator=(const CalledOperators&) = delete;

  /// How often, without "aten::".
  int operator()(const std::string& name) const;
  /// Whether an operator of this name was given `x` or a view of it.
  bool with(const std::string& name, const at::Tensor& x) const;

 private:
  struct Notes;
  static Notes& notes();
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& fn);

  at::CallbackHandle handle_;
};

}  // namespace colossal::test
