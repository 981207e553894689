// Chats as the text that a model was trained on, by the Jinja template of its folder.
//
//   const auto chat_template = text::ChatTemplate::read("models/Qwen2.5-0.5B-Instruct");
//   text::Chat chat;
//   chat.messages = {{{"role", "user"}, {"content", "Hello"}}};
//   chat.add_generation_prompt = true;
//   const text::RenderedChat rendered = chat_template.render(chat);
//   const auto ids = tokenizer->encode(rendered.text);  // "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
//
// The language is jinja2's with what transformers adds to it, and what is rendered is the same, byte for byte:
// docs/reference/chat-templates.md says what is known and how that is proven. Templates are untrusted: they cannot
// change what they are given, and end with an error when they use more than their limits.
#pragma once
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/text/jinja/budget.h"

namespace colossal::text {

namespace jinja {
struct Tree;
}

using TemplateLimits = jinja::Limits;

/// A template that cannot be read, or does not fit what it is given. what() names template, line and what to do.
class TemplateError : public Error {
 public:
  TemplateError(const std::string& name, const jinja::Failure& failure);
  int line() const { return line_; }  ///< of the template, from 1; 0: none
  /// Python's name of the exception that transformers would raise ("UndefinedError"); "raise_exception" where the
  /// template itself refuses; "limit" or "unsupported" where this program does.
  const std::string& kind() const { return kind_; }
  /// The message alone: of raise_exception what the template says.
  const std::string& reason() const { return reason_; }

 private:
  int line_;
  std::string kind_, reason_;
};

/// What a template is given.
struct Chat {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();    ///< a list of objects
  nlohmann::ordered_json tools, documents;                              ///< lists of objects, or null
  bool add_generation_prompt = false;                                   ///< end with what opens the assistant's answer
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();  ///< further ones, enable_thinking for instance
  /// What strftime_now() tells. Without it the function is undefined, and templates that ask for it first write the
  /// date that is in them: the same text every day.
  std::optional<std::tm> now;
  /// Members of messages that are null stay. transformers' apply_chat_template drops them.
  bool keeps_null = false;
  /// Name of the template, if there are several; empty = "tool_use" if there are tools and such a template, else
  /// "default".
  std::string template_name;
};

/// A chat of a JSON object: "messages" and perhaps "tools", "documents", "add_generation_prompt" and
/// "chat_template_kwargs" (variables); or of a list: the messages. Other members are left alone.
/// Errors: Error("chat", ...): not JSON, nested more than 100 deep, or no messages.
Chat parse_chat(std::string_view json);

struct TextSpan {
  size_t begin, end;  ///< bytes [begin, end)
};

struct RenderedChat {
  std::string text;  ///< special tokens included: encode it without adding any
  /// What the assistant says, by the template's `generation` blocks: what training on chats learns. Empty where the
  /// template has none, as most have.
  std::vector<TextSpan> assistant;
};

/// Thread safety: const members may be called from several threads.
class ChatTemplate {
 public:
  /// One template, `name` for messages. `variables`: what it can always use, bos_token for instance.
  /// Errors: TemplateError.
  explicit ChatTemplate(const std::string& source, const std::string& name = "template",
                        nlohmann::ordered_json variables = nlohmann::ordered_json::object(),
                        const TemplateLimits& limits = {});
  /// The templates of a Hugging Face folder: chat_template.jinja and additional_chat_templates/*.jinja; else
  /// `chat_template` of tokenizer_config.json, a text or a list of named ones; else of chat_template.json. Special
  /// tokens are those of tokenizer_config.json, and of special_tokens_map.json where the first has no
  /// added_tokens_decoder, as texts or as {"content": ...}. Of a GGUF file tokenizer.chat_template.
  /// Errors: Error("chat template", ...): no template, or a damaged file; TemplateError.
  static ChatTemplate read(const std::string& folder, const TemplateLimits& limits = {});

  /// Errors: TemplateError; Error("chat template", ...): messages that are no list of objects, no such template.
  /// Cost: a few hundred nanoseconds a step of the template; the limits bound it to seconds.
  RenderedChat render(const Chat& chat) const;

  /// "default", "tool_use", ...
  std::vector<std::string> names() const;

 private:
  struct Template {
    std::string shown_name;
    std::shared_ptr<const jinja::Tree> tree;
  };
  ChatTemplate() = default;
  void add(const std::string& name, const std::string& shown_name, const std::string& source);
  const Template& choose(const Chat& chat) const;

  std::map<std::string, Template> templates_;
  nlohmann::ordered_json variables_ = nlohmann::ordered_json::object();
  std::string where_;
  TemplateLimits limits_;
};

/// A folder has a chat template.
bool has_chat_template(const std::string& folder);

}  // namespace colossal::text
