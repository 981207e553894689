// A small model, and a cluster for it.
#pragma once
#include <cstdint>

#include "colossal/plan/profile.h"
#include "colossal/run/config.h"
#include "support/parity.h"

namespace colossal::predict {

inline models::ModelShape small_shape() {
  models::ModelShape shape = test::tiny_gpt2();
  shape.vocabulary = 48, shape.layers = 2, shape.hidden = 64, shape.heads = shape.kv_heads = 4, shape.head_dim = 16;
  shape.ffn = 256, shape.positions = 64, shape.dropout = 0;
  return shape;
}

inline run::Config small_config() {
  run::Config config;
  config.run.device = "cpu";
  config.data.sequence = 16;
  config.training.batch_size = 4;
  return config;
}

/// A cluster of nodes of four devices. Its numbers are such that neither computation nor links can be neglected.
inline plan::Profile small_cluster(int64_t memory) {
  plan::Profile profile;
  profile.name = "small";
  profile.device.memory = memory;
  profile.device.bandwidth = 1e9;
  profile.device.fp32 = 1e10;
  profile.device.start = 1e-6;
  profile.node = {4, 1e9, 1e-5};
  profile.network = {.bandwidth = 1e8, .latency = 1e-4};
  return profile;
}

inline constexpr int64_t kAmple = int64_t{1} << 40;

}  // namespace colossal::predict
