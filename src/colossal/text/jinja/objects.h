// Objects that templates create and call: namespaces, macros, cyclers, and the global functions.
#pragma once
#include "colossal/text/jinja/interpreter.h"

namespace colossal::text::jinja {

/// The object of namespace(a=1). Its attributes are the only ones that a template can set.
class Namespace : public Object {
 public:
  std::string type_name() const override { return "TemplateNamespace"; }
  std::string full_type_name() const override { return "transformers.utils.chat_template_utils.TemplateNamespace"; }
  std::string repr(Budget& budget) const override;
  std::optional<Value> attribute(Interpreter&, std::string_view name) override;
  /// Sets an attribute. Errors: a name that starts with an underscore.
  void set(Budget& budget, const Value& name, Value value);
  void clear() override { attributes_.clear(); }

 private:
  Dict attributes_;
};

/// A macro, or the function `caller` that a call block passes.
class Macro : public Object {
 public:
  /// `node` is a Macro or CallBlock and must outlive the object.
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

/// Returns a global function that every template can call: range, dict, namespace, cycler, joiner, raise_exception.
/// strftime_now exists only with a clock. No value if there is none of the name.
std::optional<Value> global_function(Interpreter& interpreter, std::string_view name);

}  // namespace colossal::text::jinja
