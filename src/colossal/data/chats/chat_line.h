// One record of chats, instructions or preferences, in any of the forms that users have.
//
//   const auto record = nlohmann::ordered_json::parse(R"({"prompt": "2+3=", "completion": "5"})");
//   const data::ChatLine line = data::chat_line_of(record, "sums.jsonl:1");
//   line.kind, line.dialogues[0].prompt;                              // ChatKind::Answer, "2+3="
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/json.h"

namespace colossal::data {

/// The kinds of records.
enum class ChatKind {
  Answer,   ///< a chat, or a prompt with its completion
  Text,     ///< a text without a prompt
  Pair,     ///< a prompt with two completions, of which people prefer the first
  Rated,    ///< a prompt with a completion that is desirable or not (KTO)
  Ranking,  ///< a prompt with two or more completions, the best first
  Prompt,   ///< a prompt that a model answers (prompt_line_of())
};

/// The use of a message in training.
enum class MessageUse {
  Context,  ///< it is read only: no message of the assistant, or a part of a prompt
  Answer,   ///< the assistant learns it
  Skipped,  ///< a message of the assistant that the record excludes: `weight` 0 or `train` false
};

/// A prompt and its completion: messages, which a chat template renders, or two plain texts.
struct Dialogue {
  /// Objects with "role" ("system", "user", "assistant" or "tool") and "content", and with the other members of the
  /// record's messages, such as "tool_calls". Empty = plain texts.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  std::vector<MessageUse> uses{};  ///< the use of each message
  std::string prompt{}, completion{};

  bool has_messages() const { return !messages.empty(); }
};

/// One record.
struct ChatLine {
  ChatKind kind = ChatKind::Answer;
  /// One; the chosen and the rejected one of a pair; those of a ranking, the best first
  std::vector<Dialogue> dialogues{};
  /// Variables of the template in addition to messages: lists of objects, or null; `variables` is an object.
  nlohmann::ordered_json tools{}, documents{}, variables = nlohmann::ordered_json::object();
  double margin = 0;         ///< number by which a pair's chosen answer should be better
  bool is_desirable = true;  ///< label of a ChatKind::Rated record
  std::string place{};       ///< `path:line`, for messages
};

/// Returns the record that `record` describes. Its members tell its form, in this order (null = no such member):
/// - `chosen` and `rejected`: a pair. The prompt is `prompt` or ColossalChat's `context`, or else what both begin with:
///   messages, or characters of texts, without a space at their end.
/// - `prompt`, `completion` and `label`: a rated answer. `label` is true or false.
/// - `prompt` and `completion`: each a text, a message or a list of messages. Only messages of the completion are
///   trained. A text next to messages is a message of the user or of the assistant.
/// - `prompt` and `answers`, a list of completions as above: a ranking, the best first.
/// - `messages`, ShareGPT's `conversations`, or a list alone: a chat.
/// - `instruction`, `output` and an optional `input`: Alpaca. The prompt is that of Stanford Alpaca.
/// - `text`: a plain text.
///
/// A message has `role` and `content`, or `from` (human = user, gpt = assistant) and `value` or `content`. Content is a
/// text or a list of texts ({"type": "text", "text": ...}), which are joined. `weight` (0 or 1) or `train` (a boolean)
/// of a message of the assistant says whether it is trained. A text that is JSON of a list of messages is read as this
/// list, because a column of Parquet holds texts. `tools`, `documents` and `chat_template_kwargs` go to the template.
/// Errors ("data"), beginning with `place`: another form; an unknown role (its name); a chat without an answer; an
///         empty answer; no content, unless there are tool calls; equal answers of a pair or a ranking; a ranking of
///         one answer; a margin that is no number, or of a ranking; a label that is no boolean.
ChatLine chat_line_of(const nlohmann::ordered_json& record, const std::string& place);

/// Returns the record as ChatKind::Prompt: a dialogue without a completion, whose messages are all MessageUse::Context.
/// `prompt` is a text, a message or a list of messages, as next to `completion`. A text is a message of the user if
/// the record has a `completion` of messages, as chat_line_of() reads it, else a plain text.
/// `tools`, `documents` and `chat_template_kwargs` go to the template, and all other members are ignored.
/// Errors ("data"), beginning with `place`: no object; no `prompt`, or of another form; an empty list; an unknown role;
///         a message without content and tool calls.
ChatLine prompt_line_of(const nlohmann::ordered_json& record, const std::string& place);

}  // namespace colossal::data
