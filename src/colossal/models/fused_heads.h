// Conversion of the order of attention heads in Hugging Face folders. Our order is q of all heads, then k, then v.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/nn/attention_shape.h"
#include "colossal/nn/external_name.h"

namespace colossal::models {

/// Returns the rows of q, k and v in a tensor that stores groups. A group is the q heads that share one k head, then
/// this k head, then its v head (GPT-NeoX and BLOOM: one group per head; Falcon: per kv head).
std::vector<nn::ExternalRows> heads_in_groups(const std::string& tensor, const nn::AttentionShape& shape);

/// Returns the rows of `heads` heads of `size` features whose first `turned` features are rotated. The folder rotates
/// pairs of neighbours, 0 and 1, 2 and 3 (GPT-J); our models rotate pairs i and i + turned / 2. Scores are the same if
/// q and k are both reordered.
std::vector<nn::ExternalRows> heads_of_pairs(const std::string& tensor, int64_t heads, int64_t size, int64_t turned);

}  // namespace colossal::models
