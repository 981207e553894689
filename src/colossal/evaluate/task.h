// Tasks: tables of prompts, targets and metrics over a file of data. A further task is one TOML file.
//
//   name = "sort"
//   kind = "generate"
//   data = "test.jsonl"
//   prompt = "{{prompt}}"
//   target = "{{answer}}"
//   until = ["\n"]
//   metric = "exact"
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/fields.h"

namespace colossal::evaluate {

/// The keys of a task. Templates are Jinja over the members of a line (text/template.h), and `subject` and
/// `subject_name` where there are subjects.
struct Task {
  std::string name;
  std::string kind = "generate";
  std::string data;                  ///< file inside the data folder; a template over `subject`
  std::string prompt;                ///< template
  std::string target;                ///< template; several right answers if its value is a list
  std::vector<std::string> choices;  ///< templates; one alone yields the list of choices
  std::string delimiter = " ";       ///< between a prompt and a choice, or the answer of a shot
  std::string counted;               ///< template of the text whose words and bytes count; "" = target
  std::vector<std::string> until;
  int64_t max_tokens = 256;
  std::vector<std::string> metric;  ///< empty = all metrics of `choices` and `perplexity`
  std::string pattern;
  int64_t shots = 0;
  std::string shots_data;          ///< like `data`; "" = the other lines of `data`
  std::string separator = "\n\n";  ///< text after the description and after each shot
  std::string description;         ///< template over `subject` and `subject_name`, before everything
  std::vector<std::string> columns;
  std::string publisher;
  std::map<std::string, std::string> subjects;  ///< names by subjects; empty = the task has none
  std::string where;                            ///< file of the task, for messages

  void fields(Fields& f);
  bool is_choices() const { return kind == "choices"; }
  bool is_perplexity() const { return kind == "perplexity"; }
};

/// Parses a task. `where` is its file, for messages.
/// Errors ("config", "evaluate"): text that is not TOML; an unknown key, with the nearest name; a value of another
/// type; no name, data, target or metric; a key that has no effect on the kind; an unknown metric; a pattern that does
/// not compile.
Task parse_task(const std::string& toml, const std::string& where);

/// Reads the task of a name: a path that ends in .toml, a built-in task, or a built-in task with one of its subjects,
/// such as "mmlu_anatomy". Errors: those of parse_task(); ("evaluate") an unknown name, with the nearest one; ("file")
/// a file that cannot be read.
Task read_task(const std::string& name);

/// Returns the names of the built-in tasks.
std::vector<std::string> built_in_tasks();

}  // namespace colossal::evaluate
