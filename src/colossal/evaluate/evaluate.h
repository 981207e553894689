// Runs tasks on a model and returns their metrics, as lm-evaluation-harness computes them.
//
//   std::vector<evaluate::PreparedTask> tasks = evaluate::prepare({"arc_easy", "mine.toml"}, {.data = "eval"});
//   evaluate::EngineScorer scorer(*saved.model, {}, *saved.tokenizer, saved.end_ids, "fp32");
//   for (const evaluate::TaskResult& result : evaluate::evaluate(scorer, *saved.tokenizer, tasks, {}))
//     std::puts(json_line(evaluate::json_of(result)).c_str());
//
// docs/how-to/evaluate.md describes tasks and metrics.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/evaluate/items.h"
#include "colossal/evaluate/scorer.h"
#include "colossal/evaluate/task.h"
#include "colossal/text/tokenizer.h"

namespace colossal::evaluate {

/// A task with its data.
struct PreparedTask {
  Task task;
  std::vector<Part> parts;
  int64_t shots;
  bool is_chat;  ///< prompts were rendered by a chat template
};

/// Reads tasks and their data, before a model is loaded. `names` are those of read_task().
/// Errors: those of read_task() and read_parts(); ("evaluate") no name, or two tasks of one name.
std::vector<PreparedTask> prepare(const std::vector<std::string>& names, const DataOptions& options);

/// A metric over items. `error` is its standard error, NaN where it has none.
struct Measured {
  std::string metric;
  double value, error;
};

struct TaskResult {
  std::string name;
  std::vector<Measured> metrics;
  int64_t count = 0;      ///< items
  int64_t truncated = 0;  ///< items with a text that was longer than the model reads
  int64_t apart = 0;      ///< texts whose context and continuation were encoded in two parts (Encoder::pair())
  int64_t shots = 0;
  bool is_chat = false;
  std::string dtype;
  std::vector<TaskResult> subjects{};  ///< results of the subjects of a task that has several
};

/// Returns the members of a result: each metric and its `_error` (null for one item), `count`, `truncated`,
/// `encoded_apart`, `shots`, `chat_template` and `dtype`, and `subjects` if there are several.
nlohmann::ordered_json json_of(const TaskResult& result);

struct ScoringOptions {
  std::optional<bool> adds_begin{};  ///< whether texts get the begin token; nothing = as the tokenizer does for prompts
  /// Called with one object per item in the order of the data: `task`, `subject` if there is one, `line`, `prompt`,
  /// `target`, the item's metrics, and `scores` (the sum of log-probabilities of each choice, or of the text) or
  /// `answer`. May be set on one rank alone. Its first error is thrown after the last task, because the ranks run all
  /// tasks together; later items are not passed to it.
  std::function<void(const nlohmann::ordered_json&)> on_sample{};
};

/// Runs tasks one after another. All requests of a task go to `scorer` in one call. The metric of a task with subjects
/// is the mean over all items.
///
/// Communication: that of `scorer`. All ranks of a layout must call it with equal arguments.
/// Memory: the token ids of all requests of a task.
/// Errors ("evaluate"): those of Encoder, before the first task of a kind runs; a prompt that leaves no room for
/// max_tokens. Errors of `scorer` and, at the end, of ScoringOptions::on_sample.
std::vector<TaskResult> evaluate(Scorer& scorer, const text::Tokenizer& tokenizer,
                                 const std::vector<PreparedTask>& tasks, const ScoringOptions& options);

/// Encodes all requests of the tasks for a model that reads at most `max_length` tokens, without running them.
/// Errors ("evaluate"): those of evaluate() that do not come from its scorer.
void check(int64_t max_length, const text::Tokenizer& tokenizer, const std::vector<PreparedTask>& tasks);

}  // namespace colossal::evaluate
