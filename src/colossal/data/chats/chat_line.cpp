#include "colossal/data/chats/chat_line.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/data/streams/json_lines.h"

namespace colossal::data {
namespace {

using nlohmann::ordered_json;

// train.py of https://github.com/tatsu-lab/stanford_alpaca, PROMPT_DICT.
constexpr char kAlpaca[] =
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n";
constexpr char kAlpacaWithInput[] =
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request.\n\n### Instruction:\n";
constexpr char kAlpacaInput[] = "\n\n### Input:\n", kAlpacaResponse[] = "\n\n### Response:";

constexpr char kHumanTurn[] = "\n\nHuman:", kAssistantTurn[] = "\n\nAssistant:";  // in HH-RLHF's dialogues

constexpr char kForms[] =
    "a record must have messages, conversations, prompt and completion, prompt and answers, instruction and output, "
    "text, or chosen and rejected (docs/reference/data.md)";

/// A reader of the members of one record.
class Members {
 public:
  Members(const ordered_json& members, const std::string& place) : members_(members), place_(place) {}

  template <class... Parts>
  void check(bool ok, const Parts&... parts) const {
    require(ok, "data", place_, ": ", parts...);
  }

  /// Returns a member; null = there is none, or it is null.
  const ordered_json* find(const char* name) const {
    if (!members_.is_object()) return nullptr;
    const auto found = members_.find(name);
    return found == members_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has(const char* name) const { return find(name) != nullptr; }

  std::string text(const char* name) const {
    const ordered_json* value = find(name);
    check(value != nullptr && value->is_string(), name, " must be a text: got ",
          value == nullptr ? "none" : value->type_name());
    return value->get<std::string>();
  }

  /// Returns the JSON that a text holds; null if it is not a list of objects.
  static ordered_json list_in(const ordered_json& value) {
    const auto* text = value.get_ptr<const std::string*>();
    if (text == nullptr || !text->starts_with('[') || !is_json(*text, true)) return nullptr;
    ordered_json list = parse_ordered_json(*text, "a list in a text", "data");
    const auto is_object = [](const ordered_json& item) { return item.is_object(); };
    return !list.empty() && std::all_of(list.begin(), list.end(), is_object) ? list : ordered_json();
  }

  /// Returns the list of objects of a member, which may be in a text; null = there is no such member.
  ordered_json list(const char* name) const {
    const ordered_json* value = find(name);
    if (value == nullptr) return nullptr;
    ordered_json list = value->is_array() ? *value : list_in(*value);
    check(list.is_array(), name, " must be a list of objects: got ", value->type_name());
    return list;
  }

  /// Returns the messages of a member: a list, a message, or a list in a text; an empty list = it is a plain text.
  ordered_json messages(const char* name) const {
    const ordered_json& value = *find(name);
    if (value.is_array()) return value;
    if (value.is_object()) return ordered_json::array({value});
    check(value.is_string(), name, " must be a text, a message or a list of messages: got ", value.type_name());
    ordered_json list = list_in(value);
    const auto has_role = [](const ordered_json& item) { return item.contains("role") || item.contains("from"); };
    return list.is_array() && std::all_of(list.begin(), list.end(), has_role) ? list : ordered_json::array();
  }

  ordered_json role_message(const char* role, const char* name) const {
    return {{"role", role}, {"content", text(name)}};
  }

  const ordered_json& all() const { return members_; }
  const std::string& place() const { return place_; }

 private:
  const ordered_json& members_;
  const std::string& place_;
};

std::string role_of(const ordered_json& message, size_t number, const Members& record) {
  const auto member = [&](const char* name) { return message.contains(name) && !message[name].is_null(); };
  const char* name = member("role") ? "role" : "from";
  record.check(message.is_object() && member(name) && message[name].is_string(), "message ", number,
               " must be an object with a role and content");
  const auto& role = message[name].get_ref<const std::string&>();
  if (role == "human") return "user";
  if (role == "gpt") return "assistant";
  constexpr std::array kRoles = {"system", "user", "assistant", "tool"};
  record.check(std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end(), "message ", number,
               ": roles are system, user (human), assistant (gpt) and tool: got ", printable(role));
  return role;
}

/// Returns the content of a message as a text, or null if a message with tool calls has none.
ordered_json content_of(const ordered_json& message, size_t number, const Members& record) {
  const char* name = message.contains("content") || !message.contains("value") ? "content" : "value";
  const auto found = message.find(name);
  const bool calls =
      message.contains("tool_calls") && message["tool_calls"].is_array() && !message["tool_calls"].empty();
  if (found == message.end() || found->is_null()) {
    record.check(calls, "message ", number, " has no content and no tool_calls");
    return nullptr;
  }
  if (found->is_string()) return *found;
  record.check(found->is_array(), "message ", number, ": content must be a text: got ", found->type_name());
  std::string text;
  for (const ordered_json& part : *found) {
    const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string();
    record.check(is_text, "message ", number, ": content may have parts of text only: got ", printable(part.dump()));
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

/// Returns whether a message of the assistant is trained, by its members `weight` and `train`.
bool is_trained(const ordered_json& message, size_t number, const Members& record) {
  bool is_trained = true;
  if (const auto weight = message.find("weight"); weight != message.end() && !weight->is_null()) {
    const bool is_weight = weight->is_number() && (*weight == 0 || *weight == 1);
    record.check(is_weight, "message ", number, ": weight must be 0 or 1: got ", printable(weight->dump()));
    is_trained = *weight == 1;
  }
  if (const auto train = message.find("train"); train != message.end() && !train->is_null()) {
    record.check(train->is_boolean(), "message ", number, ": train must be true or false: got ",
                 printable(train->dump()));
    is_trained = is_trained && train->get<bool>();
  }
  return is_trained;
}

/// Appends messages to a dialogue. Those of the assistant are answers unless `are_context` is true.
void add_messages(const ordered_json& messages, bool are_context, const Members& record, Dialogue& dialogue) {
  for (const ordered_json& message : messages) {
    const size_t number = dialogue.messages.size() + 1;
    const std::string role = role_of(message, number, record);
    ordered_json own = {{"role", role}};
    ordered_json content = content_of(message, number, record);
    const bool is_answer = role == "assistant" && !are_context;
    record.check(!is_answer || !content.is_string() || !is_blank(content.get_ref<const std::string&>()) ||
                     (message.contains("tool_calls") && !message["tool_calls"].empty()),
                 "message ", number, ": an answer must not be empty");
    own["content"] = std::move(content);
    for (const auto& [name, value] : message.items())
      if (name != "from" && name != "value" && name != "weight" && name != "train" && !own.contains(name))
        own[name] = value;
    dialogue.messages.push_back(std::move(own));
    const bool trained = !is_answer || is_trained(message, number, record);
    dialogue.uses.push_back(!is_answer ? MessageUse::Context : trained ? MessageUse::Answer : MessageUse::Skipped);
  }
}

void require_answer(const Dialogue& dialogue, const Members& record, const char* what) {
  const bool has_answer = std::any_of(dialogue.uses.begin(), dialogue.uses.end(),
                                      [](MessageUse use) { return use != MessageUse::Context; });
  record.check(has_answer, what, " has no answer: it needs a message of the role assistant (gpt)");
}

Dialogue text_dialogue(std::string prompt, std::string completion, const char* name, const Members& record) {
  record.check(!is_blank(completion), name, " must not be empty");
  Dialogue dialogue;
  dialogue.prompt = std::move(prompt);
  dialogue.completion = std::move(completion);
  return dialogue;
}

/// Returns the dialogue of a prompt, a list of messages, and of the completion in member `name`.
Dialogue message_dialogue(const ordered_json& prompt, const char* name, const Members& record) {
  Dialogue dialogue;
  add_messages(prompt, true, record, dialogue);
  const ordered_json completion = record.messages(name);
  add_messages(completion.empty() ? ordered_json::array({record.role_message("assistant", name)}) : completion, false,
               record, dialogue);
  require_answer(dialogue, record, name);
  return dialogue;
}

bool is_list(const Members& record, const char* name) { return record.find(name)->is_array(); }

/// Returns the messages of a prompt; an empty list if it is a plain text, or an empty list itself.
ordered_json prompt_messages(const Members& record) {
  ordered_json prompt = record.messages("prompt");
  const bool is_text = prompt.empty() && !is_list(record, "prompt");
  if (is_text && record.has("completion") && !record.messages("completion").empty())
    prompt.push_back(record.role_message("user", "prompt"));
  return prompt;
}

Dialogue completed_dialogue(const Members& record) {
  const ordered_json prompt = prompt_messages(record);
  if (prompt.empty() && !is_list(record, "prompt"))
    return text_dialogue(record.text("prompt"), record.text("completion"), "completion", record);
  return message_dialogue(prompt, "completion", record);
}

Dialogue prompt_dialogue(const Members& record) {
  Dialogue dialogue;
  const ordered_json prompt = prompt_messages(record);
  record.check(!prompt.empty() || !is_list(record, "prompt"), "prompt must have a message: got an empty list");
  if (prompt.empty()) dialogue.prompt = record.text("prompt");
  add_messages(prompt, true, record, dialogue);
  return dialogue;
}

Dialogue chat_dialogue(const ordered_json& messages, const Members& record) {
  Dialogue dialogue;
  add_messages(messages, false, record, dialogue);
  require_answer(dialogue, record, "a chat");
  return dialogue;
}

Dialogue alpaca_dialogue(const Members& record) {
  const std::string instruction = record.text("instruction"), input = record.has("input") ? record.text("input") : "";
  const std::string prompt = input.empty() ? kAlpaca + instruction + kAlpacaResponse
                                           : kAlpacaWithInput + instruction + kAlpacaInput + input + kAlpacaResponse;
  return text_dialogue(prompt, record.text("output"), "output", record);
}

/// Returns the number of bytes that are the prompt of two texts without one.
size_t common_prompt(const std::string& chosen, const std::string& rejected) {
  const size_t shorter = std::min(chosen.size(), rejected.size());
  size_t end = static_cast<size_t>(
      std::mismatch(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(shorter), rejected.begin()).first -
      chosen.begin());
  if (end == shorter) {  // one text begins the other, so the last turn of a dialogue is the answer
    const size_t turn = chosen.substr(0, end).rfind(kAssistantTurn);
    if (chosen.starts_with(kHumanTurn) && turn != std::string::npos) return turn + std::size(kAssistantTurn) - 1;
  }
  while (end > 0 && end < chosen.size() && (static_cast<unsigned char>(chosen[end]) & 0xC0) == 0x80) --end;
  return end > 0 && chosen[end - 1] == ' ' ? end - 1 : end;
}

std::vector<Dialogue> text_pair(const Members& record) {
  std::string chosen = record.text("chosen"), rejected = record.text("rejected"), prompt;
  record.check(chosen != rejected, "chosen and rejected must differ: got the same text twice");
  if (record.has("prompt")) {
    prompt = record.text("prompt");
  } else {
    const size_t end = common_prompt(chosen, rejected);
    prompt = chosen.substr(0, end);
    chosen.erase(0, end);
    rejected.erase(0, end);
  }
  return {text_dialogue(prompt, std::move(chosen), "chosen", record),
          text_dialogue(prompt, std::move(rejected), "rejected", record)};
}

std::vector<Dialogue> message_pair(const ordered_json& chosen, const ordered_json& rejected, const Members& record) {
  const char* name = record.has("context") ? "context" : "prompt";
  ordered_json prompt = record.has(name) ? record.messages(name) : ordered_json::array();
  size_t common = 0;
  if (prompt.empty()) {  // both lists hold the prompt; a text next to them repeats it
    while (common < std::min(chosen.size(), rejected.size()) && chosen[common] == rejected[common]) ++common;
    if (common == 0 && record.has(name)) prompt.push_back(record.role_message("user", name));
  }
  std::vector<Dialogue> pair(2);
  for (size_t i = 0; i < 2; ++i) {
    const ordered_json& all = i == 0 ? chosen : rejected;
    const auto border = all.begin() + static_cast<std::ptrdiff_t>(common);
    add_messages(prompt, true, record, pair[i]);
    add_messages(ordered_json(all.begin(), border), true, record, pair[i]);
    add_messages(ordered_json(border, all.end()), false, record, pair[i]);
  }
  record.check(pair[0].messages != pair[1].messages, "chosen and rejected must differ: got the same messages twice");
  require_answer(pair[0], record, "chosen");
  require_answer(pair[1], record, "rejected");
  return pair;
}

std::vector<Dialogue> pair_of(const Members& record) {
  ordered_json answers[2];
  const char* names[] = {"chosen", "rejected"};
  const bool has_prompt = record.has("context") || (record.has("prompt") && !record.messages("prompt").empty());
  bool are_texts = !has_prompt;
  for (size_t i = 0; i < 2; ++i) {
    answers[i] = record.messages(names[i]);
    are_texts = are_texts && answers[i].empty();
  }
  if (are_texts) return text_pair(record);
  for (size_t i = 0; i < 2; ++i)
    if (answers[i].empty()) answers[i].push_back(record.role_message("assistant", names[i]));
  return message_pair(answers[0], answers[1], record);
}

std::vector<Dialogue> ranking_of(const Members& record) {
  const ordered_json& answers = *record.find("answers");
  record.check(answers.is_array() && answers.size() > 1, "answers must be a list of two or more, the best first: got ",
               answers.is_array() ? concat(answers.size()) : answers.type_name());
  std::vector<Dialogue> ranking;
  const auto is_before = [&](size_t a, size_t b) {
    const int order = ranking[a].completion.compare(ranking[b].completion);
    return order != 0 ? order < 0 : ranking[a].messages < ranking[b].messages;
  };
  std::set<size_t, decltype(is_before)> different(is_before);
  for (const ordered_json& answer : answers) {
    const std::string place = concat(record.place(), ": answer ", ranking.size() + 1);
    const ordered_json own = {{"prompt", *record.find("prompt")}, {"completion", answer}};
    ranking.push_back(completed_dialogue(Members(own, place)));
    const auto [same, is_new] = different.insert(ranking.size() - 1);
    record.check(is_new, "answers must differ: got the same for answers ", *same + 1, " and ", ranking.size());
  }
  return ranking;
}

std::string member_names(const Members& record) {
  std::vector<std::string> names;
  for (const auto& member : record.all().items()) names.push_back(printable(member.key()));
  return names.empty() ? "an empty object" : listed(names);
}

/// Reads the members for the template.
void take_variables(const Members& record, ChatLine& line) {
  line.tools = record.list("tools");
  line.documents = record.list("documents");
  if (const ordered_json* variables = record.find("chat_template_kwargs")) {
    record.check(variables->is_object(), "chat_template_kwargs must be an object: got ", variables->type_name());
    line.variables = *variables;
  }
}

void take_dialogues(const Members& record, ChatLine& line) {
  const auto only = [&](ChatKind kind, Dialogue dialogue) {
    line.kind = kind;
    line.dialogues.push_back(std::move(dialogue));
  };
  if (record.all().is_array()) return only(ChatKind::Answer, chat_dialogue(record.all(), record));
  record.check(record.all().is_object(), kForms, ": got ", record.all().type_name());
  if (record.has("chosen") && record.has("rejected")) {
    line.kind = ChatKind::Pair;
    line.dialogues = pair_of(record);
  } else if (record.has("prompt") && record.has("completion")) {
    only(record.all().contains("label") ? ChatKind::Rated : ChatKind::Answer, completed_dialogue(record));
  } else if (record.has("prompt") && record.has("answers")) {
    line.kind = ChatKind::Ranking;
    line.dialogues = ranking_of(record);
  } else if (record.has("messages") || record.has("conversations")) {
    only(ChatKind::Answer, chat_dialogue(record.list(record.has("messages") ? "messages" : "conversations"), record));
  } else if (record.has("instruction") && record.has("output")) {
    only(ChatKind::Answer, alpaca_dialogue(record));
  } else {
    record.check(record.has("text"), kForms, ": got ", member_names(record));
    only(ChatKind::Text, text_dialogue("", record.text("text"), "text", record));
  }
}

}  // namespace

ChatLine chat_line_of(const ordered_json& members, const std::string& place) {
  const Members record(members, place);
  ChatLine line{.place = place};
  take_dialogues(record, line);
  take_variables(record, line);
  if (line.kind == ChatKind::Rated) {
    const ordered_json& label = members["label"];
    record.check(label.is_boolean(), "a label must be true or false: got ", printable(label.dump()));
    line.is_desirable = label.get<bool>();
  }
  const bool is_compared = line.kind == ChatKind::Pair || line.kind == ChatKind::Ranking;
  if (const ordered_json* margin = record.find("margin"); margin != nullptr && is_compared) {
    record.check(line.kind == ChatKind::Pair, "margin must be of a pair, because a ranking has several: got one of ",
                 line.dialogues.size(), " answers; leave it out");
    record.check(margin->is_number(), "margin must be a number: got ", printable(margin->dump()));
    line.margin = margin->get<double>();
  }
  return line;
}

ChatLine prompt_line_of(const ordered_json& members, const std::string& place) {
  const Members record(members, place);
  ChatLine line{.kind = ChatKind::Prompt, .place = place};
  constexpr char kNeeds[] =
      "a prompt must be an object with the member prompt, a text, a message or a list of messages";
  constexpr char kRemedy[] = "; put everything before the answer into prompt (docs/reference/data.md)";
  record.check(members.is_object(), kNeeds, ": got ", members.type_name(), kRemedy);
  record.check(record.has("prompt"), kNeeds, ": got ", member_names(record), kRemedy);
  line.dialogues.push_back(prompt_dialogue(record));
  take_variables(record, line);
  return line;
}

}  // namespace colossal::data
