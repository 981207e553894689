// The flags of infer::GenerationOptions, of which each field has one.
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

/// Changes of the flags for one command.
struct GenerationFlags {
  std::vector<std::string> left_out{};  ///< fields that have no flag
  std::string max_tokens_help{};        ///< help of --max-tokens; "" = the help of the field
  int64_t least_tokens = 0;             ///< smallest --max-tokens
};

/// Adds a flag for each field of `options`: --max-tokens for "max_tokens", with its help, and its value as default.
/// --logit-bias takes ID=VALUE. A field of JSON (--json-schema) takes a file of at most 256 KiB, which is read when the
/// arguments are. Errors: a file that cannot be read; those of text::json_grammar(), with the file's name.
void add_generation_flags(CLI::App& app, infer::GenerationOptions& options, const GenerationFlags& flags = {});
/// Returns those of the options `names`, as JSON spells them, whose flags the command line gave.
std::vector<std::string> given_names(const CLI::App& app, const std::vector<std::string>& names);

/// Gives each sampling option that the command line leaves out the value that the folder of a model recommends
/// (infer::read_generation_defaults). Returns the keys of its generation_config.json that are not applied.
/// Errors: those of that function.
std::vector<std::string> use_folder_defaults(const CLI::App& app, const std::string& folder,
                                             infer::SamplingOptions& sampling);
/// Prints to stderr which sampling options are in force, and the keys that use_folder_defaults() returned.
void say_sampling(const infer::SamplingOptions& sampling, const std::vector<std::string>& ignored);
/// Refuses --top-k, --top-p, --min-p and --seed if nothing is drawn. Errors: UsageError.
void refuse_unused_sampling(const CLI::App& app, const infer::SamplingOptions& sampling);

}  // namespace colossal::cli
