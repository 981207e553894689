// The options by which commands draw the tokens of an answer and end it.
#pragma once
#include <string>
#include <vector>

#include "colossal/cli/arguments.h"
#include "colossal/infer/sampler.h"

namespace colossal::cli {

/// Adds --temperature, --top-k, --top-p, --min-p, --seed, the penalties, --logit-bias and --stop to a command.
void add_sampling_options(CLI::App& app, infer::SamplingOptions& sampling, std::vector<std::string>& stops);
/// Errors ("sampling"): options that mean nothing; before any rank starts.
void check_sampling_options(const infer::SamplingOptions& sampling, const std::vector<std::string>& stops);

}  // namespace colossal::cli
