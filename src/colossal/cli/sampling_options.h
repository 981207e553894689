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
/// Gives each of these options that the command line leaves out the value that the folder of a model recommends
/// (infer::read_generation_defaults). Returns the keys of its generation_config.json that are not applied.
/// Errors: those of that function.
std::vector<std::string> use_folder_defaults(const CLI::App& app, const std::string& folder,
                                             infer::SamplingOptions& sampling);
/// Prints to stderr which sampling options are in force, and the keys that use_folder_defaults() returned.
void say_sampling(const infer::SamplingOptions& sampling, const std::vector<std::string>& ignored);
/// Refuses --top-k, --top-p, --min-p and --seed where nothing is drawn. Errors: UsageError.
void refuse_unused_sampling(const CLI::App& app, const infer::SamplingOptions& sampling);
/// Errors ("sampling"): options that mean nothing; before any rank starts.
void check_sampling_options(const infer::SamplingOptions& sampling, const std::vector<std::string>& stops);

}  // namespace colossal::cli
