#include "colossal/evaluate/task.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/file_name.h"
#include "colossal/base/join.h"
#include "colossal/base/suggest.h"
#include "colossal/evaluate/built_in_texts.h"
#include "colossal/evaluate/metrics.h"
#include "colossal/text/tokenizers/regex.h"

namespace colossal::evaluate {
namespace {

constexpr int64_t kMaxTask = int64_t{16} << 20;  // bytes

struct BuiltInTask {
  const char* name;
  std::string_view (*text)();
};
constexpr BuiltInTask kBuiltIn[] = {
    {"arc_challenge", arc_challenge}, {"arc_easy", arc_easy}, {"ceval", ceval}, {"cmmlu", cmmlu}, {"gsm8k", gsm8k},
    {"hellaswag", hellaswag},         {"mmlu", mmlu}};

/// The table [subjects], whose keys are not known beforehand.
struct Subjects {
  ConfigDocument keys;
  void fields(Fields& f) { f.rest(keys); }
};

/// A task with what only its file has.
struct TaskFile : Task {
  Subjects named;
  void fields(Fields& f) {
    Task::fields(f);
    f.section("subjects", named, "names of subjects, each with files of its own");
  }
};

/// Lets a text stand for a list of one text.
void make_lists(ConfigDocument& document) {
  for (const char* key : {"choices", "until", "metric"}) {
    const auto found = document.values().find(key);
    if (found == document.values().end()) continue;
    ConfigValue value = found->second;
    if (const auto* text = std::get_if<std::string>(&value.value)) {
      value.value = ConfigValue::List{*text};
      document.put(key, value);
    }
  }
}

/// Refuses unknown keys here, where the message can list those of tasks.
void check_keys(const ConfigDocument& document) {
  std::vector<std::string> known;
  for (const KeyHelp& key : describe_config(Task())) known.push_back(key.key);
  known.emplace_back("subjects");
  for (const auto& [key, value] : document.values())
    require(key.starts_with("subjects.") || std::find(known.begin(), known.end(), key) != known.end(), "evaluate",
            value.where, ": unknown key `", key, "`", did_you_mean_key(key, known),
            "; a task has these: ", join(known));
}

/// Refuses keys that the kind of the task does not use.
void check_use(const Task& task) {
  const auto refuse = [&](bool is_used, bool is_given, const char* key, const char* what) {
    require(is_used || !is_given, "evaluate", task.where, ": `", key, "` has no effect on a task of kind ", task.kind,
            what, "; leave it out");
  };
  const Task defaults;
  const bool generates = !task.is_choices() && !task.is_perplexity();
  const bool has_regex = std::count(task.metric.begin(), task.metric.end(), "regex") > 0;
  refuse(task.is_choices(), !task.choices.empty(), "choices", "");
  refuse(generates, !task.until.empty(), "until", "");
  refuse(generates, task.max_tokens != defaults.max_tokens, "max_tokens", "");
  refuse(has_regex, !task.pattern.empty(), "pattern", " without the metric regex");
  refuse(task.is_perplexity(), !task.counted.empty(), "counted", "");
  refuse(!task.is_perplexity(), !task.prompt.empty(), "prompt", ", whose text is `target`");
  refuse(!task.is_perplexity(), task.shots > 0, "shots", "");
  require(has_regex <= !task.pattern.empty(), "evaluate", task.where, ": the metric regex needs a `pattern`: got none");
  if (has_regex) text::Regex(task.pattern, text::Dialect::Rust);
}

void check_metrics(Task& task) {
  const std::vector<std::string>& known = task.is_choices()      ? choice_metric_names()
                                          : task.is_perplexity() ? perplexity_metric_names()
                                                                 : answer_metric_names();
  const bool has_default = task.is_choices() || task.is_perplexity();
  if (task.metric.empty() && has_default) task.metric = known;
  require(!task.metric.empty(), "evaluate", task.where,
          ": a task that generates must have a `metric`: got none; choose ", "from ", join(known));
  for (const std::string& metric : task.metric)
    require(std::find(known.begin(), known.end(), metric) != known.end(), "evaluate", task.where, ": a metric of kind ",
            task.kind, " must be one of ", join(known), ": got ", metric, did_you_mean(metric, known));
}

}  // namespace

void Task::fields(Fields& f) {
  f.text("name", name, "name of the task in results");
  f.choice("kind", kind, {"choices", "generate", "perplexity"}, "what the model does");
  f.text("data", data, "file inside the data folder: JSON lines, Parquet or CSV");
  f.text("prompt", prompt, "template of the prompt");
  f.text("target", target, "template of the right answer, of the right choice or its index, or of the text to predict");
  f.texts("choices", choices, "template of the list of choices, or a template for each");
  f.text("delimiter", delimiter, "text between a prompt and a choice or the answer of a shot");
  f.text("counted", counted, "template of the text whose words and bytes count; empty = target");
  f.texts("until", until, "strings that end an answer and are not part of it");
  f.integer("max_tokens", max_tokens, "tokens", "maximum length of an answer", 1);
  f.texts("metric", metric, "metrics of an item, one or several");
  f.text("pattern", pattern, "regular expression of the metric regex");
  f.integer("shots", shots, "lines", "solved examples before the prompt: the first of shots_data", 0, 1000);
  f.text("shots_data", shots_data, "file of the shots; empty = the other lines of data");
  f.text("separator", separator, "text after each shot");
  f.text("description", description, "template of the text before shots and prompt; a system message in a chat");
  f.texts("columns", columns, "names of the columns of a CSV file without a header");
  f.text("publisher", publisher, "where the data come from, for messages");
}

Task parse_task(const std::string& toml, const std::string& where) {
  ConfigDocument document = ConfigDocument::parse(toml, where);
  make_lists(document);
  check_keys(document);
  TaskFile file;
  document.read(file);
  for (const auto& [key, value] : file.named.keys.values()) {
    const auto* text = std::get_if<std::string>(&value.value);
    require(text != nullptr, "evaluate", value.where, ": `", key, "` must be the name of a subject in quotes");
    file.subjects[key.substr(key.find('.') + 1)] = *text;
  }
  Task task = std::move(file);
  task.where = where;
  const std::pair<const char*, bool> needed[] = {{"name", task.name.empty()},
                                                 {"data", task.data.empty()},
                                                 {"target", task.target.empty()},
                                                 {"prompt", task.prompt.empty() && !task.is_perplexity()},
                                                 {"choices", task.choices.empty() && task.is_choices()}};
  for (const auto& [key, is_missing] : needed)
    require(!is_missing, "evaluate", where, ": a task of kind ", task.kind, " must have a `", key, "`: got none");
  check_metrics(task);
  check_use(task);
  return task;
}

std::vector<std::string> built_in_tasks() {
  std::vector<std::string> names;
  for (const BuiltInTask& task : kBuiltIn) names.emplace_back(task.name);
  return names;
}

Task read_task(const std::string& name) {
  if (has_ending(name, ".toml")) return parse_task(read_file(name, kMaxTask), name);
  for (const BuiltInTask& built_in : kBuiltIn) {
    const std::string prefix = concat(built_in.name, "_");
    if (name != built_in.name && !name.starts_with(prefix)) continue;
    Task task = parse_task(std::string(built_in.text()), concat("task ", built_in.name));
    if (name == built_in.name) return task;
    const auto subject = task.subjects.find(name.substr(prefix.size()));
    if (subject == task.subjects.end()) continue;
    task.name = name;
    task.subjects = {*subject};
    return task;
  }
  throw Error("evaluate", concat("unknown task ", name, did_you_mean(name, built_in_tasks()),
                                 "; name a file that ends in .toml, or one of ", join(built_in_tasks())));
}

}  // namespace colossal::evaluate
