// Low-rank adapters of the experts of a mixture: the part of nn::with_low_rank() for stacks.
//
//   // for each expert of a stack, in order; nn::grouped_product() puts one wrapper around the product of the stack
//   product = nn::with_low_rank_of_expert(product, expert, parameters, {.rank = 4});
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "colossal/nn/low_rank.h"

namespace colossal::nn {

/// As with_low_rank(), for a weight whose Parameter::stack is set. Declares the stacks of matrices for expert 0.
std::shared_ptr<const Product> with_low_rank_of_expert(std::shared_ptr<const Product> product, const Parameter& weight,
                                                       Parameters& parameters, const LowRank& options);

/// Returns the name of a matrix of the adapter of `weight`: "blocks.0.attention.qkv.adapter_a.q_proj".
std::string low_rank_name_of(const Parameter& weight, char matrix, const std::string& part);

/// Appends those of `more` that `axes` does not have.
void add_axes(std::vector<std::string>& axes, const std::vector<std::string>& more);

}  // namespace colossal::nn
