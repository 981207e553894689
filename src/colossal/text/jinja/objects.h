// Objects that templates create and call: namespaces, macros, cyclers, the variable `loop` of a for statement, and the
// global functions.
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

/// The state of a running for statement: its variable `loop`, and the iteration over its items.
class Loop : public Object {
 public:
  /// Returns true if the loop visits the item.
  using Test = std::function<bool(const Value&)>;

  /// `budget` and `node` must outlive the loop. An empty `test` = all items. `depth` is the number of loops of the same
  /// statement around it (loop.depth0).
  Loop(Budget& budget, const Node& node, ScopePtr scope, Value items, Test test, int depth);
  /// Returns the next item that passes the test; no value at the end.
  std::optional<Value> advance();
  /// Releases all values at the end of the statement.
  void finish();

  std::string type_name() const override { return "LoopContext"; }
  std::string full_type_name() const override { return "jinja2.runtime.LoopContext"; }
  std::string repr(Budget&) const override;
  std::optional<Value> attribute(Interpreter& interpreter, std::string_view name) override;
  bool is_callable() const override { return true; }
  /// Renders a recursive loop over other items.
  Value call(Interpreter& interpreter, Arguments& arguments) override;
  Value cycle(const Arguments& arguments) const;
  bool changed(Interpreter& interpreter, const Arguments& arguments);

 private:
  std::optional<Value> fetch();
  const std::optional<Value>& peek();
  int64_t length();

  Budget& budget_;
  const Node& node_;
  ScopePtr scope_;
  Value source_;
  std::vector<Value> values_;  ///< items if the source is not a list
  size_t at_ = 0;
  Test test_;
  int depth_;
  int64_t index_ = -1;  ///< index of the current item, from 0
  int64_t length_ = -1;
  bool is_over_ = false;
  std::optional<Value> after_;
  Value current_, before_;
  std::optional<Value> last_changed_;
};

}  // namespace colossal::text::jinja
