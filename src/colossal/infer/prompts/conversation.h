// A conversation with a model that was trained on chats.
//
//   const auto chat_template = text::ChatTemplate::read("models/Qwen2.5-0.5B-Instruct");
//   infer::Conversation conversation(engine, *saved.tokenizer, chat_template, saved.end_ids, {.system = "Be brief"});
//   conversation.answer("Hello", [](const std::string& text) { std::cout << text << std::flush; return true; });
//
// Each turn is a new request with all messages so far, formatted by the template. The engine finds the blocks of
// earlier turns in its cache, so a turn costs only its new tokens.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "colossal/infer/decoding/schema_cache.h"
#include "colossal/infer/engine.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/tokenizer.h"

namespace colossal::infer {

struct ConversationOptions {
  std::string system{};                           ///< content of the system message; "" = none
  GenerationOptions options{.max_tokens = 1024};  ///< options of each completion; completion i uses seed + i
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();  ///< variables of the template (text::Chat)
};

/// Keeps the messages of a chat and generates the model's replies.
///
/// Communication: the same as Engine. All ranks of a layout must pass the same messages, and `emit` must return the
/// same values on each rank.
class Conversation {
 public:
  /// `engine`, `tokenizer` and `chat_template` must outlive the conversation. Pass the end_ids of run::SavedModel.
  /// Errors ("conversation"): an option of unused(). Errors of SchemaCache.
  Conversation(Engine& engine, const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
               std::vector<int64_t> end_ids, ConversationOptions options);

  /// Adds the user's message `said` and generates the reply. Calls `emit` with each piece of text that can be printed.
  /// Returning false from `emit` ends the reply. Returns how the reply ended.
  /// The engine may have other requests: their events are delivered during this call.
  /// Errors: errors of the template, of Engine::add() (e.g. the conversation no longer fits), of the tokenizer, of
  /// AnswerStream, of `emit` and of the constraint. After an error the messages are the same as before the call.
  FinishReason answer(const std::string& said, const std::function<bool(const std::string&)>& emit);
  /// Deletes all messages and sets the system message; "" = none.
  void begin(const std::string& system);

  /// Returns the names (in JSON) of the generation options that have no effect on a conversation, because it reports
  /// text only.
  static std::vector<std::string> unused() { return {"logprobs", "prompt_logprobs"}; }

  const nlohmann::ordered_json& messages() const { return messages_; }
  /// Returns the number of tokens of the last request and its completion.
  int64_t tokens() const { return tokens_; }

 private:
  std::vector<int64_t> ids() const;
  void add(const char* role, const std::string& content);

  Engine& engine_;
  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate& template_;
  std::vector<int64_t> end_ids_;
  ConversationOptions options_;
  SchemaCache schemas_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  int64_t answers_ = 0, tokens_ = 0;
};

}  // namespace colossal::infer
