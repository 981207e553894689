// The interpreter of parsed templates, which produces the rendered text.
#pragma once
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/text/jinja/tree.h"

namespace colossal::text::jinja {

/// Bytes [begin, end) of the rendered text.
struct RenderedSpan {
  size_t begin, end;
};

/// The result of a rendering.
struct Rendered {
  std::string text;
  std::vector<RenderedSpan> generated;  ///< spans of `generation` blocks, in the order of their ends
};

/// The variables of one body: a template, an iteration of a loop, or a call of a macro.
struct Scope {
  std::shared_ptr<Scope> outer;
  std::vector<std::pair<int, Value>> variables;  ///< index in Tree::names, and value; in no order
  int depth = 0;                                 ///< number of scopes around it
  bool is_kept = false;                          ///< a macro refers to it; cleared at the end of the rendering
  /// Returns the variable `name` (an index in Tree::names) of this scope alone; null = none.
  const Value* find_here(int name) const;
  /// Sets the variable `name` (an index in Tree::names) in this scope.
  void set(int name, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

/// One rendering of one template. The template may call every operation here, so the budget bounds each of them.
class Interpreter {
 public:
  /// `now` is the time that strftime_now formats; if it is not set, the function is undefined. `tree` must outlive the
  /// interpreter.
  Interpreter(const Tree& tree, const Limits& limits, std::optional<std::tm> now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// Sets a variable before render(). A name that the template does not use is ignored.
  void set_variable(std::string_view name, Value value);
  /// Makes undefined values errors where they are printed, walked by a `for` or tested by an `if`, much as jinja2's
  /// StrictUndefined does. Call it before render() or value().
  void refuse_undefined() { refuses_undefined_ = true; }
  Rendered render();
  /// Returns the value of a template that is one `{{ }}` alone, a generator as a list. Returns the text of any other
  /// template.
  Value value();

  Budget& budget() { return budget_; }
  Value make(std::string text) { return make_text(budget_, std::move(text)); }
  Value make(std::vector<Value> values, Sequence kind = Sequence::List) {
    return make_items(budget_, std::move(values), kind);
  }
  const std::optional<std::tm>& now() const { return now_; }
  /// Clears the object's references at the end of the rendering, because it may refer to itself.
  void keep(std::shared_ptr<Object> object) { kept_.push_back(std::move(object)); }

  /// Calls a value. Errors: the value is not callable.
  Value call(const Value& callee, Arguments& arguments);
  /// Runs the body of a macro. `scope` is the scope of its definition.
  std::string call_macro(const Node& macro, const ScopePtr& scope, Arguments& arguments);
  /// Renders a recursive loop over other items. `depth` is the number of loops of this statement around it
  /// (loop.depth0).
  std::string recurse_loop(const Node& loop, const ScopePtr& scope, const Value& items, int depth);

 private:
  enum class Flow { On, Break, Continue };

  // Statements; their output is appended to out_.
  Flow run(const std::vector<NodePtr>& body, const ScopePtr& scope);
  Flow run(const Node& node, const ScopePtr& scope);
  void write(std::string_view text);
  Flow set_block(const Node& node, const ScopePtr& scope);
  Flow filter_block(const Node& node, const ScopePtr& scope);
  Flow if_(const Node& node, const ScopePtr& scope);
  Flow for_(const Node& node, const ScopePtr& scope, const Value& items, int depth);
  void call_block(const Node& node, const ScopePtr& scope);
  Flow with(const Node& node, const ScopePtr& scope);
  void generation(const Node& node, const ScopePtr& scope);
  void set(const Node& node, const ScopePtr& scope);
  /// Returns the output of `write_it` instead of appending it.
  std::string captured(const std::function<void()>& write_it);
  void assign(const Node& target, const Value& value, const ScopePtr& scope);
  void require_namespaces(const Node& target, const ScopePtr& scope);
  void bind(const MacroSignature& macro, const ScopePtr& scope, Arguments& arguments);
  ScopePtr inner(const ScopePtr& outer);
  Value make_macro(const Node& node, const ScopePtr& scope);

  // Expressions.
  Value evaluate(const Node& node, const ScopePtr& scope);
  Value evaluate_used(const Node& node, const ScopePtr& scope);
  Value evaluate_slice(const Node& node, const ScopePtr& scope);
  Value compare(const Node& node, const ScopePtr& scope);
  Value concatenate(const Node& node, const ScopePtr& scope);
  Value make_dict_of(const Node& node, const ScopePtr& scope);
  const Value* find(int name, const ScopePtr& scope) const;
  Value look_up(const Node& node, const ScopePtr& scope);
  Value choose(const Node& node, const ScopePtr& scope);
  Value filter(const Node& node, const ScopePtr& scope, const Value* block = nullptr);
  Value test(const Node& node, const ScopePtr& scope);
  std::vector<Value> evaluate_all(const std::vector<NodePtr>& nodes, const ScopePtr& scope);
  Arguments evaluate_arguments(const CallArguments* call, const ScopePtr& scope);

  const Tree& tree_;
  Budget budget_;
  std::optional<std::tm> now_;
  int loop_, caller_, varargs_, kwargs_;  ///< indices of these names; -1 = the template does not use the name
  ScopePtr top_;
  std::string* out_ = nullptr;
  bool refuses_undefined_ = false;
  Rendered rendered_;
  std::vector<std::shared_ptr<Object>> kept_;
  std::vector<ScopePtr> kept_scopes_;
};

}  // namespace colossal::text::jinja
