#include "colossal/cli/generation_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/number.h"
#include "colossal/cli/local_world.h"
#include "colossal/infer/generation_defaults.h"
#include "colossal/text/grammar/json_schema.h"

namespace colossal::cli {
namespace {

/// Parses "ID=VALUE" and adds it to `biases`.
void add_bias(const std::string& word, std::map<int64_t, double>& biases) {
  const size_t equals = std::min(word.find('='), word.size());
  const std::optional<int64_t> id = parse_id(word.substr(0, equals));
  const std::string value = word.substr(std::min(equals + 1, word.size()));
  char* behind = nullptr;
  const double bias = std::strtod(value.c_str(), &behind);
  const bool is_whole = id && !value.empty() && *behind == 0;
  if (!is_whole) throw CLI::ValidationError("--logit-bias", "must be a token and a number, as 50256=-100: got " + word);
  biases[*id] = bias;
}

/// Adds a flag for each field.
class FlagAdder : public Fields {
 public:
  FlagAdder(CLI::App& app, const GenerationFlags& flags) : app_(app), flags_(flags) {}

 private:
  void visit(const Field& field) override {
    const std::vector<std::string>& out = flags_.left_out;
    if (std::find(out.begin(), out.end(), field.name) != out.end()) return;
    std::visit([&](auto* value) { add(field, infer::flag_of(field.name), *value); }, field.value);
  }
  void visit_rest(ConfigDocument&) override {}
  void enter(const char*, const char*, const char*) override {}
  void leave() override {}

  template <class Value>
  void add(const Field& field, const std::string& flag, Value& value) {
    app_.add_option(flag, value, field.help)->capture_default_str();
  }
  void add(const Field& field, const std::string& flag, std::vector<std::string>& value) {
    app_.add_option(flag, value, field.help);
  }
  void add(const Field& field, const std::string& flag, int64_t& value) {
    const bool is_length = flag == "--max-tokens";
    const bool has_help = is_length && !flags_.max_tokens_help.empty();
    const int64_t min = is_length ? flags_.min_tokens : field.min;
    CLI::Option* option = app_.add_option(flag, value, has_help ? flags_.max_tokens_help : field.help);
    if (!field.can_be_off) option->capture_default_str();
    if (min == 0) option->check(CLI::NonNegativeNumber);
    if (min == 1) option->check(CLI::PositiveNumber);
  }
  void add(const Field& field, const std::string& flag, std::map<int64_t, double>& value) {
    const auto read = [&value](const std::vector<std::string>& words) {
      for (const std::string& word : words) add_bias(word, value);
    };
    app_.add_option_function<std::vector<std::string>>(flag, read, field.help)->type_name("ID=VALUE");
  }
  void add(const Field& field, const std::string& flag, std::string& value) {
    const auto read = [&value](const std::string& path) {
      value = read_file(path, int64_t{1} << 18);
      text::json_grammar(value, path);  // checks the schema before any rank starts
    };
    app_.add_option_function<std::string>(flag, read, field.help);
  }

  CLI::App& app_;
  const GenerationFlags& flags_;
};

/// Collects the names of fields.
class FieldNames : public Fields {
 public:
  std::vector<std::string> names;

 private:
  void visit(const Field& field) override { names.emplace_back(field.name); }
  void visit_rest(ConfigDocument&) override {}
  void enter(const char*, const char*, const char*) override {}
  void leave() override {}
};

}  // namespace

void add_generation_flags(CLI::App& app, infer::GenerationOptions& options, const GenerationFlags& flags) {
  FlagAdder adder(app, flags);
  options.fields(adder);
}

std::vector<std::string> given_names(const CLI::App& app, const std::vector<std::string>& names) {
  std::vector<std::string> given;
  for (const std::string& name : names) {
    const CLI::Option* option = app.get_option_no_throw(infer::flag_of(name));
    if (option && option->count() > 0) given.push_back(name);
  }
  return given;
}

std::vector<std::string> given_names(const CLI::App& app) {
  FieldNames all;
  infer::GenerationOptions options;
  options.fields(all);
  return given_names(app, all.names);
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
  if (!ignored.empty()) say(infer::notice_of_ignored(ignored));
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

}  // namespace colossal::cli
