// Stores a function in the saved data of an autograd node, which holds IValues.
#pragma once
#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include "colossal/nn/recompute.h"

namespace colossal::nn {

struct UnaryCapsule : torch::CustomClassHolder {
  explicit UnaryCapsule(Unary function) : function(std::move(function)) {}
  Unary function;
};

inline c10::IValue capsule_of(Unary function) {
  return c10::IValue::make_capsule(c10::make_intrusive<UnaryCapsule>(std::move(function)));
}
inline const Unary& unary_of(const c10::IValue& capsule) {
  return static_cast<const UnaryCapsule*>(capsule.toCapsule().get())->function;
}

}  // namespace colossal::nn
