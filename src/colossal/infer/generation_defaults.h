// The sampling options that a model's folder recommends, in generation_config.json.
//
//   const infer::GenerationDefaults defaults = infer::read_generation_defaults("models/Qwen2.5-0.5B-Instruct");
//   defaults.sampling.temperature;   // 0.7
#pragma once
#include <string>
#include <vector>

#include "colossal/infer/decoding/sampler.h"

namespace colossal::infer {

struct GenerationDefaults {
  SamplingOptions sampling{};
  /// Keys of the file that change the output of `transformers` but are not applied here, e.g. beam search.
  std::vector<std::string> ignored{};
};

/// Reads generation_config.json in the folder `model`: temperature, top_k, top_p, min_p, repetition_penalty and
/// do_sample, with the meaning that `transformers` gives them. If do_sample is not true, the temperature is 0 (greedy),
/// and the other options apply once the caller sets a temperature. If it is true, a missing temperature is 1 and a
/// missing top_k is 50. If the file is missing, returns the options' own defaults.
/// Errors ("generation_config"): a file that is not a JSON object; a value of a wrong type or out of range. The message
///                               names the path.
GenerationDefaults read_generation_defaults(const std::string& model);

/// Returns a line for the user about keys of the file that are not applied (GenerationDefaults::ignored); "" = none.
std::string notice_of_ignored(const std::vector<std::string>& ignored);
/// Returns all options that have an effect, for a line in a log: "temperature 0.7, top_k 20, top_p 0.8, seed 0".
std::string description_of(const SamplingOptions& options);

}  // namespace colossal::infer
