// The options by which commands draw the tokens of an answer and end it.
#pragma once
#include <string>
#include <vector>

#include "colossal/cli/arguments.h"
#include "colossal/infer/sampler.h"

namespace colossal::cli {

/// Adds --temperature, --top-k, --top-p, --min-p, --seed, the penalties, --logit-bias and --stop to a command.
void add_sampling_options(CLI::App& app, infer::SamplingOptions& sampling, std::vector<std::string>& stops);
/// Adds --json-schema, a file whose text is put into `schema`; it is read when the arguments are.
/// Errors: a file that cannot be read or is longer than 256 KiB; those of text::json_grammar().
void add_json_schema(CLI::App& app, std::string& schema);
/// Errors ("sampling"): options that mean nothing; before any rank starts.
void check_sampling_options(const infer::SamplingOptions& sampling, const std::vector<std::string>& stops);

}  // namespace colossal::cli
