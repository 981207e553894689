#include "colossal/text/template.h"

#include <ctime>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/jinja/interpreter.h"
#include "colossal/text/jinja/json_value.h"
#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

[[noreturn]] void fail_template(const std::string& name, const jinja::Failure& failure) {
  const std::string line = failure.line > 0 ? concat(", line ", failure.line) : "";
  throw Error("template",
              concat(printable(name), line, ": ", jinja::cause_name(failure.cause), ": ", printable(failure.message)));
}

void set_members(jinja::Interpreter& interpreter, const nlohmann::ordered_json& variables) {
  interpreter.refuse_undefined();
  for (const auto& [name, value] : variables.items())
    interpreter.set_variable(name, jinja::from_json(interpreter.budget(), value));
}

}  // namespace

Template::Template(const std::string& source, const std::string& name, const TemplateLimits& limits)
    : name_(name), limits_(limits) {
  require(is_utf8(source), "template", printable(name), ": must be UTF-8");
  try {
    // The parser removes one line end from the end of its text.
    tree_ = std::make_shared<const jinja::Tree>(jinja::parse(source.ends_with('\n') ? source + "\n" : source, limits));
  } catch (const jinja::Failure& failure) {
    fail_template(name, failure);
  }
}

std::string Template::render(const nlohmann::ordered_json& variables) const {
  try {
    jinja::Interpreter interpreter(*tree_, limits_, std::nullopt);
    set_members(interpreter, variables);
    return interpreter.render().text;
  } catch (const jinja::Failure& failure) {
    fail_template(name_, failure);
  }
}

nlohmann::ordered_json Template::value(const nlohmann::ordered_json& variables) const {
  try {
    jinja::Interpreter interpreter(*tree_, limits_, std::nullopt);
    set_members(interpreter, variables);
    return jinja::json_of(interpreter.budget(), interpreter.value());
  } catch (const jinja::Failure& failure) {
    fail_template(name_, failure);
  }
}

}  // namespace colossal::text
