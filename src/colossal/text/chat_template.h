// Chats as the text that a model was trained on, by the Jinja template of its folder.
//
//   const auto chat_template = text::ChatTemplate::read("models/Qwen2.5-0.5B-Instruct");
//   text::Chat chat;
//   chat.messages = {{{"role", "user"}, {"content", "Hello"}}};
//   chat.add_generation_prompt = true;
//   const text::RenderedChat rendered = chat_template.render(chat);
//   const auto ids = tokenizer->encode(rendered.text);  // "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
//
// The language is jinja2's with the additions of transformers, and renders the same text, byte for byte. What is
// supported and how that is tested: docs/reference/chat-templates.md. Templates are untrusted: they cannot change their
// input, and end with an error if they exceed their limits.
#pragma once
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/template_limits.h"

namespace colossal::text {

namespace jinja {
struct Failure;
struct Tree;
}  // namespace jinja

/// An error of a template: it cannot be parsed, or does not fit its input. what() names the template, the line and the
/// fix.
class TemplateError : public Error {
 public:
  TemplateError(const std::string& name, const jinja::Failure& failure);
  int line() const { return line_; }  ///< line of the template, from 1; 0 = none
  /// Returns Python's name of the exception that transformers would raise ("UndefinedError"). Returns "raise_exception"
  /// if the template itself refuses its input, and "limit" or "unsupported" if this program does.
  const std::string& kind() const { return kind_; }
  /// Returns the message alone; for raise_exception, the text that the template passed.
  const std::string& reason() const { return reason_; }
  /// Returns message() with "the chat template" in place of the template's name, which may be a path.
  const std::string& nameless_message() const { return nameless_message_; }

 private:
  int line_;
  std::string kind_, reason_, nameless_message_;
};

/// The input of a template.
struct Chat {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();    ///< a list of objects
  nlohmann::ordered_json tools, documents;                              ///< lists of objects, or null
  bool add_generation_prompt = false;                                   ///< append the opening of the assistant's
                                                                        ///< reply, so that the model continues it
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();  ///< further variables, e.g. enable_thinking
  /// The time that strftime_now() formats. If it is not set, the function is undefined. Templates that test for the
  /// function first then write the date that they contain, which gives the same text every day.
  std::optional<std::tm> now;
  /// Keep members of messages that are null. transformers' apply_chat_template drops them.
  bool keeps_null = false;
  /// Name of the template, if the folder has several. Empty = "tool_use" if there are tools and such a template, else
  /// "default".
  std::string template_name;
};

/// Returns the chat that a JSON text describes. An object has "messages" and optionally "tools", "documents",
/// "add_generation_prompt" and "chat_template_kwargs" (variables); other members are ignored. A list is the messages.
/// Errors: Error("chat", ...) if the text is not JSON, is nested more than 100 levels deep, or has no messages.
Chat parse_chat(std::string_view json);

/// A range of bytes in a rendered text.
struct TextSpan {
  size_t begin, end;  ///< bytes [begin, end)
};

/// The output of a template.
struct RenderedChat {
  std::string text;  ///< includes special tokens: encode it without adding any
  /// Parts of `text` that the assistant writes, marked by `generation` blocks of the template; training on chats learns
  /// these. Empty if the template has no such block, as is common.
  std::vector<TextSpan> assistant;
};

/// The chat templates of a model. Thread safety: const members may be called from several threads.
class ChatTemplate {
 public:
  /// Parses a single template; `name` appears in messages. `variables` are defined in every rendering, e.g. bos_token.
  /// Errors: TemplateError.
  explicit ChatTemplate(const std::string& source, const std::string& name = "template",
                        nlohmann::ordered_json variables = nlohmann::ordered_json::object(),
                        const TemplateLimits& limits = {});
  /// Reads the templates of a Hugging Face folder or of a GGUF file. In a folder the first of these counts:
  /// - chat_template.jinja, with additional_chat_templates/*.jinja;
  /// - `chat_template` in tokenizer_config.json, a text or a list of named templates;
  /// - `chat_template` in chat_template.json.
  ///
  /// Special tokens come from tokenizer_config.json. If that file has no added_tokens_decoder, they also come from
  /// special_tokens_map.json. They are texts or {"content": ...}. In a GGUF file the template is
  /// tokenizer.chat_template.
  /// Errors: Error("chat template", ...) if there is no template or a file is damaged; TemplateError.
  static ChatTemplate read(const std::string& folder, const TemplateLimits& limits = {});

  /// Parses the Jinja file `file`; if it is empty, reads the templates of the first of `folders` that has some, or
  /// returns nothing if none has. `folders` are Hugging Face folders, files in one, or GGUF files, e.g. the folder of
  /// an adapter and then that of its model; "" and "bytes" are passed over.
  /// Special tokens come from the folder of the template, with `file` from the first one, as in read(). If that folder
  /// defines none, they come from the next one that does; otherwise they are undefined.
  /// Errors: the same as read(), except for folders without a template; Error("file", ...) if the file cannot be read.
  static std::optional<ChatTemplate> find(const std::string& file, const std::vector<std::string>& folders,
                                          const TemplateLimits& limits = {});

  /// Renders a chat.
  /// Errors: TemplateError; Error("chat template", ...) if `messages` is not a list of objects or no template has the
  /// name.
  /// Cost: a few hundred nanoseconds per step of the template; the limits bound the total to seconds.
  RenderedChat render(const Chat& chat) const;

  /// Returns true if the source of the template that renders `chat` contains `word`, not as a part of a longer name.
  /// Errors: Error("chat template", ...) if no template has the name.
  bool mentions(const Chat& chat, std::string_view word) const;

  /// Returns the names of the templates: "default", "tool_use", ...
  std::vector<std::string> names() const;

  /// Returns the source of the template "default"; empty = there is none of that name.
  std::string source() const;

  /// Returns a checksum of the templates, with their names, and of the variables that are defined in every rendering.
  std::string checksum() const;

 private:
  struct Template {
    std::string shown_name;
    std::shared_ptr<const jinja::Tree> tree;
    std::string source;
  };
  ChatTemplate() = default;
  void add(const std::string& name, const std::string& shown_name, const std::string& source);
  const Template& choose(const Chat& chat) const;

  std::map<std::string, Template> templates_;
  nlohmann::ordered_json variables_ = nlohmann::ordered_json::object();
  std::string where_;
  TemplateLimits limits_;
};

/// Returns true if the folder has a chat template.
bool has_chat_template(const std::string& folder);

}  // namespace colossal::text
