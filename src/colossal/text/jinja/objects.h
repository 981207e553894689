// What templates can make and call besides data: namespaces, macros, cyclers, and the functions that are always there.
#pragma once
#include "colossal/text/jinja/interpreter.h"

namespace colossal::text::jinja {

/// namespace(a=1): its attributes alone can be set.
class Namespace : public Object {
 public:
  std::string type_name() const override { return "TemplateNamespace"; }
  std::string full_type_name() const override { return "transformers.utils.chat_template_utils.TemplateNamespace"; }
  std::string repr(Budget& budget) const override;
  std::optional<Value> attribute(Interpreter&, std::string_view name) override;
  /// Errors: names that begin with an underscore.
  void set(Budget& budget, const Value& name, Value value);
  void clear() override { attributes_.clear(); }

 private:
  Dict attributes_;
};

/// A macro, or what a call block hands over as `caller`.
class Macro : public Object {
 public:
  /// `node`: a Macro or CallBlock.
  Macro(const Node& node, ScopePtr scope) : node_(node), scope_(std::move(scope)) {}
  std::string type_name() const override { return "Macro"; }
  std::string full_type_name() const override { return "jinja2.runtime.Macro"; }
  std::string repr(Budget&) const override;
  std::optional<Value> attribute(Interpreter& interpreter, std::string_view name) override;
  bool is_callable() const override { return true; }
  Value call(Interpreter& interpreter, Arguments& arguments) override;

 private:
  const Node& node_;
  ScopePtr scope_;
};

/// The functions that every template can call: range, dict, namespace, cycler, joiner, raise_exception, and with a
/// clock strftime_now. Nothing where there is none of the name.
std::optional<Value> global_function(Interpreter& interpreter, std::string_view name);

}  // namespace colossal::text::jinja
