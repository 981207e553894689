// Where Hugging Face folders have the heads of attention in another order than ours, which is q of all heads, k, v.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/nn/attention_shape.h"
#include "colossal/nn/external_name.h"

namespace colossal::models {

/// q, k and v of a tensor that has, for each head of k, the heads of q that read it, then itself, then its v (GPT-NeoX
/// and BLOOM of each head, Falcon of each group).
std::vector<nn::ExternalRows> heads_in_groups(const std::string& tensor, const nn::AttentionShape& shape);

/// `heads` heads of `size` features, the first `turned` of which the folder turns by pairs of neighbours, 0 and 1, 2
/// and 3 (GPT-J), and ours by halves: scores are the same where q and k are both in that order.
std::vector<nn::ExternalRows> heads_of_pairs(const std::string& tensor, int64_t heads, int64_t size, int64_t turned);

}  // namespace colossal::models
