// The own keys of ESM-2, and its folders of transformers.
#pragma once
#include <cstdint>

#include "colossal/base/fields.h"
#include "colossal/models/registry.h"

namespace colossal::models {

struct Esm2Sizes {
  bool token_dropout = true;  ///< embeddings follow the share of masked tokens (models/esm2_layers.h)
  int64_t mask_token = -1;    ///< id of the mask token; -1 = the last id of the vocabulary
  double rope_theta = 10000;  ///< base of the rotary positions
  void fields(Fields& f);
  bool operator==(const Esm2Sizes&) const = default;
};

/// Name of the norm after the last block, within that block.
inline constexpr char kEsm2EndNorm[] = "end_norm";

/// Returns how transformers stores an ESM-2 (EsmModel, EsmForMaskedLM). Folders of ESMFold have the same model_type and
/// are left to another architecture.
HuggingFace esm2_folder();

}  // namespace colossal::models
