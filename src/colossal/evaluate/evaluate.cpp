#include "colossal/evaluate/evaluate.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/evaluate/encoding.h"
#include "colossal/evaluate/metrics.h"
#include "colossal/text/tokenizers/regex.h"
#include "colossal/text/verifiers/words.h"

namespace colossal::evaluate {
namespace {

using nlohmann::ordered_json;

/// The results of one item.
struct Outcome {
  Values values{};  // metrics; of perplexity those of the item alone
  Predicted predicted{};
  std::vector<double> scores{};
  std::string answer{};
  bool is_truncated = false;
  int64_t apart = 0;
};

/// The items of a task, over all subjects, and their results.
class TaskRun {
 public:
  TaskRun(Scorer& scorer, const text::Tokenizer& tokenizer, const PreparedTask& prepared, const ScoringOptions& options)
      : scorer_(scorer),
        encoder_(tokenizer, options.adds_begin),
        prepared_(prepared),
        task_(prepared.task),
        options_(options) {
    for (const Part& part : prepared.parts)
      for (const Item& item : part.items) items_.push_back(&item);
    outcomes_.resize(items_.size());
  }

  TaskResult run() {
    if (task_.is_choices())
      score_choices();
    else if (task_.is_perplexity())
      score_texts();
    else
      generate();
    show_samples();
    return result();
  }

 private:
  /// Adds a request, cut to what the model reads.
  void add(std::vector<Pair>& pairs, Pair pair, Outcome& outcome) const {
    const int64_t max_length = scorer_.max_length();
    outcome.is_truncated |= static_cast<int64_t>(pair.context.size() + pair.continuation.size()) > max_length + 1;
    pairs.push_back(fitted(std::move(pair), max_length));
  }

  void score_choices() {
    std::vector<Pair> pairs;
    // A chat template ends the prompt, so that the answer begins without a delimiter.
    const std::string delimiter = prepared_.is_chat ? "" : task_.delimiter;
    for (size_t i = 0; i < items_.size(); ++i) {
      const int64_t before = encoder_.apart();
      for (const std::string& choice : items_[i]->texts)
        add(pairs, encoder_.pair(items_[i]->prompt, delimiter + choice), outcomes_[i]);
      outcomes_[i].apart = encoder_.apart() - before;
    }
    const std::vector<Score> scores = scorer_.score(pairs);
    size_t next = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      for (size_t c = 0; c < items_[i]->texts.size(); ++c) outcomes_[i].scores.push_back(scores[next++].sum);
      outcomes_[i].values = choice_metrics(outcomes_[i].scores, items_[i]->texts, items_[i]->right);
    }
  }

  void score_texts() {
    std::vector<Pair> pairs;
    std::vector<size_t> windows;  // indices of the windows of each text
    for (const Item* item : items_) {
      const size_t before = pairs.size();
      for (Pair& window : rolling_windows(encoder_.encode(item->texts[0]), encoder_.prefix(), scorer_.max_length()))
        pairs.push_back(std::move(window));
      windows.push_back(pairs.size() - before);
    }
    const std::vector<Score> scores = scorer_.score(pairs);
    size_t next = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      Predicted& predicted = outcomes_[i].predicted;
      for (size_t w = 0; w < windows[i]; ++w) predicted.sum += scores[next++].sum;
      predicted.words = text::parts_of(items_[i]->counted);
      predicted.bytes = static_cast<int64_t>(items_[i]->counted.size());
      outcomes_[i].scores = {predicted.sum};
      outcomes_[i].values = predicted.values();
    }
  }

  void generate() {
    const int64_t room = scorer_.max_length() - task_.max_tokens;
    require(room > 0, "evaluate", task_.name, ": max_tokens must leave room for a prompt in the model's ",
            scorer_.max_length(), " tokens: got ", task_.max_tokens, "; lower max_tokens of the task");
    std::vector<Prompt> prompts;
    for (size_t i = 0; i < items_.size(); ++i) {
      std::vector<int64_t> ids = encoder_.encode(items_[i]->prompt);
      if (ids.empty()) ids = {encoder_.prefix()};
      const int64_t surplus = static_cast<int64_t>(ids.size()) - room;
      if (surplus > 0) ids.erase(ids.begin(), ids.begin() + surplus);
      outcomes_[i].is_truncated = surplus > 0;
      prompts.push_back({std::move(ids), task_.until, task_.max_tokens});
    }
    std::vector<std::string> answers = scorer_.generate(prompts);
    std::optional<text::Regex> pattern;
    if (!task_.pattern.empty()) pattern.emplace(task_.pattern, text::Dialect::Rust);
    for (size_t i = 0; i < items_.size(); ++i) {
      for (const std::string& metric : task_.metric) {
        double best = 0;  // over the right answers
        for (const std::string& target : items_[i]->texts)
          best = std::max(best, answer_metric(metric, answers[i], target, pattern ? &*pattern : nullptr));
        outcomes_[i].values.emplace_back(metric, best);
      }
      outcomes_[i].answer = std::move(answers[i]);
    }
  }

  static double value_of(const Values& values, const std::string& metric) {
    const auto is_it = [&](const auto& value) { return value.first == metric; };
    return std::find_if(values.begin(), values.end(), is_it)->second;
  }

  /// Returns the metrics of items [begin, end).
  TaskResult result_of(const std::string& name, size_t begin, size_t end) const {
    TaskResult result{.name = name,
                      .count = static_cast<int64_t>(end - begin),
                      .shots = prepared_.shots,
                      .is_chat = prepared_.is_chat,
                      .dtype = scorer_.dtype()};
    Predicted predicted;
    for (size_t i = begin; i < end; ++i) {
      result.truncated += outcomes_[i].is_truncated;
      result.apart += outcomes_[i].apart;
      predicted.add(outcomes_[i].predicted);
    }
    for (const std::string& metric : task_.metric) {
      if (task_.is_perplexity()) {
        const double none = std::numeric_limits<double>::quiet_NaN();
        result.metrics.push_back({metric, value_of(predicted.values(), metric), none});
        continue;
      }
      std::vector<double> values;
      for (size_t i = begin; i < end; ++i) values.push_back(value_of(outcomes_[i].values, metric));
      const Mean mean = mean_of(values);
      result.metrics.push_back({metric, mean.mean, mean.error});
    }
    return result;
  }

  TaskResult result() const {
    TaskResult whole = result_of(task_.name, 0, items_.size());
    if (prepared_.parts.size() < 2) return whole;
    size_t begin = 0;
    for (const Part& part : prepared_.parts) {
      whole.subjects.push_back(result_of(part.subject, begin, begin + part.items.size()));
      begin += part.items.size();
    }
    return whole;
  }

  void show_samples() const {
    if (!options_.on_sample) return;
    size_t i = 0;
    for (const Part& part : prepared_.parts)
      for (const Item& item : part.items) options_.on_sample(sample_of(part, item, outcomes_[i++]));
  }

  ordered_json sample_of(const Part& part, const Item& item, const Outcome& outcome) const {
    ordered_json sample{{"task", task_.name}};
    if (!part.subject.empty()) sample["subject"] = part.subject;
    sample["line"] = item.line;
    if (!task_.is_perplexity()) sample["prompt"] = item.prompt;
    if (!task_.is_choices() && item.texts.size() > 1)
      sample["target"] = item.texts;
    else
      sample["target"] = item.texts[item.right];
    for (const std::string& metric : task_.metric) sample[metric] = value_of(outcome.values, metric);
    if (outcome.scores.empty())
      sample["answer"] = outcome.answer;
    else
      sample["scores"] = outcome.scores;
    return sample;
  }

  Scorer& scorer_;
  Encoder encoder_;
  const PreparedTask& prepared_;
  const Task& task_;
  const ScoringOptions& options_;
  std::vector<const Item*> items_;
  std::vector<Outcome> outcomes_;
};

/// Stands for a model: it gives every text the probability 1, and empty answers.
class ModelOfLength final : public Scorer {
 public:
  explicit ModelOfLength(int64_t max_length) : max_length_(max_length) {}
  std::vector<Score> score(const std::vector<Pair>& pairs) override {
    return std::vector<Score>(pairs.size(), {.sum = 0, .is_greedy = true});
  }
  std::vector<std::string> generate(const std::vector<Prompt>& prompts) override {
    return std::vector<std::string>(prompts.size());
  }
  int64_t max_length() const override { return max_length_; }
  std::string dtype() const override { return ""; }

 private:
  int64_t max_length_;
};

}  // namespace

std::vector<PreparedTask> prepare(const std::vector<std::string>& names, const DataOptions& options) {
  require(!names.empty(), "evaluate", "there must be at least one task: got none");
  std::vector<PreparedTask> prepared;
  for (const std::string& name : names) {
    Task task = read_task(name);
    for (const PreparedTask& other : prepared)
      require(other.task.name != task.name, "evaluate", "two tasks must not have one name: got ", task.name, " in ",
              other.task.where, " and ", task.where);
    const int64_t shots = task.is_perplexity() ? 0 : options.shots < 0 ? task.shots : options.shots;
    const bool is_chat = options.chat_template != nullptr && !task.is_perplexity();
    std::vector<Part> parts = read_parts(task, options);
    prepared.push_back({std::move(task), std::move(parts), shots, is_chat});
  }
  return prepared;
}

ordered_json json_of(const TaskResult& result) {
  ordered_json json;
  for (const Measured& measured : result.metrics) {
    json[measured.metric] = measured.value;
    const bool has_error =
        measured.metric.find("perplexity") == std::string::npos && measured.metric != "bits_per_byte";
    if (has_error) json[measured.metric + "_error"] = measured.error;  // NaN is written as null
  }
  json["count"] = result.count;
  json["truncated"] = result.truncated;
  json["encoded_apart"] = result.apart;
  json["shots"] = result.shots;
  json["chat_template"] = result.is_chat;
  json["dtype"] = result.dtype;
  for (const TaskResult& subject : result.subjects) {
    ordered_json own = json_of(subject);
    for (const char* common : {"shots", "chat_template", "dtype"}) own.erase(common);
    json["subjects"][subject.name] = std::move(own);
  }
  return json;
}

std::vector<TaskResult> evaluate(Scorer& scorer, const text::Tokenizer& tokenizer,
                                 const std::vector<PreparedTask>& tasks, const ScoringOptions& options) {
  std::exception_ptr failed;
  ScoringOptions guarded = options;
  if (options.on_sample)
    guarded.on_sample = [&](const ordered_json& sample) {
      if (failed) return;
      try {
        options.on_sample(sample);
      } catch (...) {
        failed = std::current_exception();
      }
    };
  std::vector<TaskResult> results;
  for (const PreparedTask& task : tasks) results.push_back(TaskRun(scorer, tokenizer, task, guarded).run());
  if (failed) std::rethrow_exception(failed);
  return results;
}

void check(int64_t max_length, const text::Tokenizer& tokenizer, const std::vector<PreparedTask>& tasks) {
  ModelOfLength model(max_length);
  evaluate(model, tokenizer, tasks, {});
}

}  // namespace colossal::evaluate
