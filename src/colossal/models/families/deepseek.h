// The own keys of DeepSeek-V2 and V3.
#pragma once
#include "colossal/models/expert_keys.h"
#include "colossal/models/llama_layout.h"

namespace colossal::models {

/// The own keys. ModelShape::head_dim is nope_dim + rope_dim.
struct DeepseekSizes {
  LlamaLayoutKeys layout{};
  int64_t q_rank = 0;     ///< features of the latent of queries; 0 = none
  int64_t kv_rank = 512;  ///< features of the latent of keys and values
  /// Features of a head of q and k that are not rotated and that are, and features of a head of v
  int64_t nope_dim = 128, rope_dim = 64, v_dim = 128;
  bool rope_interleave = true;  ///< nn::LatentOptions::interleaved
  ExpertKeys experts{};
  int64_t multi_token_layers = 0;  ///< MultiTokenOptions::layers
  double multi_token_loss = 0.3;   ///< MultiTokenOptions::loss

  void fields(Fields& f);
  bool operator==(const DeepseekSizes&) const = default;
};

}  // namespace colossal::models
