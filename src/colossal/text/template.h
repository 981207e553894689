// A Jinja template over any variables, such as the members of a line of data.
//
//   const text::Template prompt("Question: {{question}}\nAnswer:", "task.toml, prompt");
//   prompt.render({{"question", "Why?"}});                                     // "Question: Why?\nAnswer:"
//   text::Template("{{choices}}", "choices").value({{"choices", {"a", "b"}}});  // the list itself
//
// The language is that of chat templates (text/chat_template.h), with three differences. A line end at the end of the
// template is kept. A variable that is missing is an error where it is printed, walked by a `for` or tested by an `if`.
// The filter `regex_replace(pattern, text)` replaces each match of a regular expression.
#pragma once
#include <memory>
#include <string>

#include "colossal/base/json.h"
#include "colossal/text/template_limits.h"

namespace colossal::text {

namespace jinja {
struct Tree;
}  // namespace jinja

/// A parsed template. Copies share it.
/// Thread safety: const members may be called from several threads.
class Template {
 public:
  /// Parses a template. `name` appears in messages.
  /// Errors ("template"): it is not UTF-8 or cannot be parsed; the message has name, line and reason.
  Template(const std::string& source, const std::string& name, const TemplateLimits& limits = {});

  /// Returns the text for the members of an object.
  /// Errors ("template"): the template fails, with name, line and reason.
  std::string render(const nlohmann::ordered_json& variables) const;
  /// Returns the value of a template that is one `{{ }}` alone, and the text of any other template.
  /// Errors: those of render(); ("template") a value that JSON cannot represent.
  nlohmann::ordered_json value(const nlohmann::ordered_json& variables) const;

 private:
  std::string name_;
  std::shared_ptr<const jinja::Tree> tree_;
  TemplateLimits limits_;
};

}  // namespace colossal::text
