// The available libraries for matrix products, for tests that run each.
#pragma once
#include <vector>

#include "colossal/ops/products/matmul.h"

namespace colossal::ops {

/// Restores the process-wide choice, which all tests share.
struct ChoiceScope {
  MatmulChoice before = matmul_choice();
  ~ChoiceScope() { set_matmul(before); }
};

inline std::vector<MatmulChoice> choices() {
  std::vector<MatmulChoice> all{choose_matmul("mkl")};
  if (has_onednn()) all.push_back(choose_matmul("onednn"));
  return all;
}

}  // namespace colossal::ops
