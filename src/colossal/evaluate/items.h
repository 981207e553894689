// The items of a task: its data with prompts, choices and targets as texts. No model is needed to make them.
//
//   const std::vector<evaluate::Part> parts = evaluate::read_parts(evaluate::read_task("mmlu"), {.data = "eval"});
//   parts[0].items[0].prompt;   // "The following are multiple choice questions (with answers) about ..."
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/evaluate/task.h"
#include "colossal/text/chat_template.h"

namespace colossal::evaluate {

struct DataOptions {
  std::string data;    ///< folder of the data; "" = that of the task's file
  int64_t shots = -1;  ///< solved examples before a prompt; -1 = those of the task
  int64_t limit = 0;   ///< first lines of each file that are used; 0 = all
  /// If set, a prompt is a user message, shots are the turns before it, and the description is the system message. The
  /// object must outlive the call.
  const text::ChatTemplate* chat_template = nullptr;
};

/// One line of data.
struct Item {
  int64_t line;                    ///< number in its file, from 1
  std::string prompt;              ///< all that the model reads: description, shots and prompt; "" for perplexity
  std::vector<std::string> texts;  ///< choices without delimiter; right answers; or the text to predict
  size_t right = 0;                ///< index of the right choice
  std::string counted{};           ///< perplexity: the text whose words and bytes count
};

/// The items of one subject, or of a task without subjects.
struct Part {
  std::string subject;  ///< "" = the task has none
  std::vector<Item> items;
};

/// Reads the data of a task and renders its templates.
/// Errors ("evaluate"): a built-in task without a data folder; a file that does not exist, with its publisher; fewer
/// lines than shots; with file and line a template that fails, choices that are no list of at least two texts, a target
/// that is no choice. Errors of read_records(); ("template") a template that cannot be parsed.
std::vector<Part> read_parts(const Task& task, const DataOptions& options);

}  // namespace colossal::evaluate
