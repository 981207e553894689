// A pass through a model whose adapters are switched off.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "colossal/nn/parameter.h"

namespace colossal::train {

/// Switches adapters off during its lifetime, if `is_off`, and gives parameters the memory of their originals. Both
/// must outlive it.
class SwitchedOff {
 public:
  using Originals = std::vector<std::pair<nn::Parameter*, const nn::Parameter*>>;
  SwitchedOff(bool& off, bool is_off, const Originals& originals) : off_(off) {
    for (const auto& [parameter, original] : originals)
      trained_.emplace_back(parameter, parameter->value.variable_data());
    off_ = is_off;
    // variable_data() and set_data() are no operators, so they are no uses of a chunk: the pass gathers what it reads.
    for (const auto& [parameter, original] : originals) parameter->value.set_data(original->value.variable_data());
  }
  ~SwitchedOff() {
    off_ = false;
    for (const auto& [parameter, value] : trained_) parameter->value.set_data(value);
  }
  SwitchedOff(const SwitchedOff&) = delete;
  SwitchedOff& operator=(const SwitchedOff&) = delete;

 private:
  bool& off_;
  std::vector<std::pair<nn::Parameter*, at::Tensor>> trained_;
};

}  // namespace colossal::train
