#include "colossal/cli/sampling_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "colossal/base/file.h"
#include "colossal/cli/local_world.h"
#include "colossal/infer/answer_stream.h"
#include "colossal/infer/generation_defaults.h"
#include "colossal/text/json_schema.h"

namespace colossal::cli {
namespace {

/// "ID=VALUE"
void add_bias(const std::string& word, infer::SamplingOptions& sampling) {
  const size_t equals = std::min(word.find('='), word.size());
  int64_t id = -1;
  const auto [rest, failure] = std::from_chars(word.data(), word.data() + equals, id);
  const std::string value = word.substr(std::min(equals + 1, word.size()));
  char* behind = nullptr;
  const double bias = std::strtod(value.c_str(), &behind);
  const bool is_whole =
      failure == std::errc() && rest == word.data() + equals && id >= 0 && !value.empty() && *behind == 0;
  if (!is_whole) throw CLI::ValidationError("--logit-bias", "must be a token and a number, as 50256=-100: got " + word);
  sampling.logit_bias[id] = bias;
}

}  // namespace

void add_sampling_options(CLI::App& app, infer::SamplingOptions& sampling, std::vector<std::string>& stops) {
  app.add_option("--temperature", sampling.temperature, "sampling temperature; 0 = always the most probable token")
      ->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "number of most probable tokens to sample from; 0 = all")
      ->capture_default_str();
  app.add_option("--top-p", sampling.top_p, "total probability of the most probable tokens to sample from; 1 = all")
      ->capture_default_str();
  app.add_option("--min-p", sampling.min_p,
                 "minimum probability of a token, relative to the most probable one; 0 = off")
      ->capture_default_str();
  app.add_option("--repetition-penalty", sampling.repetition_penalty,
                 "divisor of positive logits (factor of negative ones) of tokens in the prompt or completion; 1 = off")
      ->capture_default_str();
  app.add_option("--presence-penalty", sampling.presence_penalty,
                 "amount subtracted from the logits of tokens in the completion")
      ->capture_default_str();
  app.add_option("--frequency-penalty", sampling.frequency_penalty,
                 "amount subtracted from a token's logit for each of its occurrences in the completion")
      ->capture_default_str();
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [&sampling](const std::vector<std::string>& words) {
           for (const std::string& word : words) add_bias(word, sampling);
         },
         "value added to the logit of token ID; repeatable")
      ->type_name("ID=VALUE");
  app.add_option("--stop", stops, "text that ends a completion and is not printed; repeatable");
  app.add_option("--seed", sampling.seed, "random seed of sampling; prompt or answer i uses seed + i")
      ->capture_default_str();
}

void add_json_schema(CLI::App& app, std::string& schema) {
  const auto read = [&schema](const std::string& path) {
    schema = read_file(path, int64_t{1} << 18);
    text::json_grammar(schema, path);  // refuses a bad one before any rank starts
  };
  app.add_option_function<std::string>("--json-schema", read, "JSON Schema file that every completion will match");
}

std::vector<std::string> use_folder_defaults(const CLI::App& app, const std::string& folder,
                                             infer::SamplingOptions& sampling) {
  const infer::GenerationDefaults defaults = infer::read_generation_defaults(folder);
  const auto take = [&](const char* option, auto infer::SamplingOptions::* member) {
    if (app.count(option) == 0) sampling.*member = defaults.sampling.*member;
  };
  take("--temperature", &infer::SamplingOptions::temperature);
  take("--top-k", &infer::SamplingOptions::top_k);
  take("--top-p", &infer::SamplingOptions::top_p);
  take("--min-p", &infer::SamplingOptions::min_p);
  take("--repetition-penalty", &infer::SamplingOptions::repetition_penalty);
  return defaults.ignored;
}

void say_sampling(const infer::SamplingOptions& sampling, const std::vector<std::string>& ignored) {
  say("sampling: " + infer::description_of(sampling));
  if (!ignored.empty()) say(subject_of(ignored) + " no effect here (generation_config.json)");
}

void refuse_unused_sampling(const CLI::App& app, const infer::SamplingOptions& sampling) {
  if (sampling.temperature > 0) return;
  const infer::SamplingOptions off;
  std::vector<std::string> names;
  if (sampling.top_k != off.top_k) names.emplace_back("--top-k");
  if (sampling.top_p != off.top_p) names.emplace_back("--top-p");
  if (sampling.min_p != off.min_p) names.emplace_back("--min-p");
  if (sampling.seed != off.seed) names.emplace_back("--seed");
  refuse_options(app, names, "at temperature 0, which always takes the most probable token; set --temperature");
}

void check_sampling_options(const infer::SamplingOptions& sampling, const std::vector<std::string>& stops) {
  sampling.check();
  infer::check_stops(stops);
}

}  // namespace colossal::cli
