// The sampling options that a model's folder recommends, in generation_config.json.
//
//   const infer::GenerationDefaults defaults = infer::read_generation_defaults("models/Qwen2.5-0.5B-Instruct");
//   defaults.sampling.temperature;   // 0.7
#pragma once
#include <string>
#include <vector>

#include "colossal/infer/sampler.h"

namespace colossal::infer {

struct GenerationDefaults {
  SamplingOptions sampling{};
  /// Keys of the file that change what `transformers` writes, and that are not applied here: beams for instance.
  std::vector<std::string> ignored{};
};

/// Reads temperature, top_k, top_p, min_p, repetition_penalty and do_sample as `transformers` understands them. Without
/// do_sample = true the temperature is 0 (greedy). With it, a missing temperature is 1 and a missing top_k is 50. The
/// other options apply as soon as the caller gives a temperature. Without the file all options have their own defaults.
/// Errors ("generation_config"): a file that is no JSON object; a value of a wrong type or out of range, with the path.
GenerationDefaults read_generation_defaults(const std::string& model);

/// All options that are in force, as a line of a log has them: "temperature 0.7, top_k 20, top_p 0.8, seed 0".
std::string description_of(const SamplingOptions& options);

}  // namespace colossal::infer
