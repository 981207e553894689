// A mixture of experts and its layouts, for courses over `parallel.expert`.
#pragma once
#include <vector>

#include "colossal/models/families/llama.h"
#include "colossal/models/shape_parts.h"
#include "colossal/run/config.h"
#include "support/course.h"
#include "support/parity.h"

namespace colossal::train {

/// The text of courses of mixture().
inline constexpr test::Text kMixtureText{.vocabulary = 37};

/// Returns a LLaMA of blocks of four experts with balance biases, losses of the router and a capacity, so that tokens
/// are dropped.
inline models::ModelShape mixture(int64_t layers) {
  models::ModelShape shape = test::tiny_llama();
  models::LlamaSizes own;
  own.experts = {.count = 4, .used = 2, .ffn = 12, .capacity = 1.1, .balance_loss = 0.05, .z_loss = 0.01};
  own.experts.bias = true;
  own.experts.bias_rate = 0.001;
  shape.layers = layers;
  shape.own = own;
  shape.set(models::MixtureSizes{own.experts.count});
  return shape;
}

/// Returns the modes of tensor parallelism in sizes that fit mixture() over two ranks of experts.
inline std::vector<parallel::TensorConfig> mixture_tensor_modes() {
  return {{.size = 3},
          {.size = 2, .sequence = true},
          {.size = 4, .mode = "2d"},
          {.size = 4, .mode = "2.5d", .depth = 1},
          {.size = 8, .mode = "3d"}};
}

}  // namespace colossal::train
