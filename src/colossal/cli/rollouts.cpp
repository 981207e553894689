#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/align/rollouts/records.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/base/run_folder.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/standard_output.h"
#include "colossal/text/tokenizer.h"

namespace colossal::cli {
namespace {

using align::StoredAnswer, align::StoredGroup;

/// The answers of a step in numbers.
struct StepSummary {
  int64_t step = 0;
  size_t prompts = 0, answers = 0, scored = 0;
  double sum = 0;

  std::optional<double> mean() const {
    return scored == 0 ? std::nullopt : std::optional(sum / static_cast<double>(scored));
  }
};

StepSummary summary_of(int64_t step, const std::vector<StoredGroup>& groups) {
  StepSummary summary{.step = step, .prompts = groups.size()};
  for (const StoredGroup& group : groups)
    for (const StoredAnswer& one : group.answers) {
      ++summary.answers;
      if (!one.score || !one.score->value) continue;
      ++summary.scored;
      summary.sum += *one.score->value;
    }
  return summary;
}

nlohmann::ordered_json number_or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

/// Returns steps in ascending order as a sentence has them: "1 to 5, 8".
std::string ranges_of(const std::vector<int64_t>& steps) {
  std::vector<std::string> ranges;
  for (size_t first = 0, end = 0; first < steps.size(); first = end) {
    for (end = first + 1; end < steps.size() && steps[end] == steps[end - 1] + 1;) ++end;
    ranges.push_back(end - first == 1 ? std::to_string(steps[first]) : concat(steps[first], " to ", steps[end - 1]));
  }
  return join(ranges);
}

void list_steps(const std::string& folder, const std::vector<int64_t>& steps, bool as_json) {
  if (!as_json) put_line("    step  prompts  answers   scored  mean score");
  for (const int64_t step : steps) {
    const StepSummary summary = summary_of(step, align::read_rollouts(folder, step));
    if (summary.prompts == 0) continue;  // a kill came before the first record, or the run has removed the step
    if (as_json) {
      put_line(json_line({{"step", step},
                          {"prompts", summary.prompts},
                          {"answers", summary.answers},
                          {"scored", summary.scored},
                          {"mean_score", number_or_null(summary.mean())}}));
      continue;
    }
    const std::string mean = summary.mean() ? text_of(*summary.mean(), 6) : "-";
    char line[128];
    std::snprintf(line, sizeof line, "%8lld %8zu %8zu %8zu  %10s", static_cast<long long>(step), summary.prompts,
                  summary.answers, summary.scored, mean.c_str());
    put_line(line);
  }
}

/// Returns a text for people. Control characters but line ends and tabs, which could change the terminal, become `?`:
/// those of ASCII, and U+0080 to U+009F. Bytes that are not UTF-8 become U+FFFD.
std::string without_controls(const std::string& text) {
  std::string shown;
  for (const char c : text::valid_utf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_second = !shown.empty() && shown.back() == '\xc2' && byte >= 0x80 && byte <= 0x9f;
    if (is_second) shown.pop_back();
    const bool is_control = is_second || (byte < ' ' && c != '\n' && c != '\t') || c == '\x7f';
    shown += is_control ? '?' : c;
  }
  return shown;
}

/// Returns a name for people, as without_controls() returns texts, in one line.
std::string shown_name(const std::string& name) {
  std::string shown = without_controls(name);
  for (char& c : shown)
    if (c == '\n' || c == '\t') c = '?';
  return shown;
}

/// Prints the rollouts of one step.
class StepPrinter {
 public:
  StepPrinter(int64_t step, std::unique_ptr<text::Tokenizer> tokenizer)
      : step_(step), tokenizer_(std::move(tokenizer)) {}

  void print(const std::vector<StoredGroup>& groups) const {
    const StepSummary summary = summary_of(step_, groups);
    put_line(concat("step ", step_, ": ", summary.prompts, " prompts, ", summary.answers, " answers, ", summary.scored,
                    " scored", summary.mean() ? ", mean score " + text_of(*summary.mean(), 6) : ""));
    for (const StoredGroup& group : groups) {
      put_line(concat("\nprompt ", group.prompt.index));
      put_text(prompt_of(group), "  ");
      for (const StoredAnswer& one : group.answers) {
        put_line(concat("  answer ", one.answer.number, ": ", score_of(one), ", ", one.answer.ids.size(), " tokens, ",
                        shown_name(one.answer.finish_reason)));
        put_text(completion_of(one), "    ");
        if (one.score && !one.score->text.empty()) put_text(one.score->text, "    | ");
      }
    }
  }

  void print_json(const std::vector<StoredGroup>& groups) const {
    for (const StoredGroup& group : groups) {
      const std::string prompt = prompt_of(group);
      const nlohmann::ordered_json line = parse_ordered_json(
          group.prompt.line, concat("the data line of prompt ", group.prompt.index, " of step ", step_), "rollouts");
      for (const StoredAnswer& one : group.answers) put_line(json_line(object_of(one, prompt, line)));
    }
  }

 private:
  std::string prompt_of(const StoredGroup& group) const { return tokenizer_->decode(group.prompt.ids, true); }
  std::string completion_of(const StoredAnswer& one) const { return tokenizer_->decode(one.answer.ids); }

  /// Prints a text with `indent` before each line.
  static void put_text(const std::string& text, const std::string& indent) {
    std::string lines = indent;
    for (const char c : without_controls(text)) {
      lines += c;
      if (c == '\n') lines += indent;
    }
    put_line(lines);
  }

  static std::string score_of(const StoredAnswer& one) {
    if (!one.score) return "not scored yet";
    std::string text = one.score->value ? "score " + print_number(*one.score->value) : "no score";
    if (one.score->is_fault) text += " after a fault";
    const auto shown = [](const auto& part) { return shown_name(part.first) + " " + print_number(part.second); };
    if (!one.score->parts.empty()) text += concat(" (", join(one.score->parts, ", ", shown), ")");
    return text;
  }

  nlohmann::ordered_json object_of(const StoredAnswer& one, const std::string& prompt,
                                   const nlohmann::ordered_json& line) const {
    const align::Score score = one.score.value_or(align::Score{});
    nlohmann::ordered_json scores = nlohmann::ordered_json::object();
    for (const auto& [name, value] : score.parts) scores[name] = value;
    return {{"id", align::rollout_id(step_, one.answer.prompt, one.answer.number)},
            {"step", step_},
            {"group", one.answer.prompt},
            {"number", one.answer.number},
            {"prompt", prompt},
            {"completion", completion_of(one)},
            {"finish_reason", one.answer.finish_reason},
            {"is_scored", one.score.has_value()},
            {"score", number_or_null(score.value)},
            {"scores", scores},
            {"text", score.text},
            {"is_fault", score.is_fault},
            {"version", one.answer.version},
            {"ids", one.answer.ids},
            {"log_probabilities", one.answer.log_probabilities},
            {"line", line}};
  }

  int64_t step_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
};

}  // namespace

int rollouts(const Arguments& arguments) {
  CLI::App app(
      "Prints the answers that a run drew in training, with their prompts, scores and the words of verifiers; without "
      "--step a table of the steps. A run may still be training. The output has no time and no path, so that of two "
      "runs can be compared.",
      "colossal rollouts");
  std::string run;
  int64_t step = 0;
  bool as_json = false;
  app.add_option("run", run, "run folder (run.folder of the config)")->required();
  const CLI::Option* given = app.add_option("--step", step, "step whose answers are printed");
  app.add_flag("--json", as_json,
               "print one line of JSON per answer, with token ids and log-probabilities; without --step one per step");
  parse(app, arguments);
  const std::string folder = RunFolder(run).rollouts();
  std::vector<int64_t> steps = align::rollout_steps(folder);
  std::error_code ignored;
  require(std::filesystem::is_directory(run, ignored), "rollouts", "there is no folder ", run, "; name a run's folder");
  require(!steps.empty(), "rollouts", run, " must be a run that learns from its own answers: got a folder without ",
          "rollouts; name the folder of such a run");
  if (given->count() == 0) {
    list_steps(folder, steps, as_json);
    return 0;
  }
  const std::vector<StoredGroup> groups = align::read_rollouts(folder, step);
  if (groups.empty()) std::erase(steps, step);  // see list_steps()
  require(!groups.empty(), "rollouts", "--step must be a step whose answers ", run, " has: got ", step, "; it has ",
          ranges_of(steps), " (rollout.keep_steps)");
  const StepPrinter printer(step, text::make_tokenizer(run));
  as_json ? printer.print_json(groups) : printer.print(groups);
  return 0;
}

}  // namespace colossal::cli
