#include <cmath>
#include <memory>

#include "colossal/base/error.h"
#include "colossal/models/built_in.h"
#include "colossal/models/decoder.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/rotary.h"

namespace colossal::models {
namespace palm {  // a namespace of its own, because every family has functions of these names

Model make(const ModelShape& s, nn::Layers& layers) {
  return make_decoder(s,
                      {.block = {.norm = {.bias = false},
                                 .branches = BlockVariant::Branches::OneNorm,
                                 .activation = ops::activation("silu").gated,
                                 .gated = true,
                                 .bias = {.qkv = false, .out = false, .mlp = false},
                                 .rotary = std::make_shared<const ops::RotaryTable>(s.head_dim, 10000)},
                       .embedding_deviation = 1,  // section 5 of the paper: there is no norm after the embedding
                       .head_scale = 1 / std::sqrt(static_cast<double>(s.hidden))},
                      layers);
}

void settle(ModelShape& s) {
  require(s.head_dim % 2 == 0, "model", "rotary positions need an even head_dim: got ", s.head_dim);
}

ModelShape sized(int64_t vocabulary, int64_t hidden, int64_t layers, int64_t heads, int64_t head_dim) {
  return {.vocabulary = vocabulary,
          .hidden = hidden,
          .layers = layers,
          .heads = heads,
          .kv_heads = 1,
          .head_dim = head_dim,
          .ffn = 4 * hidden,
          .positions = 2048};
}

std::vector<Preset> presets() {
  // Table 1 of the paper, except palm-tiny.
  return {{"palm-tiny", sized(257, 128, 4, 4, 32)},
          {"palm-8b", sized(256000, 4096, 32, 16, 256)},
          {"palm-62b", sized(256000, 8192, 64, 32, 256)},
          {"palm-540b", sized(256000, 18432, 118, 48, 256)}};
}

}  // namespace palm

Architecture palm_architecture() {
  using namespace palm;
  return {.name = "palm", .presets = presets(), .make = make, .settle = settle};
}

}  // namespace colossal::models
