// Command-line flags for infer::GenerationOptions, one per field.
//
//   infer::GenerationOptions options{.max_tokens = 1024};
//   add_generation_flags(app, options, {.left_out = {"logprobs"}});
//   parse(app, arguments);
//   options.check();
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/cli/arguments.h"
#include "colossal/infer/generation_options.h"

namespace colossal::cli {

/// Differences of the flags for one command.
struct GenerationFlags {
  std::vector<std::string> left_out{};  ///< fields that have no flag
  std::string max_tokens_help{};        ///< help of --max-tokens; "" = the help of the field
  int64_t min_tokens = 0;               ///< minimum value of --max-tokens
};

/// Adds a flag for each field of `options`: --max-tokens for "max_tokens", with the field's help and its value as
/// default. --logit-bias takes ID=VALUE. A JSON field (--json-schema) takes a file of at most 256 KiB, which is read
/// during parsing. Parsing writes to `options`, which must live until then.
/// Errors: a file that cannot be read; errors of text::json_grammar(), with the file's name.
void add_generation_flags(CLI::App& app, infer::GenerationOptions& options, const GenerationFlags& flags = {});
/// Returns the options among `names`, as spelled in JSON, whose flags the command line gave.
std::vector<std::string> given_names(const CLI::App& app, const std::vector<std::string>& names);
/// Returns all generation options, as spelled in JSON, whose flags the command line gave.
std::vector<std::string> given_names(const CLI::App& app);

/// Sets each sampling option that the command line did not give to the value that the model's folder recommends
/// (infer::read_generation_defaults). Returns the keys of generation_config.json that are not applied. Errors: errors
/// of that function.
std::vector<std::string> use_folder_defaults(const CLI::App& app, const std::string& folder,
                                             infer::SamplingOptions& sampling);
/// Prints the active sampling options to stderr, and the keys that use_folder_defaults() returned.
void say_sampling(const infer::SamplingOptions& sampling, const std::vector<std::string>& ignored);
/// Refuses --top-k, --top-p, --min-p and --seed if decoding is greedy (temperature 0). Errors: UsageError.
void refuse_unused_sampling(const CLI::App& app, const infer::SamplingOptions& sampling);

}  // namespace colossal::cli
